"""The scheduler: receive, schedule, run, process; over and over.

Role: owns every request from its arrival to its one finish, the sessions, the radix cache and the KV slots. Runs in the
scheduler process, whose loop calls ``step`` while there is work and blocks on its sockets when ``idle``; tests call
``receive`` and ``step`` themselves. Knows no socket, no tensor and no text: what goes in and out are records of
``sgnb.messages``.

One ``step`` is one pass of the event loop::

    recv_requests → get_next_batch_to_run → run_batch → recv_requests → process_batch_result → send
                    prefill if any can be admitted, else decode          an abort that came during the run wins

``waiting_queue`` holds requests without slots, ``chunked_req`` at most one whose prompt is half computed, ``scoring``
selects that score their options, ``running_batch`` those that decode. Only the latter three hold locks and rows of the
runner's table. A fault of one request (bad logits, too long) ends that request; only a broken book of slots
(``IntegrityError``) ends the engine.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from sgnb.config import EngineArgs
from sgnb.engine.mem_cache.allocator import TokenAllocator
from sgnb.engine.mem_cache.base import IntegrityError
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.engine.scheduler.intake import Intake
from sgnb.engine.scheduler.output import OutputBuilder, kept_output
from sgnb.engine.scheduler.policy import SchedulePolicy
from sgnb.engine.scheduler.prefill import NewTokenRatio, PrefillAdder
from sgnb.engine.scheduler.req import Req, ReqState
from sgnb.engine.scheduler.retraction import victims
from sgnb.engine.scheduler.select import ScoreBatch
from sgnb.engine.scheduler.session import Session
from sgnb.engine.scheduler.step_events import StepRecorder
from sgnb.engine.scheduler.telemetry import Meter, steady_clock
from sgnb.errors import LimitError
from sgnb.messages import (
    EngineStats,
    ErrorInfo,
    Finish,
    ModelWorkerBatch,
    ModelWorkerOutput,
    Numbered,
    RequestEvent,
    SchedulerInput,
    SchedulerOutput,
    TelemetryEvent,
)

log = logging.getLogger(__name__)

Batch = ScheduleBatch | ScoreBatch
_NON_FINITE = "The weights or an attention kernel produced NaN or infinity; check the model file."


class Runner(Protocol):
    """What the scheduler needs of a model runner."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    max_running: int

    def forward(self, batch: ModelWorkerBatch, /) -> ModelWorkerOutput:
        """Compute one batch; rows in its order."""


