"""Answers to questions and commands from outside of programs: see ``VERBS``.

Role: a table from verb to answer. Scheduler process; called by ``Scheduler`` between two steps, so every answer
describes one moment. Lengths and labels only of other clients' requests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sgnb.engine.mem_cache.base import IntegrityError
from sgnb.engine.scheduler.knobs import live_knobs, set_knobs
from sgnb.engine.scheduler.picture import PICTURE_VERBS, last_seq
from sgnb.engine.scheduler.req import Req
from sgnb.engine.scheduler.session import Session
from sgnb.engine.scheduler.snapshot import take_snapshot
from sgnb.errors import LimitError, SgnbError
from sgnb.messages import ErrorInfo, SchedulerControl, SchedulerReply

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)
_HISTORY_BYTES = 4 << 20


def answer(scheduler: Scheduler, msg: SchedulerControl) -> SchedulerReply:
    """Carry out one control; an unknown verb is an error that names the known ones. Whatever goes wrong is this answer's
    alone, but for a broken book of slots (IntegrityError)."""
    verb = VERBS.get(msg.verb)
    if verb is None:
        error = ErrorInfo(
            kind="EngineError",
            code="unknown_verb",
            message=f"the scheduler does not know {msg.verb!r}",
            hint=f"It knows {', '.join(VERBS)}.",
        )
        return SchedulerReply(client=msg.client, id=msg.id, error=error)
    try:
        return SchedulerReply(client=msg.client, id=msg.id, data=verb(scheduler, msg))
    except SgnbError as fault:
        error = ErrorInfo(kind=type(fault).__name__, code="refused", message=fault.message, hint=fault.hint)
    except IntegrityError:
        raise
    except Exception as fault:
        log.exception("the control %r failed", msg.verb)
        words = f"{msg.verb} failed in the scheduler: {type(fault).__name__}: {fault}"
        error = ErrorInfo(kind="EngineError", code="internal", message=words, hint="See its log: %sgl log")
    return SchedulerReply(client=msg.client, id=msg.id, error=error)


def _stats(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.structs.asdict(scheduler.stats())
    return data | {alias: data[name] for alias, name in _ALIASES.items()}


_ALIASES = {
    "kv_used_tokens": "num_used_tokens",
    "kv_available_tokens": "num_free_tokens",
    "kv_evictable_tokens": "num_cached_tokens",
}
"""SGLang's newer names of the same figures."""


