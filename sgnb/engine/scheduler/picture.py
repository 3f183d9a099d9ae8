"""What a view asks the scheduler beside the events: the whole picture, text of nodes, who holds what.

Role: verbs of ``control``. Scheduler process; called between two steps, so an answer describes one moment, the one after
event ``seq``. Lengths, ids and labels of everybody; text only of what the asking client has sent or generated itself.
Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.mem_cache.tree_node import TreeNode
from sgnb.engine.scheduler.key_pictures import KeyPicture
from sgnb.engine.scheduler.knobs import live_knobs
from sgnb.engine.scheduler.step_events import runs_of
from sgnb.errors import LimitError
from sgnb.messages import SchedulerControl, SlotRun

if TYPE_CHECKING:
    from sgnb.engine.scheduler.req import Req
    from sgnb.engine.scheduler.scheduler import Scheduler

MAX_NODES = 256
MAX_NODE_BYTES = 4096
MAX_SPANS = 64
MAX_RUNS = 400_000


def last_seq(scheduler: Scheduler) -> int:
    """Number of the last event there is; 0 where none are numbered."""
    return scheduler.history(1 << 62)[0] if scheduler.history is not None else 0


def _picture(scheduler: Scheduler, _msg: SchedulerControl | None = None) -> dict[str, Any]:
    """The tree, the slots, the live requests and the figures; events after ``seq`` continue it.

    A node is ``[id, parent, start, length, locks, hits, pins, soft references, last use, name space]``; its name space is
    the number of its root. A slot run is ``[owner, start, count, kind]``.
    """
    scheduler.recorder.flush_slots(scheduler.meter.forward_steps)
    scheduler.publish(scheduler.stats())
    nodes, owners, runs = _tree(scheduler)
    flights = [run for req in scheduler.reqs.values() for run in _flight(req)]
    count = len(runs) + len(flights)
    shown = [(owners[place], start, size, "") for place, start, size in runs[:MAX_RUNS]]
    shown += [(run.owner, run.start, run.count, run.kind) for run in flights[: max(0, MAX_RUNS - len(runs))]]
    return {
        "seq": last_seq(scheduler),
        "time": scheduler.clock(),
        "step": scheduler.meter.forward_steps,
        "slots": scheduler.allocator.size,
        "slot_bytes": scheduler.runner.slot_bytes,
        "page_size": scheduler.allocator.page_size,
        "policy": scheduler.args.schedule_policy,
        "settings": live_knobs(scheduler),
        "nodes": nodes,
        "next": scheduler.cache.next_victims(6),
        "runs": shown,
        "runs_left_out": max(0, count - MAX_RUNS),
        "requests": [_request(req) for req in sorted(scheduler.reqs.values(), key=lambda req: req.ordinal)],
        "stats": msgspec.to_builtins(scheduler.stats()),
    }


def key_picture(scheduler: Scheduler) -> KeyPicture:
    """This moment's picture for ``key_pictures``, encoded."""
    picture = _picture(scheduler)
    return KeyPicture(picture["seq"], picture["time"], msgspec.msgpack.encode(picture))


def _tree(
    scheduler: Scheduler,
) -> tuple[list[tuple[int | float, ...]], list[str], list[tuple[int, int, int]]]:
    """The nodes, their names as owners, and the runs of their slots: ``(place among the nodes, start, count)``."""
    nodes: list[tuple[int | float, ...]] = []
    values: list[IntArray] = []
    place: dict[int, tuple[int, int]] = {}
    book = scheduler.recorder.book
    for node in scheduler.cache.nodes():
        parent = node.parent
        assert parent is not None
        start, root = place.get(parent.id, (0, parent.id))
        length = len(node.key)
        place[node.id] = (start + length, root)
        locks, hits, used = node.lock_ref, book.hits(node), book.used(node)
        # Tuples of numbers: 100 000 lists would be walked by the garbage collector again and again.
        nodes.append(
            (node.id, parent.id, start, length, locks, hits, node.pin_ref, node.soft_ref, used, root)
        )
        values.append(node.value)
    return nodes, [f"node:{row[0]}" for row in nodes], _runs_of_all(values)


def _runs_of_all(values: Sequence[IntArray]) -> list[tuple[int, int, int]]:
    """Runs of consecutive slots, none over two nodes: all at once, for there may be 100 000 nodes."""
    if not values:
        return []
    lengths = np.fromiter((len(value) for value in values), dtype=np.int64, count=len(values))
    slots = np.concatenate(values).astype(np.int64, copy=False)
    begins = np.ones(len(slots), dtype=bool)
    begins[1:] = np.diff(slots) != 1
    firsts = np.cumsum(lengths)[:-1]
    begins[firsts[firsts < len(slots)]] = True
    starts = np.flatnonzero(begins)
    owners = np.repeat(np.arange(len(values)), lengths)[starts]
    counts = np.diff(starts, append=len(slots))
    return list(zip(owners.tolist(), slots[starts].tolist(), counts.tolist(), strict=True))


