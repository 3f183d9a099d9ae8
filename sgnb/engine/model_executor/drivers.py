"""Drivers: where a runner runs, and how the scheduler hands it a batch and gets the result back.

Role: the seam between scheduling and computing. Scheduler process; made at its start, called by ``Scheduler`` alone. Three
of one contract: ``launch`` hands over a frozen record, ``collect`` gives the results in the order of the launches. Outputs
never depend on the driver.

    inline    the scheduler's own thread computes at ``launch``
    thread    a thread of this process computes; the GIL is shared, so only long operators leave the scheduler time
    process   ``process_driver``: a process of its own, one socket between them

With overlap a batch is launched before the result of the one before is known. What a row draws in one step and reads in the
next therefore never passes through the scheduler: the record says ``FROM_PREVIOUS`` and ``ForwardSide`` puts the token in.
Only ``ForwardSide`` writes that buffer. When a step fails, the one that was launched behind it rests on nothing: it is not
computed (``StepSkipped``). No choice of who runs, no request and no telemetry here.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

import msgspec

from sgnb.config import EngineArgs
from sgnb.errors import EngineDied, EngineError
from sgnb.messages import FROM_PREVIOUS, ModelWorkerBatch, ModelWorkerOutput

log = logging.getLogger("sgnb.engine")
WAIT_SECONDS = 0.1
"""How often a wait for a result looks whether there is still somebody who computes, and lets the scheduler answer."""
_END_SECONDS = 2.0


class OutOfMemory(EngineError):
    """A step needed more memory than the device has: a smaller one may fit."""


class StepSkipped(EngineError):
    """A step was not computed, since the one it was launched behind had failed."""


class Runner(Protocol):
    """What a driver and the scheduler need of a model runner."""

    vocab_size: int
    context_length: int
    max_total_tokens: int
    max_running: int

    def forward(self, batch: ModelWorkerBatch, /) -> ModelWorkerOutput:
        """Compute one batch; rows in its order."""

    def move_slots(self, src: list[int], dst: list[int], /) -> None:
        """The KV of slot ``src[i]`` goes to slot ``dst[i]``, all at once."""

    def copy_rotated(self, src: list[int], dst: list[int], shift: list[int], /) -> None:
        """See ``BaseRunner``. Called only if ``rotates``, an attribute that may be missing, is true."""

    def close(self) -> None:
        """Free memory. Idempotent."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that was computed, and when (seconds of ``time.perf_counter``, one clock for all processes of a machine)."""

    output: ModelWorkerOutput
    began: float
    ended: float


class ForwardSide:
    """A runner, and for each row of its table the token that row drew last. Lives where the runner computes."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._drawn = [-1] * runner.max_running
        self._failed = 0
        """The last step that was not computed."""

    def run(self, batch: ModelWorkerBatch) -> Ran:
        """Compute a record. A row whose token was never drawn (its request failed meanwhile) is computed with another and
        comes back as bad; nobody waits for it. Raises what the runner raises, OutOfMemory or StepSkipped."""
        began = time.perf_counter()
        if batch.move_src:
            self._relocate(batch.step, self._runner.move_slots, batch.move_src, batch.move_dst)
        if batch.copy_src:
            src, dst, shift = batch.copy_src, batch.copy_dst, batch.copy_shift
            self._relocate(batch.step, self._runner.copy_rotated, src, dst, shift)
        if batch.behind and batch.behind == self._failed:
            self._failed = batch.step
            raise StepSkipped(f"step {batch.step} rests on step {batch.behind}, which failed")
        missing: list[int] = []
        if FROM_PREVIOUS in batch.input_ids:
            ids, missing = self._resolve(batch)
            batch = msgspec.structs.replace(batch, input_ids=ids)
        for idx in batch.req_pool_indices:
            self._drawn[idx] = -1  # whoever reads a token that was not drawn since is found out
        output = self._forward(batch)
        for idx, token in zip(batch.req_pool_indices, output.next_token_ids, strict=True):
            self._drawn[idx] = token
        if missing:
            bad = sorted({*output.bad_rows, *missing})
            for row in missing:
                self._drawn[batch.req_pool_indices[row]] = -1
            output = msgspec.structs.replace(output, bad_rows=bad)
        return Ran(output, began, time.perf_counter())

    def _forward(self, batch: ModelWorkerBatch) -> ModelWorkerOutput:
        try:
            return self._runner.forward(batch)
        except Exception as error:
            self._failed = batch.step
            if not is_out_of_memory(error):
                raise
            words = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        # Behind the handler: there the error would hold its frames, and with them all the step had allocated.
        trim = getattr(self._runner, "trim", None)
        if trim is not None:
            trim()
        raise OutOfMemory(words)

    @staticmethod
    def _relocate(step: int, how: Callable[..., None], *lists: list[int]) -> None:
        """Half of a move would leave KV of nobody knows what: it ends the engine."""
        try:
            how(*lists)
        except Exception as error:
            raise EngineDied(
                f"{len(lists[0])} KV slots could not be moved at step {step}: {error!r}",
                hint="Start again: %sgl restart",
            ) from error

    def _resolve(self, batch: ModelWorkerBatch) -> tuple[list[int], list[int]]:
        ids, missing, at = batch.input_ids.copy(), [], 0
        for row, count in enumerate(batch.extend_lens):
            if ids[at] == FROM_PREVIOUS:
                token = self._drawn[batch.req_pool_indices[row]]
                if token < 0:
                    missing.append(row)
                ids[at] = max(token, 0)
            at += count
        return ids, missing


def is_out_of_memory(error: Exception) -> bool:
    """True for what torch and Python raise when they get no memory, on any device. torch is not imported here, and tells
    of a CPU's memory in a RuntimeError like any other."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    words = str(error)
    return isinstance(error, RuntimeError) and ("out of memory" in words or "can't allocate memory" in words)