def _flush_cache(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    result = scheduler.cache.flush()
    return {"flushed": result.flushed, "locked": result.locked}


def _requests(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    everyone = bool(msg.args.get("all_clients", False))
    reqs = sorted(scheduler.reqs.values(), key=lambda req: req.ordinal)
    return {"requests": [_describe(req, msg.client) for req in reqs if everyone or req.client == msg.client]}


def _describe(req: Req, client: int) -> dict[str, Any]:
    about: dict[str, Any] = {
        "label": {
            "cell": req.label.cell,
            "branch": req.label.branch,
            "name": req.label.name,
            "line": req.label.line,
        },
        "state": req.state.value,
        "prompt_tokens": len(req.prompt),
        "cached_tokens": req.cached_tokens,
        "completion_tokens": len(req.output_ids),
        "max_new_tokens": req.params.max_new_tokens,
        "id": req.rid,
        "client": req.client,
        "time_queued": req.time_received,
    }
    if req.client == client:
        about |= {"rid": req.rid, "sid": req.session.sid if req.session is not None else ""}
    return about


def _check(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    scheduler.check_integrity()
    stats = scheduler.stats()
    return {
        "ok": True,
        "free": stats.num_free_tokens,
        "cached": stats.num_cached_tokens,
        "used": stats.num_used_tokens,
        "total": stats.max_total_num_tokens,
        "locks": scheduler.cache.lock_total,
    }


def _set(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    return set_knobs(scheduler, msg.args)


def _knobs(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    return live_knobs(scheduler)


def _pause(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    scheduler.pause(msg.client)
    return {"paused": True, "steps": scheduler.meter.forward_steps}


def _step(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    count = msg.args.get("count", 1)
    if type(count) is not int or not 1 <= count <= 1_000_000:
        raise LimitError(f"count must be a whole number in 1..1,000,000, not {count!r}")
    if not scheduler.paused:
        raise LimitError("the scheduler is not paused", hint="Pause it first.")
    scheduler.steps_allowed += count
    return {"paused": True, "steps": scheduler.meter.forward_steps}


def _resume(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    scheduler.resume()
    return {"paused": False, "steps": scheduler.meter.forward_steps}


def _own_session(scheduler: Scheduler, msg: SchedulerControl) -> Session:
    session = scheduler.sessions.get(str(msg.args.get("sid", "")))
    if session is None or session.client != msg.client:
        raise LimitError("no such session of this client is open", hint="Give sid= of a live state.")
    return session


def _pin(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    return {"pinned": _own_session(scheduler, msg).pin(scheduler.allocator.size // 2)}


def _unpin(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    return {"unpinned": _own_session(scheduler, msg).unpin()}


def _memory(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    runs, longest = scheduler.allocator.fragmentation()
    free = scheduler.allocator.available
    return {
        "free": free,
        "free_runs": runs,
        "longest_free_run": longest,
        "fragmentation": scheduler.allocator.scattered,
        "half_filled": scheduler.stats().num_half_filled_tokens,
        "pinned": scheduler.cache.pinned_size,
        "order": scheduler.allocator.order,
    }


def _history(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Events from ``from_seq`` on that are still kept, oldest first, at most ``limit`` and some 4 MB; ``last_seq``: of all
    there are."""
    start, limit = msg.args.get("from_seq", 1), msg.args.get("limit", 1000)
    if type(start) is not int or type(limit) is not int or not 1 <= limit <= 5000:
        raise LimitError("from_seq and limit must be whole numbers, limit in 1..5000")
    if scheduler.history is None:
        raise LimitError("this engine keeps no history")
    last, events = scheduler.history(start, limit)
    part: list[Any] = []
    size = 0
    for event in events:
        size += len(msgspec.msgpack.encode(event))
        if part and size > _HISTORY_BYTES:
            break
        part.append(msgspec.to_builtins(event))
    return {"last_seq": last, "events": part}


def _past(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """The picture, encoded, from which the events lead to the moment ``time`` (seconds of the engine's clock)."""
    moment = msg.args.get("time")
    if not isinstance(moment, int | float) or isinstance(moment, bool):
        raise LimitError("time must be a number of seconds")
    found = scheduler.pictures.before(moment) if scheduler.pictures is not None else None
    if found is None:
        raise LimitError(
            "nothing of that time is kept", hint="The last ten minutes are, if they fit in 64 MB."
        )
    return {"seq": found.seq, "time": found.time, "picture": found.data}


def _record_start(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    scheduler.inputs.start(msg.client, bool(msg.args.get("tokens", False)))
    return {"snapshot": msgspec.msgpack.encode(take_snapshot(scheduler))}


def _record_stop(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    scheduler.inputs.stop(msg.client)
    return {"last_seq": last_seq(scheduler)}


def _recorded_tokens(scheduler: Scheduler, msg: SchedulerControl) -> dict[str, Any]:
    """Token ids of the asking client's own requests that ended while it recorded; see ``OwnTokensPart``."""
    return {"part": msgspec.msgpack.encode(scheduler.inputs.take(msg.client))}


VERBS: dict[str, Callable[[Scheduler, SchedulerControl], dict[str, Any]]] = {
    "stats": _stats,
    "flush_cache": _flush_cache,
    "requests": _requests,
    "check": _check,
    "set": _set,
    "knobs": _knobs,
    "pause": _pause,
    "step": _step,
    "resume": _resume,
    "pin": _pin,
    "unpin": _unpin,
    "memory": _memory,
    "history": _history,
    "past": _past,
    "record_start": _record_start,
    "record_stop": _record_stop,
    "recorded_tokens": _recorded_tokens,
    **PICTURE_VERBS,
}