class Scheduler:
    """See the module. ``send`` takes outputs for the tokenizer process, ``publish`` telemetry events."""

    def __init__(
        self,
        args: EngineArgs,
        runner: Runner,
        send: Callable[[SchedulerOutput], None],
        publish: Callable[[TelemetryEvent], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        if args.page_size != 1:
            raise LimitError(
                f"page_size {args.page_size} is not supported by this version of sgnb",
                hint="Use page_size=1.",
            )
        self.args = args
        """Live knobs are changed here, by ``knobs``."""
        self.runner = runner
        self.clock = clock or steady_clock()
        self.allocator = TokenAllocator(runner.max_total_tokens, args.allocator_order)
        self.cache = RadixCache(self.allocator, args.disable_radix_cache, args.radix_eviction_policy)
        self.policy = SchedulePolicy(args, self.cache)
        self.ratio = NewTokenRatio(args.schedule_conservativeness)
        self.meter = Meter(self.clock)
        self.outputs = OutputBuilder(send)
        self.waiting_queue: list[Req] = []
        self.running_batch: list[Req] = []
        self.chunked_req: Req | None = None
        self.scoring: list[Req] = []
        """Selects whose prompt has its KV."""
        self.reqs: dict[str, Req] = {}
        """Every request that is not finished."""
        self.sessions: dict[str, Session] = {}
        self.table: Sequence[bytes] = ()
        self.max_len = min(runner.context_length, runner.max_total_tokens + 1)
        """Most tokens of a request; the last of them needs no slot."""
        self.stop_reason: str | None = None
        self.send = send
        self._publish = publish
        self._inbox: deque[SchedulerInput] = deque()
        self._rows = list(range(min(args.max_running_requests, runner.max_running)))[::-1]
        self.paused = False
        """No step is taken but those in ``steps_allowed``; inputs are received."""
        self.steps_allowed = 0
        self._prefills = 0
        """Prefill steps since the last one in which streams drew."""
        self.was_busy = False
        """Something happened since the books were last checked."""
        self._next_walk = 0.0
        self._intake = Intake(self)
        self.recorder = StepRecorder(self.clock, publish, self.cache, self.allocator)
        self.history: Callable[[int], tuple[int, list[Numbered]]] | None = None
        """Where past events are: (number of the last, those from a number on)."""

    # ------------------------------------------------------------ the event loop

    def receive(self, msg: SchedulerInput) -> None:
        """Queue one input; it is handled by the next step, or before the results of the one that runs."""
        self._inbox.append(msg)

    def step(self) -> bool:
        """One pass of the event loop. True: call again at once; False: block until there is input."""
        self._recv_requests()
        if not self.paused or self.steps_allowed:
            self.steps_allowed = max(0, self.steps_allowed - 1)
            self._run_next()
        self.recorder.flush_slots(self.meter.forward_steps)
        self.outputs.flush()
        self.heartbeat()
        if not self.reqs and not self._inbox:
            self._on_idle()
        return not self.idle

    def _run_next(self) -> None:
        self.recorder.begin()
        batch = self._get_next_batch_to_run()
        if batch is None and self.reqs and self.cache.unpin_all():
            log.warning("pinned prefixes are given up: a request needs their slots")
            batch = self._get_next_batch_to_run()
        if batch is not None:
            self._run_batch(batch)
        elif self.reqs:
            raise IntegrityError(
                f"{len(self.waiting_queue)} requests wait and nothing can run, with {self._holdable} slots to be had"
            )

    def _get_next_batch_to_run(self) -> Batch | None:
        """Selects first, then prefill, if any can be admitted; else decode. Running streams get their turn after every
        ``prefill_decode_interval`` others."""
        if self.running_batch and self._prefills >= self.args.prefill_decode_interval:
            return self._update_running_batch()
        batch: Batch | None = None
        if not self.scoring:
            batch = self._get_new_batch_prefill()
        if batch is None and self.scoring:
            batch = self._get_score_batch()
        if batch is None:
            return self._update_running_batch()
        mixed = isinstance(batch, ScheduleBatch) and batch.forward_mode == "mixed"
        self._prefills = 0 if mixed else self._prefills + 1
        return batch

    def _get_score_batch(self) -> ScoreBatch | None:
        """As many options as fit. When none does and nothing runs whose end could make room, later selects give theirs
        back, then the first one the KV of its best option: without that it fits alone."""
        while True:
            size = self.args.chunked_prefill_size
            self.recorder.for_rid = self.scoring[0].rid
            batch = ScoreBatch.prepare(
                self.scoring, self._rows, size if size > 0 else None, self.cache, self.allocator
            )
            if batch is not None or self.running_batch:
                return batch
            others = [*self.scoring[1:], *([self.chunked_req] if self.chunked_req is not None else [])]
            if others:
                self.retract(others[-1])
            elif not self.scoring[0].kv.let_go():
                return None

    def _run_batch(self, batch: Batch) -> None:
        """Run a batch and process its result; a runner that fails takes this batch's requests with it, not the engine."""
        self.meter.forward_steps += 1
        self.was_busy = True
        figures = (len(self.running_batch), len(self.waiting_queue), self.ratio.value)
        self.recorder.scheduled(batch, figures)
        try:
            result = self.runner.forward(batch.get_model_worker_batch(self.meter.forward_steps))
        except Exception as error:
            log.exception("step %d failed", self.meter.forward_steps)
            for req in batch.reqs:
                self._fail(req, "runner", f"step {self.meter.forward_steps} failed: {error!r}")
            return
        self.recorder.computed()
        self._recv_requests()
        wasted = sum(req.finished for req in batch.reqs)
        if isinstance(batch, ScoreBatch):
            self._process_scores(batch, result)
        else:
            self._process_batch_result(batch, result)
        self.recorder.processed(result, wasted)

    def _recv_requests(self) -> None:
        while self._inbox:
            self._intake.handle(self._inbox.popleft())

    @property
    def idle(self) -> bool:
        """Nothing is to be received, and nothing runs or waits, or the scheduler is paused."""
        resting = not self.reqs or (self.paused and not self.steps_allowed)
        return resting and not self._inbox

    def heartbeat(self) -> None:
        """Publish ``EngineStats`` if a heartbeat is due; the process loop calls this while it blocks."""
        if self.meter.due():
            self._publish(self.stats())

    def _on_idle(self) -> None:
        """What is right only when nothing runs: the books must be even, and estimates start over."""
        if not self.was_busy:
            return
        self.was_busy = False
        self.ratio.reset()
        started = self.clock()
        walk = started >= self._next_walk
        self.check_integrity(walk=walk)
        if walk:
            # A walk over a tree of 10,000 nodes takes some 30 ms: it may cost one hundredth of the time, not more.
            self._next_walk = started + 100 * (self.clock() - started)
        self._publish(self.stats())

    # ------------------------------------------------------------ schedule

    def _get_new_batch_prefill(self) -> ScheduleBatch | None:
        """Admit what fits: the next chunk of the chunked request, then the queue in the policy's order."""
        if self.chunked_req is None and not self.waiting_queue:
            return None
        if self.waiting_queue:
            self.policy.calc_priority(self.waiting_queue)
            head = self.waiting_queue[0]
            if self.chunked_req is not None and self.chunked_req.priority < head.priority:
                self.suspend(self.chunked_req, "priority")
        adder = PrefillAdder(
            self.args,
            self.cache,
            self.allocator,
            [*self.running_batch, *self.scoring],
            self.ratio.value,
            len(self._rows),
        )
        if self.chunked_req is not None:
            adder.add_chunked(self.chunked_req)
        self._try_queue(adder)
        admitted = [req for req in [*adder.reqs, *adder.ready] if req is not self.chunked_req]
        self.chunked_req = adder.new_chunked
        if admitted:
            self._admit(admitted)
        for req in adder.ready:
            req.state = ReqState.SCORING
            self.scoring.append(req)
        if not adder.reqs:
            return None
        self.recorder.for_rid = adder.reqs[0].rid
        mixed = (
            self.running_batch
            if self.args.enable_mixed_chunk and adder.room >= len(self.running_batch)
            else None
        )
        return ScheduleBatch.prepare_for_extend(
            adder.reqs, adder.extend_lens, self.cache, self.allocator, mixed
        )

    def _try_queue(self, adder: PrefillAdder) -> None:
        """Admit from the queue in order. One whose prefix is just being computed is passed over; the first that does not
        fit ends the pass, unless a running one has to make room for it."""
        for req in self.waiting_queue.copy():
            leader = adder.leader_of(req)
            if leader is not None:
                self.recorder.note(req.rid, "deferred", "leader", leader=leader.rid)
                continue
            while not adder.add_one_req(req):
                victim = self._victim_of(req) if adder.new_chunked is None else None
                if victim is None:
                    self.recorder.note(req.rid, "deferred", *adder.refused)
                    return
                ratio = self.ratio.value
                adder.note_suspended(victim, ratio)
                self.suspend(victim, "priority" if victim.priority < req.priority else "quantum")

    def _victim_of(self, req: Req) -> Req | None:
        """The running request that has to make room for a waiting one: of lower priority, or of the same with its time slice
        used up while the other had fewer."""
        quantum = self.args.decode_quantum
        lower = [
            other
            for other in self.running_batch
            if other.priority < req.priority
            or (quantum and other.priority == req.priority and other.slice >= quantum)
        ]
        return min(lower, key=lambda other: (other.priority, -other.slice, -other.ordinal), default=None)

    def suspend(self, req: Req, reason: str) -> None:
        """Take row and lock from a request and queue it again. Its KV goes to the cache, where it is found again unless
        slots ran short meanwhile."""
        self._vacate(req)
        self.recorder.note(req.rid, "suspended", reason, "slots", 0, len(req.kv.slots))
        node = req.kv.release(req.fill_ids()[: req.committed])
        if node is not None and req.session is not None:
            req.session.refer_to(node)
        self._requeue(req)
        req.turns += reason == "quantum"
        self.event(req, "retracted", reason=reason)

    def _admit(self, admitted: list[Req]) -> None:
        """Move requests that hold their cached prefix now from the queue to rows of the runner's table."""
        self.waiting_queue = [req for req in self.waiting_queue if req.kv.node is None]
        self.policy.note_admitted(admitted, self.waiting_queue)
        for req in admitted:
            req.state = ReqState.PREFILL
            req.row = self._rows.pop()
            req.committed = len(req.kv.slots)
            req.match = self.cache.explain(req.fill_ids(), req.kv.extra_key, req.committed)
            self.recorder.note(
                req.rid, "admitted", "fits", "slots", req.prefill_len - req.committed, self._holdable
            )
            if req.time_admitted is None:
                req.time_admitted = self.clock()
                req.cached_tokens = req.committed
                req.first_step = self.meter.forward_steps + 1
                self.meter.note_prompt(len(req.prompt), req.cached_tokens)
                self.outputs.touch(req)
            self.event(req, "admitted")

    def _update_running_batch(self) -> ScheduleBatch | None:
        """All running requests draw one token each; some are retracted first if slots are short."""
        self._prefills = 0
        if not self.running_batch:
            return None
        if self._holdable < len(self.running_batch):
            chunked = [self.chunked_req] if self.chunked_req is not None else []
            for req in victims(self.running_batch, [*chunked, *self.scoring]):
                self.retract(req)
                if self._holdable >= len(self.running_batch):
                    break
            if self._holdable < len(self.running_batch):
                self.cache.unpin_all()
            self.ratio.retracted(self.running_batch)
        else:
            self.ratio.decay()
        self.recorder.for_rid = self.running_batch[0].rid
        return ScheduleBatch.prepare_for_decode(self.running_batch.copy(), self.cache, self.allocator)

    @property
    def _holdable(self) -> int:
        return self.allocator.available + self.cache.evictable_size

    def retract(self, req: Req) -> None:
        """Take slots and row from a request and queue it again; what it drew stays, nothing is sent twice."""
        needs, has = len(self.running_batch), self._holdable
        self.recorder.note(req.rid, "retracted", "kv_full", "slots", needs, has)
        self._vacate(req)
        req.kv.release()
        self._requeue(req)
        req.retractions += 1
        self.meter.retracted += 1
        self.event(req, "retracted", reason="kv_full")

    def _requeue(self, req: Req) -> None:
        req.committed = req.slice = 0
        req.state = ReqState.WAITING
        self.waiting_queue.append(req)

    # ------------------------------------------------------------ process

    def _process_batch_result(self, batch: ScheduleBatch, result: ModelWorkerOutput) -> None:
        """Commit KV, take drawn tokens, end what ends. Rows finished meanwhile (aborts) draw nothing."""
        bad = frozenset(result.bad_rows)
        drawn = 0
        for row, req in enumerate(batch.reqs):
            if req.finished:
                continue
            req.last_step = result.step
            if row in bad:
                self._fail(
                    req,
                    "non_finite",
                    f"non-finite logits at step {result.step}",
                    _NON_FINITE,
                )
                continue
            req.committed = len(req.kv.slots)
            if row < batch.prompts:
                self.recorder.for_rid = req.rid
                req.kv.store(req.fill_ids()[: req.committed])
                if not batch.sample[row]:
                    if not req.draws and req.committed == req.prefill_len:
                        self._prefilled(req)
                    continue
                req.state = ReqState.RUNNING
                self.running_batch.append(req)
            self._take_token(req, result.next_token_ids[row], result, row)
            drawn += 1
        self.meter.note_generated(drawn)

    def _prefilled(self, req: Req) -> None:
        """The prompt of a request that draws nothing has its KV."""
        if req.selection is None:
            self.finish(req, Finish(type="length"))
        else:
            req.state = ReqState.SCORING
            self.scoring.append(req)

    def _process_scores(self, batch: ScoreBatch, result: ModelWorkerOutput) -> None:
        """Take scores; selects with all of theirs have a winner and end."""
        for req in batch.process(result):
            self._fail(req, "non_finite", f"non-finite logits at step {result.step}", _NON_FINITE)
        for req in batch.reqs:
            if req.finished or req.selected.open_jobs():
                continue
            choice = req.selected.decide()
            if choice.index == req.selected.best:
                req.kv.truncate(req.prefill_len)
                req.kv.take_held()
                req.committed = len(req.kv.slots)
            req.time_first_token = self.clock()
            self.event(req, "first_token")
            self.outputs.touch(req)
            self.finish(req, Finish(type="stop"))

    def _take_token(self, req: Req, token: int, result: ModelWorkerOutput, row: int) -> None:
        if req.time_first_token is None:
            req.time_first_token = self.clock()
            self.event(req, "first_token")
        self.outputs.touch(req)
        req.slice += 1
        reason = req.accept(token, result.logprobs[row], self.table, self.max_len)
        if reason is not None:
            self.finish(req, reason)

    def finish(self, req: Req, reason: Finish) -> None:
        """End a request in whatever state it is: slots back now, its session moved on, its one last output made."""
        if not req.finish(reason):
            return
        self._vacate(req)
        self.recorder.for_rid = req.rid
        del self.reqs[req.rid]
        kept, leftover = kept_output(req, reason, self.table)
        node = None
        if reason.type == "error":
            req.kv.release()
        else:
            whole = np.concatenate([req.prompt, np.array(kept, dtype=np.int32)])
            node = req.kv.release(whole[: req.committed])
            if req.session is not None and (req.draws or kept):
                req.session.keep(req.prompt, kept)
        if req.session is not None:
            req.session.active = None
            if node is not None:
                req.session.refer_to(node)
        self.outputs.finished(req, kept, leftover, self.clock())
        self.event(req, "finished", reason=reason.error.code if reason.error else reason.type)

    def _fail(self, req: Req, code: str, message: str, hint: str = "") -> None:
        error = ErrorInfo(kind="RequestError", code=code, message=message, hint=hint)
        self.finish(req, Finish(type="error", error=error))

    def _vacate(self, req: Req) -> None:
        """Take a request out of the queue or batch it is in, and its row from it."""
        if req is self.chunked_req:
            self.chunked_req = None
        elif req in self.running_batch:
            self.running_batch.remove(req)
        elif req in self.scoring:
            self.scoring.remove(req)
        elif req in self.waiting_queue:
            self.waiting_queue.remove(req)
        if req.row >= 0:
            self._rows.append(req.row)
            req.row = -1

    # ------------------------------------------------------------ figures and books

    def stats(self) -> EngineStats:
        """The figures of this moment."""
        return self.meter.stats(
            running=len(self.running_batch) + len(self.scoring) + (self.chunked_req is not None),
            queued=len(self.waiting_queue),
            sessions=len(self.sessions),
            free=self.allocator.available,
            cached=self.cache.evictable_size,
            total=self.allocator.size,
            new_token_ratio=self.ratio.value,
            evicted=self.cache.evicted_total,
        )

    def check_integrity(self, walk: bool = True) -> None:
        """Raise IntegrityError unless free + cached + in flight == total and locks equal the requests that hold slots.

        ``walk``: the whole tree is compared with its books too, not only the books with each other.
        """
        if walk:
            self.allocator.check()
            self.cache.check()
        holders = [req for req in self.reqs.values() if req.kv.node is not None]
        flight = sum(req.kv.in_flight for req in holders)
        free, cached = self.allocator.available, self.cache.evictable_size + self.cache.protected_size
        if free + cached + flight != self.allocator.size:
            raise IntegrityError(
                f"KV slots do not add up: {free} free + {cached} cached + {flight} in flight"
                f" = {free + cached + flight}, the pool has {self.allocator.size}"
            )
        if self.cache.lock_total != len(holders):
            raise IntegrityError(f"{self.cache.lock_total} locks are held by {len(holders)} running requests")

    def event(self, req: Req, state: str, reason: str = "") -> None:
        """Publish that a request changed state."""
        self._publish(
            RequestEvent(
                time=self.clock(),
                rid=req.rid,
                client=req.client,
                label=req.label,
                state=state,  # type: ignore[arg-type]
                prompt_tokens=len(req.prompt),
                cached_tokens=req.cached_tokens,
                completion_tokens=len(req.output_ids),
                reason=reason,
                match=req.match if state == "admitted" else None,
            )
        )