class Driver(ABC):
    """See the module. At most two batches are in flight: one that runs and one behind it."""

    name: str
    vocab_size: int
    context_length: int
    max_total_tokens: int
    max_running: int
    dtype: str = ""
    device: str = ""
    attention_backend: str = ""
    notice: str = ""
    slot_bytes: int = 0
    """Memory of one KV slot; 0 where the runner does not know."""
    rotates: bool = False
    """KV can be copied to other positions: see ``Runner.copy_rotated``."""
    runner_pid: int = 0
    """Of a runner in a process of its own."""
    while_waiting: Callable[[], None] | None = None
    """Called now and then while ``collect`` waits: the scheduler answers questions meanwhile."""

    @abstractmethod
    def launch(self, batch: ModelWorkerBatch) -> None:
        """Hand over a record. Errors of the step come with ``collect``."""

    @abstractmethod
    def collect(self) -> Ran:
        """The result of the oldest launch. Raises what its step raised; EngineDied when nobody computes any more."""

    @abstractmethod
    def close(self) -> None:
        """End the runner and free its memory. Idempotent."""

    def _attend(self) -> None:
        """Let the scheduler answer. A fault of its own there is not the step's, whose result is to come: EngineDied."""
        if self.while_waiting is None:
            return
        try:
            self.while_waiting()
        except Exception as fault:
            words = f"{type(fault).__name__}: {fault}"
            raise EngineDied(
                f"The scheduler met a fault while a step was computed ({words}).",
                hint="Start again: %sgl restart",
            ) from fault

    def _tell(self, runner: Runner) -> None:
        """Take over what is known of the runner."""
        for name in ("vocab_size", "context_length", "max_total_tokens", "max_running"):
            setattr(self, name, getattr(runner, name))
        for name in ("dtype", "device", "attention_backend", "notice"):
            setattr(self, name, getattr(runner, name, ""))
        self.slot_bytes = getattr(runner, "slot_bytes", 0)
        self.rotates = getattr(runner, "rotates", False)


class InlineDriver(Driver):
    """The caller's thread computes."""

    name = "inline"

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._side = ForwardSide(runner)
        self._done: deque[Ran | Exception] = deque()
        self._tell(runner)

    def launch(self, batch: ModelWorkerBatch) -> None:
        """Compute it."""
        try:
            self._done.append(self._side.run(batch))
        except Exception as error:
            self._done.append(error)

    def collect(self) -> Ran:
        """What ``launch`` computed."""
        found = self._done.popleft()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        """Close the runner."""
        self._runner.close()


@dataclass(slots=True)
class _Job:
    batch: ModelWorkerBatch
    launched: threading.Event = field(default_factory=threading.Event)
    done: threading.Event = field(default_factory=threading.Event)
    found: Ran | BaseException | None = None


class ThreadDriver(Driver):
    """A thread computes. After handing over, and after taking a result while another batch waits, the scheduler waits until
    the thread has begun: else it would keep the GIL, and the thread would start only when the scheduler is done."""

    name = "thread"

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._side = ForwardSide(runner)
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._flying: deque[_Job] = deque()
        self._tell(runner)
        self._thread = threading.Thread(target=self._run, name="sgnb-forward", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.launched.set()
            try:
                job.found = self._side.run(job.batch)
            except BaseException as error:  # it is raised where the result is waited for
                job.found = error
            job.done.set()

    def launch(self, batch: ModelWorkerBatch) -> None:
        """Hand over; an idle thread has begun when this returns."""
        job = _Job(batch)
        self._jobs.put(job)
        self._flying.append(job)
        if len(self._flying) == 1:
            self._await(job.launched, None)

    def collect(self) -> Ran:
        """Wait for the oldest job."""
        job = self._flying.popleft()
        self._await(job.done, self._attend)
        if self._flying:
            self._await(self._flying[0].launched, None)
        if isinstance(job.found, Ran):
            return job.found
        if isinstance(job.found, Exception):
            raise job.found
        raise EngineDied(f"The forward thread ended: {job.found!r}.", hint="Start again: %sgl restart")

    def _await(self, event: threading.Event, meanwhile: Callable[[], None] | None) -> None:
        while not event.wait(WAIT_SECONDS):
            if not self._thread.is_alive():
                raise EngineDied("The forward thread ended.", hint="Start again: %sgl restart")
            if meanwhile is not None:
                meanwhile()

    def close(self) -> None:
        """End the thread, then the runner. A thread that does not answer keeps its runner and ends with the process."""
        self._jobs.put(None)
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            log.warning("the forward thread did not end within %s s", _END_SECONDS)
        else:
            self._runner.close()


def make_driver(args: EngineArgs, runner: Runner) -> Driver:
    """The driver that ``args`` names around a runner of this process; ``auto`` is inline."""
    if args.runner_driver == "process":
        raise ValueError("a runner of this process cannot be driven in another: use ProcessDriver")
    return ThreadDriver(runner) if args.runner_driver == "thread" else InlineDriver(runner)
