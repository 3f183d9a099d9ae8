"""Random work on a scheduler, and what each request must say: the same as alone, whatever runs beside it.

``Load`` sends generations, selects, forks, extensions, aborts and closings to one ``Rig``, forces retractions and
defragmentations and turns knobs meanwhile, and compares every request with an oracle that has no slots, batches or caches.
It keeps the ids of every session itself, so a prompt that went wrong is found, too. The rig's arguments (drivers, overlap,
pages, policies) are the caller's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from scheduler_rig import BYTES, Rig, Told

from sgnb.engine.model_executor.stub_runner import STUB_EOS, mix, prefix_hash, stub_score
from sgnb.engine.scheduler import knobs
from sgnb.engine.scheduler.choices import METHODS, choose
from sgnb.engine.scheduler.stop import kept_prefix
from sgnb.messages import SchedulerControl

POLICIES = ["lpm", "fcfs", "random", "dfs-weight", "lof", "priority"]
EVICTIONS = ["lru", "lfu", "slru", "fifo", "priority"]
PAGES = [1, 1, 2, 4, 16]
STEMS = [b"", b"aaaa", b"aaaabbbb", b"aaaabbbbcccccccc", b"zz", b"aaaabbbbccccccccddddddddddddddddeeee"]


@dataclass
class Asked:
    """What was asked of one request. ``prompt``: all its ids, by the sender's own books."""

    rid: str
    prompt: list[int]
    params: dict = field(default_factory=dict)
    options: list[bytes] | None = None
    method: str = ""
    abort: bool = False
    joined: bool = False


@dataclass
class Known:
    """A session by its sender's books: its ids before ``last``, its last request."""

    ids: list[int] = field(default_factory=list)
    last: Asked | None = None
    parent: int | None = None
    forked_at: int = 0
    joined: bool = False
    """KV of branches was copied into it, perhaps."""


def oracle(ids: list[int], params: dict, limit: int) -> tuple[list[int], str]:
    """Output and end of a greedy request alone: the stub's rule written again, without slots, batches or caches."""
    out: list[int] = []
    state = prefix_hash(ids)
    while True:
        if len(out) >= params["max_new_tokens"]:
            return out, "length"
        if out and len(ids) + len(out) >= limit:
            return out, "context"
        banned = set() if params.get("ignore_eos") else {STUB_EOS}
        banned = banned if len(out) < params.get("min_new_tokens", 0) else set()
        token = draw(state, banned)
        out.append(token)
        state = mix(state ^ (token + 1))
        if token == STUB_EOS and not params.get("ignore_eos"):
            return out, "eos"
        if any(stop.encode() in b"".join(BYTES[i] for i in out) for stop in params.get("stop", ())):
            return out, "stop"


def draw(state: int, banned: set[int]) -> int:
    from sgnb.engine.model_executor.stub_runner import _EOS_EVERY, _TEXT

    for attempt in range(32):
        bits = mix(state + attempt)
        token = STUB_EOS if bits % _EOS_EVERY == 0 else _TEXT[(bits >> 16) % len(_TEXT)]
        if token not in banned:
            return token
    raise AssertionError("the stub always finds a token here")


def choice_of(prompt: list[int], options: list[bytes], method: str) -> tuple[int, list[float]]:
    """Winner and scores of a select, by brute force."""

    def scores(before: list[int], option: bytes) -> list[float]:
        return [stub_score(prefix_hash(before + list(option[:j])), token) for j, token in enumerate(option)]

    without = [[0.0, *scores([], option)[1:]] for option in options]
    return choose(method, [scores(prompt, option) for option in options], without)