def slot_runs(scheduler: Scheduler) -> list[SlotRun]:
    """Who owns which slots, all but the free ones."""
    nodes = list(scheduler.cache.nodes())
    found = _runs_of_all([node.value for node in nodes])
    runs = [SlotRun(owner=f"node:{nodes[place].id}", start=start, count=size) for place, start, size in found]
    for req in scheduler.reqs.values():
        runs += _flight(req)
    return runs


def _flight(req: Req) -> list[SlotRun]:
    kv = req.kv
    cut = max(kv.tree_len, min(len(kv.slots), len(req.prompt)))
    return [
        *runs_of(req.rid, kv.slots[kv.tree_len : cut], "prefill"),
        *runs_of(req.rid, kv.slots[cut:] + kv.spare, "decode"),
        *runs_of(req.rid, kv.side),
    ]


def _request(req: Req) -> dict[str, Any]:
    return {
        "rid": req.rid,
        "client": req.client,
        "label": msgspec.to_builtins(req.label),
        "state": req.state.value,
        "prompt_tokens": len(req.prompt),
        "cached_tokens": req.cached_tokens,
        "completion_tokens": len(req.output_ids),
        "time_queued": req.time_received,
        "time_admitted": req.time_admitted or 0.0,
        "node": req.kv.node.id if req.kv.node is not None else 0,
        "match": msgspec.to_builtins(req.match) if req.match is not None else None,
    }


