"""Play a script on the shipped scheduler, in virtual time.

Role: one setting, from the first input to the last end. ``play`` lets inputs come when they would (arrivals by time, what
follows an answer after that answer); ``replay`` gives them at the very passes at which they came when recorded, and must
then make the same batches. Decides nothing: all choices are ``Scheduler``'s.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from sgnb.config import EngineArgs, with_objective
from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.model_executor.drivers import Ran
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.engine.scheduler.simulate.cost import CostModel
from sgnb.engine.scheduler.simulate.grammars import SimulatedGrammars
from sgnb.engine.scheduler.simulate.runner import SimulatedRunner, VirtualClock
from sgnb.engine.scheduler.simulate.script import (
    Compiled,
    EndlessTable,
    Input,
    Message,
    Script,
    freely,
    unpack,
    without_knobs,
)
from sgnb.errors import EngineError, LimitError
from sgnb.messages import (
    AbortReqs,
    BatchOutput,
    SchedulerOutput,
    SessionDecode,
    SessionExtend,
    SessionOpen,
    SessionSelect,
    Snapshot,
    StepEvent,
    TelemetryEvent,
)

MAX_STEPS = 10_000_000
MAX_ROWS = 100_000
_NOT_SIMULATED = frozenset(
    {
        *("model", "name", "runner", "runner_driver", "device", "dtype", "attention_backend", "threads"),
        *("deterministic", "watchdog_seconds", "stub_step_seconds", "grammar_backend"),
    }
)
"""What is the model's, the machine's or the process's: a simulation has none of these."""


@dataclass(slots=True)
class Timing:
    """Of one request, in virtual seconds: when it came, when its first and its last token so far."""

    came: float
    first: float = -1.0
    last: float = -1.0


@dataclass
class Played:
    """What happened. Times in virtual seconds; ``gaps`` between two tokens of a request."""

    args: EngineArgs
    seconds: float = 0.0
    steps: int = 0
    requests: int = 0
    failed: int = 0
    retractions: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    prefill_tokens: int = 0
    generated_tokens: int = 0
    evicted_tokens: int = 0
    first_token: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    events: list[StepEvent] = field(default_factory=list)
    """With ``keep_steps``."""
    followed: bool = True
    """``replay``: every input found the pass at which it came."""


_SUMS = ("seconds", "steps", "retractions", "prefill_tokens", "evicted_tokens")


