"""Random work against the oracle: every request says what it says alone, whatever runs beside it (R4, R5, R10, R11)."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scheduler_rig import BYTES, Rig, Told

from sgnb.engine.model_executor.stub_runner import STUB_EOS, mix, prefix_hash
from sgnb.engine.scheduler import knobs
from sgnb.engine.scheduler.stop import kept_prefix

QUICK = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
STEMS = [b"", b"aaaa", b"aaaabbbb", b"aaaabbbbcccccccc", b"zz"]


@dataclass
class Asked:
    """What was asked of one request."""

    rid: str
    params: dict
    abort: bool = False


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


class Load:
    """Random arrivals, aborts, retractions, closings; then every request is compared with the oracle."""

    def __init__(self, seed: int, **args) -> None:
        self.rng = random.Random(seed)
        self.rig = Rig(context_length=args.pop("context_length", 96), **args)
        self.limit = self.rig.scheduler.max_len
        self.asked: dict[str, Asked] = {}
        self.sessions: list[int] = []
        self.n = 0

    def run(self, requests: int, retract_every: int = 0) -> None:
        rng, rig = self.rng, self.rig
        while self.n < requests or not rig.scheduler.idle:
            for _ in range(rng.choice([0, 0, 1, 1, 3])):
                if self.n < requests:
                    self.arrive()
            if rng.random() < 0.05 and rig.scheduler.reqs:
                rid = rng.choice(list(rig.scheduler.reqs))
                self.asked[rid].abort = True
                ended = [other for other, told in rig.told.items() if told.finish is not None]
                rig.abort(rid, *ended[-2:], "c1.r0")
            if rng.random() < 0.03 and self.sessions:
                self.close(self.sessions.pop(rng.randrange(len(self.sessions))))
            if rng.random() < 0.02:
                rig.scheduler.cache.flush()
            if rng.random() < 0.05:
                self.turn_knobs()
            if retract_every and rig.scheduler.meter.forward_steps % retract_every == 0:
                self.force_retraction()
            rig.step()
        rig.drain()
        rig.scheduler.driver.close()
        for asked in self.asked.values():
            self.compare(asked, rig.told[asked.rid])

    def arrive(self) -> None:
        rng, rig = self.rng, self.rig
        self.n += 1
        params = {
            "max_new_tokens": rng.choice([0, 1, 2, 5, 12, 30]),
            "ignore_eos": rng.random() < 0.5,
            "stop": tuple(rng.sample(["e", "at", " t", "on", "qqq"], rng.choice([0, 0, 1, 3]))),
        }
        params["min_new_tokens"] = rng.choice([0, 0, params["max_new_tokens"] // 2])
        tail = bytes(rng.choice(b"abc") for _ in range(rng.choice([0, 1, 3, 10, 25])))
        ids = rng.choice(STEMS) + tail
        free = [sid for sid in self.sessions if rig.scheduler.sessions.get(f"c1.s{sid}") is not None]
        free = [sid for sid in free if rig.scheduler.sessions[f"c1.s{sid}"].active is None]
        waiting = {getattr(message, "sid", "") for message in rig.scheduler._inbox}
        free = [sid for sid in free if f"c1.s{sid}" not in waiting]
        if free and rng.random() < 0.4:
            sid = rng.choice(free)
            if rng.random() < 0.3:
                rig.extend(sid, b"xyz")
            rid = rig.decode(self.n, ids, sid=sid, fresh=False, priority=rng.choice([0, 0, 0, 5]), **params)
        else:
            self.sessions.append(self.n)
            rid = rig.decode(self.n, ids, priority=rng.choice([0, 0, 0, -1, 5]), **params)
        self.asked[rid] = Asked(rid, params)

    def close(self, sid: int) -> None:
        session = self.rig.scheduler.sessions.get(f"c1.s{sid}")
        pending = [m for m in self.rig.scheduler._inbox if getattr(m, "sid", "") == f"c1.s{sid}"]
        for message in pending:
            if hasattr(message, "rid"):
                self.asked[message.rid].abort = True
        if session is not None and session.active is not None:
            self.asked[session.active.rid].abort = True
        self.rig.close(sid)

    def turn_knobs(self) -> None:
        rng = self.rng
        values = {
            "schedule_policy": rng.choice(POLICY_NAMES),
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
        scheduler = self.rig.scheduler
        holders = [*scheduler.running_batch, *([scheduler.chunked_req] if scheduler.chunked_req else [])]
        for req in self.rng.sample(holders, self.rng.randint(0, len(holders))):
            scheduler.retract(req)

    def compare(self, asked: Asked, told: Told) -> None:
        prompt = told.prompt_ids
        if told.finish.type == "error":
            size, pool = told.finish.error.message, self.rig.args.max_total_tokens
            assert told.finish.error.code in ("empty_prompt", "context"), size
            assert told.finish.error.code == "empty_prompt" or "tokens" in size, pool
            return
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


POLICY_NAMES = ["lpm", "fcfs", "random", "dfs-weight", "lof", "priority"]
POLICIES = st.sampled_from(POLICY_NAMES)
EVICTIONS = ["lru", "lfu", "slru", "fifo", "priority"]


@QUICK
@given(
    seed=st.integers(0, 2**32),
    pool=st.sampled_from([40, 64, 150, 4096]),
    chunk=st.sampled_from([-1, 1, 3, 8, 16, 512]),
    rows=st.sampled_from([1, 2, 5, 16]),
    policy=POLICIES,
    disabled=st.booleans(),
    retract=st.sampled_from([0, 0, 3, 7]),
    conservativeness=st.sampled_from([0.01, 1.0]),
    quantum=st.sampled_from([0, 0, 1, 4]),
    mixed=st.booleans(),
    eviction=st.sampled_from(EVICTIONS),
    order=st.sampled_from(["lifo", "lowest"]),
    interval=st.sampled_from([1, 3]),
    overlap=st.booleans(),
    driver=st.sampled_from(["inline", "inline", "thread"]),
)
def test_every_request_says_what_it_says_alone(
    seed,
    pool,
    chunk,
    rows,
    policy,
    disabled,
    retract,
    conservativeness,
    quantum,
    mixed,
    eviction,
    order,
    interval,
    overlap,
    driver,
):
    load = Load(
        seed,
        max_total_tokens=pool,
        chunked_prefill_size=chunk,
        max_running_requests=rows,
        schedule_policy=policy,
        disable_radix_cache=disabled,
        schedule_conservativeness=conservativeness,
        decode_quantum=quantum,
        enable_mixed_chunk=mixed,
        radix_eviction_policy=eviction,
        allocator_order=order,
        prefill_decode_interval=interval,
        enable_overlap=overlap,
        runner_driver=driver,
    )
    load.run(requests=14, retract_every=retract)


@QUICK
@given(seed=st.integers(0, 2**32), pool=st.integers(8, 64), policy=POLICIES)
def test_R11_what_fits_alone_always_finishes(seed, pool, policy):
    """Tiny pools, forgotten sessions, no aborts: each one ends, and none for lack of room but at its own limit."""
    rng = random.Random(seed)
    rig = Rig(
        max_total_tokens=pool,
        context_length=64,
        chunked_prefill_size=rng.choice([-1, 4, 16]),
        schedule_policy=policy,
        schedule_conservativeness=0.01,
    )
    fits = {}
    for n in range(12):
        prompt = bytes(rng.choice(b"ab") for _ in range(rng.randint(1, min(pool, 63))))
        fits[rig.decode(n, prompt, max_new_tokens=rng.randint(1, 20), ignore_eos=True)] = prompt
        rig.step(rng.randint(0, 2))
    rig.drain()
    for rid, prompt in fits.items():
        params = {"max_new_tokens": 99, "ignore_eos": True}
        assert rig.told[rid].finish.type in ("length", "context")
        assert rig.told[rid].ids == oracle(list(prompt), params, 200)[0][: len(rig.told[rid].ids)]


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_every_request_says_what_it_says_alone_long(seed):
    rng = random.Random(seed)
    load = Load(
        seed,
        max_total_tokens=rng.choice([40, 64, 150, 1000]),
        chunked_prefill_size=rng.choice([-1, 1, 3, 8, 16, 512]),
        max_running_requests=rng.choice([1, 2, 5, 16]),
        schedule_policy=rng.choice(POLICY_NAMES),
        schedule_conservativeness=rng.choice([0.01, 1.0]),
        decode_quantum=rng.choice([0, 0, 1, 5]),
        enable_mixed_chunk=rng.random() < 0.5,
        enable_overlap=rng.random() < 0.7,
        runner_driver=rng.choice(["inline", "thread"]),
        radix_eviction_policy=rng.choice(EVICTIONS),
    )
    load.run(requests=400, retract_every=rng.choice([0, 2, 3, 7]))
