"""The scheduler: receive, schedule, run, process; over and over.

Role: owns every request from its arrival to its one finish, the sessions, the radix cache and the KV slots. Runs in the
scheduler process, whose loop calls ``step`` while there is work and blocks on its sockets when ``idle``; tests call
``receive`` and ``step`` themselves. Knows no socket, no tensor and no text: what goes in and out are records of
``sgnb.messages``.

One ``step`` is one pass of the event loop::

    recv_requests → get_next_batch_to_run → launch → collect → recv_requests → process → send
                    prefill if any can be admitted,            an abort that came during the run wins
                    else decode

With ``enable_overlap`` a pass launches step N + 1 before it collects step N: the runner computes while the scheduler
processes N and plans N + 2. What a row draws is then a promise (``Req.pending``) until its step lands, one pass later; a
row whose request ends meanwhile is computed once in vain. Whatever must act on known tokens calls ``settle`` first.

``waiting_queue`` holds requests without slots, ``chunked_req`` at most one whose prompt is half computed, ``scoring``
selects that score their options, ``running_batch`` those that decode. Only the latter three hold locks and rows of the
runner's table. ``planner`` chooses what runs, ``results`` ends what ends, ``books`` adds up; here are the queues and the
loop. A fault of one request (bad logits, too long) ends that request; only a broken book of slots
(``IntegrityError``) ends the engine.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from sgnb.config import EngineArgs
from sgnb.constraints import Constraint
from sgnb.engine.mem_cache.allocator import make_allocator
from sgnb.engine.mem_cache.base import IntegrityError
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.model_executor.drivers import Driver, Runner, make_driver
from sgnb.engine.pulse import Pulse
from sgnb.engine.scheduler.books import Books
from sgnb.engine.scheduler.flight import Flight
from sgnb.engine.scheduler.grammar_manager import GrammarManager
from sgnb.engine.scheduler.input_events import InputRecorder
from sgnb.engine.scheduler.intake import Intake
from sgnb.engine.scheduler.joint import PrivateIds
from sgnb.engine.scheduler.key_pictures import KeyPictures
from sgnb.engine.scheduler.match_log import MatchLog
from sgnb.engine.scheduler.mishap import Mishaps
from sgnb.engine.scheduler.mover import Mover
from sgnb.engine.scheduler.output import OutputBuilder
from sgnb.engine.scheduler.planner import Batch, NoOverlap, Planner
from sgnb.engine.scheduler.policy import SchedulePolicy
from sgnb.engine.scheduler.prefill import NewTokenRatio
from sgnb.engine.scheduler.req import Req, ReqState
from sgnb.engine.scheduler.results import ResultProcessor
from sgnb.engine.scheduler.session import Session
from sgnb.engine.scheduler.step_events import StepRecorder
from sgnb.engine.scheduler.telemetry import Meter, steady_clock
from sgnb.errors import EngineDied, LimitError
from sgnb.messages import (
    EngineStats,
    ErrorInfo,
    Finish,
    Numbered,
    RequestEvent,
    SchedulerFrame,
    SchedulerInput,
    SchedulerOutput,
    TelemetryEvent,
    Together,
)

log = logging.getLogger(__name__)


class Scheduler:
    """See the module. ``send`` takes outputs for the tokenizer process, ``publish`` telemetry events.

    ``runner``: a driver, or a runner of this process, which gets the driver that ``args`` names.
    """

    def __init__(
        self,
        args: EngineArgs,
        runner: Runner | Driver,
        send: Callable[[SchedulerOutput], None],
        publish: Callable[[TelemetryEvent], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.args = args
        """Live knobs are changed here, by ``knobs``."""
        self.driver = runner if isinstance(runner, Driver) else make_driver(args, runner)
        self.runner = self.driver
        self.flights: deque[Flight] = deque()
        """Steps that were launched and whose results are not taken yet: with overlap one, between two passes."""
        self._landing = False
        self._no_overlap: NoOverlap = ""
        """Of the step that is planned now."""
        self.pulse = Pulse()
        """What it does now, for a watchdog outside."""
        self.clock = clock or steady_clock()
        self.allocator = make_allocator(runner.max_total_tokens, args.page_size, args.allocator_order)
        self.cache = RadixCache(self.allocator, args.disable_radix_cache, args.radix_eviction_policy)
        self.policy = SchedulePolicy(args, self.cache)
        self.ratio = NewTokenRatio(args.schedule_conservativeness)
        self.meter = Meter(self.clock)
        self.books = Books(self)
        self.outputs = OutputBuilder(send, self.books.spare)
        self.waiting_queue: list[Req] = []
        self.grammars = GrammarManager(args.grammar_backend, runner.vocab_size)
        """Its queue holds requests whose constraint is being compiled."""
        self._compiling: list[Req] = []
        """Those of it that no step has told of yet."""
        self.running_batch: list[Req] = []
        self.chunked_req: Req | None = None
        self.scoring: list[Req] = []
        """Selects whose prompt has its KV."""
        self.reqs: dict[str, Req] = {}
        """Every request that is not finished."""
        self.sessions: dict[str, Session] = {}
        self.private_ids = PrivateIds()
        self.table: Sequence[bytes] = ()
        self.max_len = min(runner.context_length, self.allocator.size + 1)
        """Most tokens of a request; the last of them needs no slot."""
        self.stop_reason: str | None = None
        self.send = send
        self.publish = publish
        self._inbox: deque[SchedulerInput] = deque()
        self.free_rows = list(range(min(args.max_running_requests, runner.max_running)))[::-1]
        self._table_rows = len(self.free_rows)
        self.paused = False
        """No step is taken but those in ``steps_allowed``; inputs are received."""
        self.paused_by = 0
        """The client that asked for it last; the pause ends with it."""
        self.steps_allowed = 0
        self.was_busy = False
        """Something happened since the books were last checked."""
        self.planner = Planner(self)
        self.mishaps = Mishaps(self)
        self.results = ResultProcessor(self)
        self.mover = Mover(self)
        self._intake = Intake(self)
        self.recorder = StepRecorder(self.clock, publish, self.cache, self.allocator)
        self.inputs = InputRecorder(self, publish)
        self.match_log = MatchLog(self.cache, self.recorder.book, lambda: self.table)
        self.history: Callable[..., tuple[int, list[Numbered]]] | None = None
        """Where past events are: of (a number, at most how many) it gives (number of the last, those from it on)."""
        self.pictures: KeyPictures | None = None

    # ------------------------------------------------------------ the event loop

    def receive(self, msg: SchedulerFrame) -> None:
        """Queue what came; it is handled by the next step, or before the results of the one that runs."""
        self._inbox.extend(msg.messages if isinstance(msg, Together) else (msg,))

    def step(self) -> bool:
        """One pass of the event loop. True: call again at once; False: block until there is input."""
        self.pulse.answer()
        self._recv_requests()
        self.mover.answer()
        self._poll_grammars()
        if not self.paused or self.steps_allowed:
            self.steps_allowed = max(0, self.steps_allowed - 1)
            self._run_next()
        else:
            self.settle()
        self.cache.trim(self.args.radix_cache_size)
        self.recorder.flush_slots(self.meter.forward_steps)
        self.outputs.flush()
        self.heartbeat()
        if not self.reqs and not self._inbox:
            self.books.on_idle()
        if self.idle:
            self.recorder.rest()
            self.pulse.enter("idle")
        return not self.idle

    def _run_next(self) -> None:
        """Plan and launch a batch; then take the results of all before it (with overlap), or of all (without)."""
        self._no_overlap = self.planner.needs_results() if self.flights else ""
        if self._no_overlap:
            self.settle()
        batch = self._plan()
        if batch is None:
            if len(self.reqs) > len(self.grammars.queue):
                raise IntegrityError(
                    f"{len(self.waiting_queue)} requests wait and nothing can run, "
                    f"with {self.holdable} slots to be had"
                )
            return
        self._launch(batch)
        behind = 1 if self.args.enable_overlap and not self.paused else 0
        while len(self.flights) > behind:
            if not self._land():
                behind = 0  # what is in flight behind a step that failed is not computed

    def _plan(self) -> Batch | None:
        """The next batch; where there is none, what could make one possible is tried in turn."""
        self.recorder.begin()
        self.pulse.enter("plan", self.meter.forward_steps, len(self.reqs))
        batch = self.planner.get_next_batch_to_run()
        if batch is None and self.flights:
            self._no_overlap = "nothing"
            self.settle()
            self.recorder.begin()
            batch = self.planner.get_next_batch_to_run()
        if batch is None and self.reqs and self.cache.unpin_all():
            log.warning("pinned prefixes are given up: a request needs their slots")
            batch = self.planner.get_next_batch_to_run()
        return batch

    def _launch(self, batch: Batch) -> None:
        """Hand a batch to the runner."""
        for req in self._compiling:
            if req.state is ReqState.COMPILING:
                self.recorder.note(req.rid, "deferred", "grammar")
        self._compiling.clear()
        self.meter.forward_steps += 1
        self.was_busy = True
        step = self.meter.forward_steps
        figures = (len(self.running_batch), len(self.waiting_queue), self.ratio.value)
        draft = self.recorder.scheduled(batch, figures, self.flights[-1].step if self.flights else 0)
        if self._no_overlap:
            draft.known["no_overlap"] = self._no_overlap
        record = batch.get_model_worker_batch(step, self.flights[-1].step if self.flights else 0)
        src, dst = self.mover.take()
        if src:
            record = msgspec.structs.replace(record, move_src=src, move_dst=dst)
        self.results.take_off(batch)
        self.flights.append(Flight(batch, step, draft))
        self.pulse.enter("compute", step, len(self.reqs))
        self.outputs.flush()  # who leaves the queue is told before the step, which may take seconds
        self.driver.launch(record)

    def _land(self) -> bool:
        """Wait for the oldest step in flight and process its result. One that fails is ``mishaps``'s, and with it the one
        behind it; a runner that is gone (EngineDied) takes the engine."""
        self._landing = True
        self.recorder.landing()
        self.pulse.enter("compute", self.flights[0].step, len(self.reqs))
        try:
            ran = self.driver.collect()
        except EngineDied:
            raise
        except Exception as error:
            flight = self.flights.popleft()
            wasted = flight.batch.wasted
            self.recorder.failed(flight.draft, flight.step, self.mishaps.take(flight, error), wasted)
            return False
        finally:
            self._landing = False
        self.mishaps.passed()
        flight = self.flights.popleft()
        began = time.perf_counter()
        self.pulse.enter("process", flight.step, len(self.reqs))
        self._recv_requests()
        wasted = flight.batch.wasted
        self.results.process(flight.batch, ran.output)
        self.recorder.processed(flight.draft, ran, time.perf_counter() - began, wasted)
        return True

    def settle(self) -> None:
        """Take the results of all that is in flight: requests, tree and slots are then as the runner has them."""
        if self._landing:
            raise LimitError(
                "a step is being computed and its result must be known first", hint="Ask again after it."
            )
        while self.flights:
            self._land()

    def attend(self) -> None:
        """Handle what came in while a step is being computed, and answer it; the driver calls this while it waits."""
        self.pulse.answer()
        self._recv_requests()
        self.outputs.flush()
        self.heartbeat()

    def _recv_requests(self) -> None:
        while self._inbox:
            self._intake.handle(self._inbox.popleft())

    def await_grammar(self, req: Req, constraint: Constraint) -> None:
        """Queue a request behind its grammar: at once, if that is known."""
        error = self.grammars.add(req, constraint)
        if error is None and req.grammar is None:
            req.state = ReqState.COMPILING
            self._compiling.append(req)
            self.event(req, "compiling", reason="compiling grammar")
        else:
            self._with_grammar(req, error)

    def _poll_grammars(self) -> None:
        """Requests whose grammar has been compiled go on, or fail alone; the others wait, with a reason."""
        for req, error in self.grammars.poll():
            self.inputs.compiled(req)
            if error is None:
                self.event(req, "compiled")
            self._with_grammar(req, error)

    def _with_grammar(self, req: Req, error: ErrorInfo | None) -> None:
        if error is not None:
            self.results.finish(req, Finish(type="error", error=error))
        elif req.grammar is not None and req.grammar.done:
            self.results.finish(req, Finish(type="grammar"))
        else:
            req.state = ReqState.WAITING
            self.waiting_queue.append(req)

    @property
    def idle(self) -> bool:
        """Nothing is to be received or in flight, and nothing runs or waits (but for its grammar), or the scheduler is
        paused."""
        nothing = len(self.reqs) == len(self.grammars.queue) and not self.grammars.has_news
        resting = nothing or (self.paused and not self.steps_allowed)
        return resting and not self._inbox and not self.flights and not self.mover.waiting

    def heartbeat(self) -> None:
        """Publish ``EngineStats`` if a heartbeat is due; the process loop calls this while it blocks."""
        if self.meter.due():
            self.publish(self.stats())

    # ------------------------------------------------------------ what others ask of it

    @property
    def admissible(self) -> int:
        """Requests that may still be admitted; none while more run than the knob allows now."""
        taken = self._table_rows - len(self.free_rows)
        return max(0, min(self.mishaps.rows, self._table_rows) - taken)

    @property
    def holdable(self) -> int:
        """Slots that can be had now: free, or cached and not locked."""
        return self.allocator.available + self.cache.evictable_size

    def pause(self, client: int) -> None:
        """Take no step from now on, at the wish of a client."""
        self.paused, self.paused_by, self.steps_allowed = True, client, 0
        self.publish(self.stats())  # whoever watches sees it at once, also where nothing runs

    def resume(self) -> None:
        """Undo ``pause``."""
        self.paused, self.paused_by, self.steps_allowed = False, 0, 0
        self.publish(self.stats())

    def finish(self, req: Req, reason: Finish) -> None:
        """End a request in whatever state it is."""
        self.results.finish(req, reason)

    def retract(self, req: Req) -> None:
        """Take slots and row from a request and queue it again."""
        self.planner.retract(req)

    def vacate(self, req: Req) -> None:
        """Take a request out of the queue or batch it is in, and its row from it."""
        if req is self.chunked_req:
            self.chunked_req = None
        elif req in self.running_batch:
            self.running_batch.remove(req)
        elif req in self.scoring:
            self.scoring.remove(req)
        elif req in self.waiting_queue:
            self.waiting_queue.remove(req)
        elif req in self.grammars.queue:
            self.grammars.drop(req)
            if req in self._compiling:
                self._compiling.remove(req)
        if req.row >= 0:
            self.free_rows.append(req.row)
            req.row = -1
            req.stint += 1
            req.pending = 0

    def stats(self) -> EngineStats:
        """The figures of this moment."""
        return self.books.stats()

    def check_integrity(self, walk: bool = True) -> None:
        """Raise IntegrityError unless the books are even."""
        self.books.check_integrity(walk)

    def event(self, req: Req, state: str, reason: str = "") -> None:
        """Publish that a request changed state."""
        there_before = req.match is not None and req.match.cause in (
            "hit",
            "logprobs",
        )  # and computed anew by rule
        twice = 0 if there_before else req.kv.duplicates
        self.publish(
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
                joined_tokens=req.joined_tokens if state in ("first_token", "finished") else 0,
                duplicate_tokens=twice if state == "first_token" else 0,
            )
        )