class _Player:
    def __init__(
        self, script: Script, cost: CostModel, changes: Mapping[str, Any], *, keep_steps: bool
    ) -> None:
        self.script = script
        self.clock = VirtualClock()
        self.args = simulated_args(script, changes)
        slots = self.args.max_total_tokens or script.max_total_tokens
        rows = min(
            self.args.max_running_requests, max(slots, MAX_ROWS)
        )  # each row is an entry of several lists
        self.runner = SimulatedRunner(script, cost, self.clock, slots, rows)
        self.played = Played(self.args)
        self._counted = script.counted() if script.counted_from > 0 else None
        self._own = [0, 0, 0]
        """Prompt, cached and generated tokens of the requests that count, when not all do."""
        self._before: Played | None = None
        """The figures when the first request that counts came."""
        self._keep = keep_steps
        self._timings: dict[str, Timing] = {}
        self.ended: list[str] = []
        """Requests that ended since this was looked at."""
        self.scheduler = Scheduler(self.args, self.runner, self._send, self._publish, self.clock)
        # Nobody looks at this tree and these slots; telling of them would be most of the time.
        self.scheduler.cache.on_change = None
        self.scheduler.allocator.on_free = None
        self.scheduler.books.next_walk = math.inf
        self.scheduler.table = EndlessTable()
        self.grammars = self.scheduler.grammars = SimulatedGrammars(script.outputs)
        if script.snapshot is not None:
            restore(self.scheduler, script.snapshot)
            self.scheduler.meter.forward_steps = script.snapshot.step
        self._first = self.scheduler.meter.forward_steps

    def give(self, message: Message) -> None:
        """Hand a message to the scheduler now."""
        if isinstance(message, Compiled):
            self.grammars.compiled(message.rid)
            return
        if isinstance(message, SessionDecode | SessionSelect) and self._counts(message.rid):
            self._timings[message.rid] = Timing(self.clock.now)
            self.played.requests += 1
        self.scheduler.receive(message)

    def _counts(self, rid: str) -> bool:
        if self._counted is None:
            return True
        if rid not in self._counted:
            return False
        if self._before is None:
            self._before = self._take(Played(self.args))
        return True

    def _publish(self, event: TelemetryEvent) -> None:
        if self._keep and isinstance(event, StepEvent):
            self.played.events.append(event)

    def _send(self, message: SchedulerOutput) -> None:
        if not isinstance(message, BatchOutput):
            return
        now, timings, gaps = self.clock.now, self._timings, self.played.gaps
        for item in message.items:
            timing = timings.get(item.rid)
            if timing is None:
                continue
            if item.ids:
                if timing.first < 0:
                    timing.first = now
                    self.played.first_token.append(now - timing.came)
                else:
                    gaps.append(now - timing.last)
                gaps.extend([0.0] * (len(item.ids) - 1))
                timing.last = now
            if item.finish is not None:
                del timings[item.rid]
                if self._counted is not None and item.meta is not None:
                    self._own[0] += item.meta.prompt_tokens
                    self._own[1] += item.meta.cached_tokens
                    self._own[2] += item.meta.completion_tokens
                self.ended.append(item.rid)
                self.played.failed += item.finish.type == "error"

    def finish(self) -> Played:
        """The figures: what came before the first request that counts is taken off."""
        played, before = self._take(self.played), self._before
        if before is not None:
            for name in _SUMS:
                setattr(played, name, getattr(played, name) - getattr(before, name))
            played.prompt_tokens, played.cached_tokens, played.generated_tokens = self._own
        return played

    def _take(self, played: Played) -> Played:
        """The sums up to now."""
        meter = self.scheduler.meter
        played.seconds = self.clock.now
        played.steps = meter.forward_steps - self._first
        played.retractions = meter.retracted
        played.prompt_tokens, played.cached_tokens = meter.prompt_total, meter.cached_total
        played.generated_tokens = meter.generated_total
        played.prefill_tokens = self.runner.prefill_tokens
        played.evicted_tokens = self.scheduler.cache.evicted_total
        return played


def simulated_args(script: Script, changes: Mapping[str, Any]) -> EngineArgs:
    """The recorded arguments with changes. LimitError for a name or value that is not legal, and for a name that makes no
    difference here."""
    base = {**msgspec.structs.asdict(script.args), "runner": "stub", "stub_step_seconds": 0.0}
    base["max_total_tokens"] = script.max_total_tokens
    base["runner_driver"] = "inline"
    base["context_length"] = script.context_length
    wanted = with_objective(dict(changes))
    legal = sorted(base.keys() - _NOT_SIMULATED)
    for name in wanted:
        if name in _NOT_SIMULATED:
            raise LimitError(
                f"{name} makes no difference to a simulation", hint=f"Legal: {', '.join(legal)}."
            )
        if name not in base:
            raise LimitError(f"unknown engine argument {name!r}", hint=f"Legal: {', '.join(legal)}.")
    return EngineArgs.make(**{**base, **wanted})


def play(
    script: Script,
    cost: CostModel,
    changes: Mapping[str, Any] | None = None,
    *,
    keep_steps: bool = False,
) -> Played:
    """Simulate a script with some engine arguments changed; figures of the whole run."""
    player = _Player(script, cost, changes or {}, keep_steps=keep_steps)
    fixed = frozenset(with_objective(dict(changes or {})))
    order = 0
    due: list[tuple[float, int, Message]] = []
    waiting: dict[str, list[tuple[int, Input, set[str]]]] = {}
    over: set[str] = set()
    asked = {
        given.message.rid
        for given in script.inputs
        if isinstance(given.message, SessionDecode | SessionSelect)
    }
    for given in freely(script.inputs, script.outputs):
        kept = without_knobs(given, fixed)
        if kept is None:
            continue
        order += 1
        left = {rid for rid in kept.after if rid in asked}
        if left:
            for rid in left:
                waiting.setdefault(rid, []).append((order, kept, left))
        else:
            heapq.heappush(due, (kept.at, order, kept.message))
    aborted: set[str] = set()

    def abort(rid: str) -> None:
        if rid not in aborted:
            aborted.add(rid)
            player.scheduler.receive(AbortReqs(rids=[rid]))

    player.runner.on_abort = abort
    while True:
        while due and due[0][0] <= player.clock.now:
            player.give(heapq.heappop(due)[2])
        if player.scheduler.idle:
            if not due:
                break
            player.clock.now = due[0][0]
            continue
        _step(player)
        for rid in player.ended:
            over.add(rid)
            for number, kept, left in waiting.pop(rid, ()):
                left.discard(rid)
                if not left:
                    heapq.heappush(due, (player.clock.now + kept.delay, number, kept.message))
        player.ended.clear()
    return player.finish()