def _nodes(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Text of the nodes ``ids`` (at most 256), as far as the client may read it, and which requests lock each."""
    wanted = msg.args.get("ids", [])
    if (
        not isinstance(wanted, list)
        or len(wanted) > MAX_NODES
        or any(type(node) is not int for node in wanted)
    ):
        raise LimitError(f"ids must be a list of at most {MAX_NODES} node numbers")
    numbers = set(wanted)
    lockers: dict[int, list[str]] = {}
    for req in scheduler.reqs.values():
        here: TreeNode | None = req.kv.node
        while here is not None:
            lockers.setdefault(here.id, []).append(req.rid)
            here = here.parent
    found: dict[str, Any] = {}
    for node in scheduler.cache.nodes():
        if node.id in numbers:
            about: dict[str, Any] = {"tokens": len(node.key), "locked_by": lockers.get(node.id, [])}
            if scheduler.recorder.book.may_read(node, msg.client):
                keys = node.key[:MAX_NODE_BYTES].tolist()
                about["text"] = text_of(scheduler.table, scheduler.private_ids.true_ids(keys))
            found[str(node.id)] = about
    return {"nodes": found}


def _holders(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Sessions of this client that refer to cached tokens: what the notebook's states keep, in tokens and runs of slots."""
    found = []
    for session in scheduler.sessions.values():
        if session.client != msg.client or not len(session.ids):
            continue
        cached = scheduler.cache.peek(session.keys(), session.extra_key)
        head = text_of(scheduler.table, list(session.ids[:64]))
        found.append(
            {
                "sid": session.sid,
                "tokens": len(session.ids),
                "cached": cached.length,
                "node": cached.node.id,
                "active": session.active.rid if session.active is not None else "",
                "cell": session.cell,
                "text": head,
            }
        )
    return {"sessions": found}


def _prompt(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """What the prompt of request ``rid`` and the nearest cached path had around the place where they part; and the cell
    ``by`` that computed that path, where it is one of this client's."""
    pair = scheduler.match_log.find(str(msg.args.get("rid", "")), msg.client)
    if pair is None:
        raise LimitError("no prompt of this client with that id is remembered", hint="The last 200 are.")
    by = scheduler.match_log.find(scheduler.match_log.maker(pair.node), msg.client)
    known = {"by": by.cell} if by is not None and by.cell else {}
    return {
        "from": pair.start,
        "same": text_of(scheduler.table, pair.same),
        "prompt": text_of(scheduler.table, pair.prompt),
        "cached": text_of(scheduler.table, pair.cached),
        "diverged": pair.diverged,
        "cached_node": pair.node,
        **known,
    }


def _place(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Where the KV of one token of request ``rid`` is now: ``slot`` and ``node``, -1 and 0 where it is no longer kept; and
    the cell ``by`` that computed it, where that is one of this client's.

    ``position`` counts from the prompt's beginning; ``more``: the output ids up to it, for a token of the output.
    """
    pair = scheduler.match_log.find(rid := str(msg.args.get("rid", "")), msg.client)
    position, more = msg.args.get("position"), msg.args.get("more", [])
    if pair is None or pair.keys is None:
        raise LimitError("the prompt of this request is not remembered", hint="The last 200 are.")
    keys = np.concatenate([pair.keys, np.array(more, dtype=np.int32)])
    if type(position) is not int or not 0 <= position < len(keys):
        raise LimitError(f"position must be from 0 to {len(keys) - 1}")
    about = {"id": scheduler.private_ids.true_ids(keys[position : position + 1].tolist())[0]}
    req = scheduler.reqs.get(rid)
    if req is not None and position < len(req.kv.slots):
        return {**about, "slot": int(req.kv.slots[position]), "node": 0}
    found = scheduler.cache.peek(keys, pair.space)
    begin = found.length
    for node, length in _back(found.node, found.length):
        begin -= length
        if begin <= position < found.length:
            by = scheduler.match_log.find(scheduler.match_log.maker(node.id), msg.client)
            known = {"by": by.cell} if by is not None else {}
            return {**about, "slot": int(node.value[position - begin]), "node": node.id, **known}
    return {**about, "slot": -1, "node": 0}


def _slot(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Which token ``slot`` of ``owner`` (a request's id or ``node:<id>``) holds: its ``position`` from the prompt's or the
    path's beginning, ``output`` (its number among the generated ones, or 0), its text if the client may read it.

    Empty where the slot is no longer that owner's.
    """
    slot, owner = msg.args.get("slot"), str(msg.args.get("owner", ""))
    if type(slot) is not int or slot < 0:
        raise LimitError("slot must be a number")
    req = scheduler.reqs.get(owner)
    if req is not None:
        if slot not in req.kv.slots:
            return {}
        position = list(req.kv.slots).index(slot)
        ids = [*req.prompt, *req.output_ids][position : position + 1] if req.client == msg.client else []
        output = max(0, position + 1 - len(req.prompt))
        return {"position": position, "output": output, "text": _own_text(scheduler, ids)}
    for node in scheduler.cache.nodes():
        if owner == f"node:{node.id}" and (found := np.flatnonzero(np.asarray(node.value) == slot)).size:
            own = int(found[0])
            ids = (
                node.key[own : own + 1].tolist() if scheduler.recorder.book.may_read(node, msg.client) else []
            )
            return {"position": _depth(node) + own, "output": 0, "text": _own_text(scheduler, ids)}
    return {}


def _running(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Text of tokens of requests that run, as far as they are the client's: of each of ``spans``, ``[rid, start, count]``,
    ``count`` tokens from position ``start`` of prompt and output together, or so many as there are."""
    spans = msg.args.get("spans", [])
    if not isinstance(spans, list) or len(spans) > MAX_SPANS:
        raise LimitError(f"spans must be a list of at most {MAX_SPANS}")
    found = {}
    for span in spans:
        try:
            rid, start, count = span
            wanted = slice(max(0, int(start)), max(0, int(start)) + max(0, int(count)))
        except (TypeError, ValueError):
            raise LimitError("a span is [rid, start, count]") from None
        req = scheduler.reqs.get(str(rid))
        if req is not None and req.client == msg.client:
            found[req.rid] = _own_text(scheduler, [*req.prompt, *req.output_ids][wanted][:MAX_NODE_BYTES])
    return {"texts": found}


def _own_text(scheduler: Scheduler, ids: list[int]) -> str:
    return text_of(scheduler.table, scheduler.private_ids.true_ids(ids))


def _depth(node: TreeNode) -> int:
    """How many tokens lie before the node."""
    above, tokens = node.parent, 0
    while above is not None:
        tokens += len(above.key)
        above = above.parent
    return tokens


def _back(last: TreeNode, matched: int) -> list[tuple[TreeNode, int]]:
    """The nodes of a match of so many ids from its last one up, each with how many of them are its own."""
    path = []
    node: TreeNode | None = last
    while node is not None and node.parent is not None:
        path.append(node)
        node = node.parent
    own = matched - sum(len(node.key) for node in path[1:])
    return [(node, own if node is last else len(node.key)) for node in path]


def text_of(table: Sequence[bytes], ids: list[int]) -> str:
    """Text of token ids; bytes that are no whole character are shown as ``�``, at most 4 kB."""
    raw = b"".join(table[token] for token in ids if 0 <= token < len(table))
    return raw[:MAX_NODE_BYTES].decode("utf-8", "replace")


PICTURE_VERBS: dict[str, Callable[[Scheduler, SchedulerControl], dict[str, Any]]] = {
    "picture": _picture,
    "nodes": _nodes,
    "holders": _holders,
    "prompt": _prompt,
    "place": _place,
    "slot": _slot,
    "running": _running,
}