class Load:
    """One scheduler under random work. ``aborts``, ``moves``: whether to abort and close, and to defragment."""

    def __init__(self, seed: int, *, aborts: bool = True, moves: bool = True, **args) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(context_length=args.pop("context_length", 96), **args)
        self.limit = self.rig.scheduler.max_len
        self.asked: dict[str, Asked] = {}
        self.sessions: dict[int, Known] = {}
        self.aborts, self.moves = aborts, moves
        self.n = self.joins = self.copied = 0

    def run(self, requests: int, retract_every: int = 0) -> None:
        """Send that many requests, drain, compare each."""
        rng, rig = self.rng, self.rig
        while len(self.asked) < requests or not rig.scheduler.idle:
            for _ in range(rng.choice([0, 0, 1, 1, 3])):
                if len(self.asked) < requests:
                    self.arrive()
            if self.aborts:
                self.disturb()
            if rng.random() < 0.02:
                rig.scheduler.cache.flush()
            if rng.random() < 0.05:
                self.turn_knobs()
            if self.moves and rng.random() < 0.05:
                rig.scheduler.receive(SchedulerControl(client=1, id=0, verb="defragment", args={}))
            if retract_every and rig.scheduler.meter.forward_steps % retract_every == 0:
                self.force_retraction()
            rig.step()
        rig.drain()
        rig.scheduler.driver.close()
        for asked in self.asked.values():
            self.compare(asked, rig.told[asked.rid])

    # ------------------------------------------------------------ what arrives

    def arrive(self) -> None:
        """A request on a new session, on an old one, or on forks of an old one."""
        rng, rig = self.rng, self.rig
        free = self.free_sessions()
        if rng.random() < 0.5 and self.join(free):
            return
        if free and rng.random() < 0.15:
            parent = rng.choice(free)
            children = [self.next() for _ in range(rng.randint(1, 4))]
            rig.fork(parent, *children)
            for child in children:
                known = self.sessions[parent]
                self.sessions[child] = Known(list(known.ids), None, parent, len(known.ids), known.joined)
                self.ask(child)
        elif free and rng.random() < 0.4:
            sid = rng.choice(free)
            if rng.random() < 0.3:
                rig.extend(sid, b"xyz")
                self.sessions[sid].ids += b"xyz"
            self.ask(sid)
        else:
            sid = self.next()
            rig.open(sid)
            self.sessions[sid] = Known()
            self.ask(sid)

    def join(self, free: list[int]) -> bool:
        """Branches that are done are appended to their parent by their KV, if there are any, and the parent goes on."""
        arms: dict[int, list[int]] = {}
        for sid in free:
            parent = self.sessions[sid].parent
            if parent in free:
                arms.setdefault(parent, []).append(sid)
        if not arms:
            return False
        parent, branches = self.rng.choice(sorted(arms.items()))
        known, skip = self.sessions[parent], self.rng.choice([0, 0, 1])
        branches = [sid for sid in branches if len(self.sessions[sid].ids) > self.sessions[sid].forked_at]
        self.rig.join(parent, *branches, ids=b"j", skip=skip)
        known.ids += b"j"
        known.joined = True
        for sid in branches:
            branch = self.sessions[sid]
            known.ids += branch.ids[branch.forked_at + skip :]
            branch.parent = None
        if self.rng.random() < 0.7:
            self.rig.close(*branches)
            for sid in branches:
                del self.sessions[sid]
        self.joins += 1
        self.ask(parent)
        return True

    def next(self) -> int:
        """A number that was not used."""
        self.n += 1
        return self.n

    def free_sessions(self) -> list[int]:
        """Sessions that wait for nothing, their ids brought up to date."""
        waiting = {getattr(message, "sid", "") for message in self.rig.scheduler._inbox}
        free = []
        for sid, known in self.sessions.items():
            asked = known.last
            if f"c1.s{sid}" in waiting:
                continue
            if asked is not None:
                told = self.rig.told[asked.rid]
                if told.finish is None:
                    continue
                known.last = None
                if asked.options is not None:
                    if told.choice is not None and told.finish.type == "stop":
                        known.ids = asked.prompt + list(asked.options[told.choice.index])
                elif told.finish.type != "error":
                    known.ids = asked.prompt + told.output_ids
            free.append(sid)
        return free

    def ask(self, sid: int) -> None:
        """A generation, or a select."""
        rng, rig, known = self.rng, self.rig, self.sessions[sid]
        ids = rng.choice(STEMS) + bytes(rng.choice(b"abc") for _ in range(rng.choice([0, 1, 3, 10, 25])))
        n = self.next()
        if rng.random() < 0.15:
            ids = ids or b"a"
            options = [
                bytes(rng.choice(b"xyz") for _ in range(rng.randint(1, 5))) for _ in range(rng.randint(1, 6))
            ]
            method = rng.choice(METHODS)
            rid = rig.select(n, ids, options, method=method, sid=sid, fresh=False)
            asked = Asked(rid, known.ids + list(ids), options=options, method=method)
        else:
            params = {
                "max_new_tokens": rng.choice([0, 1, 2, 5, 12, 30]),
                "ignore_eos": rng.random() < 0.5,
                "stop": tuple(rng.sample(["e", "at", " t", "on", "qqq"], rng.choice([0, 0, 1, 3]))),
            }
            params["min_new_tokens"] = rng.choice([0, 0, params["max_new_tokens"] // 2])
            rid = rig.decode(n, ids, sid=sid, fresh=False, priority=rng.choice([0, 0, 0, -1, 5]), **params)
            asked = Asked(rid, known.ids + list(ids), params)
        asked.joined = known.joined
        self.asked[rid] = known.last = asked

    # ------------------------------------------------------------ what disturbs

    def disturb(self) -> None:
        """An abort, now and then; a session closed in whatever state it is."""
        rng, rig = self.rng, self.rig
        if rng.random() < 0.05 and rig.scheduler.reqs:
            rid = rng.choice(list(rig.scheduler.reqs))
            if rid in self.asked:  # else it computes a branch in the background
                self.asked[rid].abort = True
            ended = [other for other, told in rig.told.items() if told.finish is not None]
            rig.abort(rid, *ended[-2:], "c1.r0")
        if rng.random() < 0.03 and self.sessions:
            sid = rng.choice(list(self.sessions))
            known = self.sessions.pop(sid)
            if known.last is not None and rig.told[known.last.rid].finish is None:
                known.last.abort = True
            rig.close(sid)

    def turn_knobs(self) -> None:
        """Two live knobs change."""
        rng = self.rng
        values = {
            "schedule_policy": rng.choice(POLICIES),
            "decode_quantum": rng.choice([0, 1, 4]),
            "enable_mixed_chunk": rng.random() < 0.5,
            "enable_overlap": rng.random() < 0.5,
            "disable_radix_cache": rng.random() < 0.2,
            "radix_eviction_policy": rng.choice(EVICTIONS),
            "allocator_order": rng.choice(["lifo", "lowest"]),
            "chunked_prefill_size": rng.choice([-1, 1, 3, 8]),
        }
        names = rng.sample(sorted(values), 2)
        knobs.set_knobs(self.rig.scheduler, {name: values[name] for name in names})

    def force_retraction(self) -> None:
        """Some of those that hold slots give them back."""
        scheduler = self.rig.scheduler
        holders = [*scheduler.running_batch, *scheduler.scoring]
        holders += [scheduler.chunked_req] if scheduler.chunked_req else []
        for req in self.rng.sample(holders, self.rng.randint(0, len(holders))):
            if req.finished or req.row < 0:
                continue
            scheduler.retract(req)

    # ------------------------------------------------------------ what must have been said

    def fits(self, asked: Asked) -> bool:
        """Whether it can run at all: the last token, of an output or of an option, needs neither slot nor position."""
        length, scheduler = len(asked.prompt), self.rig.scheduler
        context, slots = scheduler.runner.context_length, scheduler.allocator.size
        if asked.options is not None:
            return bool(length) and length + max(map(len, asked.options)) - 1 <= min(context, slots)
        if not asked.params["max_new_tokens"]:
            return 0 < length <= context
        return 0 < length <= min(context - 1, slots)

    def compare(self, asked: Asked, told: Told) -> None:
        """Words, end, kept ids and what is left over; of a select its winner and scores."""
        prompt = asked.prompt
        if told.meta.joined_kv or told.meta.joined_tokens:
            assert asked.joined
        if told.meta.joined_kv == "approximate":
            self.copied += 1
            assert told.finish.type != "error" or asked.abort, told.finish
            assert asked.options is not None or told.finish.type == "error" or told.prompt_ids == prompt
            return
        if told.finish.type == "error":
            if asked.abort:
                return  # its session was closed before it arrived
            code, words = told.finish.error.code, told.finish.error.message
            assert code in ("empty_prompt", "context"), words
            assert code == ("context" if prompt else "empty_prompt") and not self.fits(asked), words
            return
        assert self.fits(asked)
        if asked.options is not None:
            assert asked.abort or told.finish.type == "stop"
            if told.finish.type == "stop":
                winner, scores = choice_of(prompt, asked.options, asked.method)
                assert told.choice.index == winner
                assert [option.score for option in told.choice.options] == scores
            return
        assert told.prompt_ids == prompt
        ids, finish = oracle(prompt, asked.params, self.limit)
        assert asked.abort or told.finish.type == finish
        if told.finish.type == "abort":
            assert ids[: len(told.ids)] == told.ids
            return
        assert told.ids == ids
        whole = b"".join(BYTES[i] for i in ids if i != STUB_EOS or asked.params["ignore_eos"])
        cut = len(whole)
        if finish == "stop":
            stops = [stop.encode() for stop in asked.params["stop"]]
            cut = min(
                (whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if whole.find(stop) >= 0
            )[1]
        assert told.visible[-1] == cut
        kept, leftover = kept_prefix(ids, BYTES, cut)
        assert (told.output_ids, told.leftover) == (ids[:kept], leftover)