def replay(script: Script, cost: CostModel | None = None) -> Played:
    """Give every input at the pass at which it came, and let the steps fail that failed; with the recorded settings the
    batches are the recorded ones."""
    player = _Player(script, cost or CostModel(), {}, keep_steps=True)
    player.runner.exact = True
    inputs, scheduler = script.inputs, player.scheduler
    collect = scheduler.driver.collect
    at = 0

    def give(place: int, *, during: bool) -> None:
        nonlocal at
        while at < len(inputs) and (
            inputs[at].place < place or (inputs[at].place == place and inputs[at].during >= during)
        ):
            player.give(inputs[at].message)
            at += 1

    def place() -> int:
        return 2 * scheduler.meter.forward_steps - len(scheduler.flights)

    def collect_with_inputs() -> Ran:
        try:
            ran = collect()
        except Exception:
            give(place(), during=True)
            scheduler.attend()  # what came while it was waited for was handled before anybody knew
            raise
        give(place() + 1, during=True)
        return ran

    scheduler.driver.collect = collect_with_inputs  # type: ignore[method-assign]
    while True:
        give(place(), during=False)
        if scheduler.idle:
            if at >= len(inputs):
                break
            player.played.followed = False
            player.give(inputs[at].message)
            at += 1
        _step(player)
        player.ended.clear()
    return player.finish()


def _step(player: _Player) -> None:
    player.scheduler.step()
    if player.runner.fault is not None:
        raise player.runner.fault
    if player.scheduler.meter.forward_steps > MAX_STEPS:
        raise EngineError(
            f"the simulation took more than {MAX_STEPS:,} steps", hint="Simulate a shorter recording."
        )


def restore(scheduler: Scheduler, snapshot: Snapshot) -> None:
    """Tree and sessions as they were: the same prefixes, last used in the same order; slot numbers are others."""
    prefix: dict[int, IntArray] = {}
    page = scheduler.allocator.page_size
    for node in snapshot.nodes:
        above = prefix.get(node.parent, _NOTHING)
        here = prefix[node.id] = np.concatenate([above, np.array(unpack(node.marks), dtype=np.int32)])
        if not node.marks or scheduler.cache.disabled:
            continue
        # The tree keeps whole pages, which may be larger here than they were: what fills none gets no slots.
        whole = here[: len(here) // page * page]
        known = scheduler.cache.peek(whole, node.extra_key).length
        if not known < len(whole) <= known + scheduler.allocator.available:
            continue
        slots = [0] * known + scheduler.allocator.alloc(len(whole) - known)
        scheduler.cache.insert(whole, slots, node.extra_key).node.hits = node.hits
    for session in snapshot.sessions:
        scheduler.receive(SessionOpen(sid=session.sid, client=session.client, extra_key=session.extra_key))
        if session.marks:
            scheduler.receive(SessionExtend(sid=session.sid, ids=unpack(session.marks)))
    scheduler.step()
    for node in sorted(snapshot.nodes, key=lambda node: node.last_access):
        scheduler.cache.match_prefix(prefix[node.id], node.extra_key, renew=False)


_NOTHING: IntArray = np.empty(0, dtype=np.int32)
_ORDINAL = re.compile(r"\.k\d+$")


def differences(recorded: list[StepEvent], played: list[StepEvent], limit: int = 5) -> list[str]:
    """Steps whose batches differ, in words, at most ``limit``; a commit's request is known by its session alone."""
    found: list[str] = []
    for at in range(max(len(recorded), len(played))):
        want = _batch(recorded[at]) if at < len(recorded) else "nothing"
        have = _batch(played[at]) if at < len(played) else "nothing"
        if want != have:
            found.append(f"step {at + 1}: recorded {want}, simulated {have}")
            if len(found) == limit:
                break
    return found


def _batch(step: StepEvent) -> tuple[Any, ...]:
    rows = tuple((_ORDINAL.sub(".k", row.rid), row.kind, row.tokens, row.prefix) for row in step.rows)
    return (step.step, step.mode, rows)
