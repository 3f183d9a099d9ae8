"""A whole engine in this process as a Backend: tokenizer manager and scheduler on the stub runner, one thread steps both.

No sockets, no processes: what programs do to the engine can be counted in the scheduler's own figures.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from typing import Any

from sgnb.backends.base import Backend, TemplateInfo
from sgnb.backends.client import make_error
from sgnb.backends.wire import SinkWaiter, to_wire
from sgnb.config import EngineArgs
from sgnb.engine.model_executor.stub_runner import StubRunner
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.engine.tokenizer.manager import TokenizerManager
from sgnb.engine.tokenizer.tokenizer import stub_tokenizer
from sgnb.lang.instruction import Decode, Select
from sgnb.messages import (
    BatchOutput,
    Chunks,
    EngineStats,
    OpFailed,
    Release,
    RequestEvent,
    SchedulerControl,
    SchedulerFrame,
    StepEvent,
)
from sgnb.messages import Block as WireBlock
from sgnb.transport import encode


class WholeEngine(Backend):
    """``messages`` counts submitted blocks, ``ops`` what they held on the wire, ``frames`` what the scheduler was sent;
    ``events`` are the scheduler's."""

    def __init__(self, **args: Any) -> None:
        defaults = {"max_total_tokens": 4096, "context_length": 2048, "max_running_requests": 64}
        self.args = EngineArgs.make(runner="stub", **{**defaults, **args})
        self.runner = StubRunner(self.args)
        self.scheduler = Scheduler(self.args, self.runner, self._from_scheduler, self._publish)
        self.manager = TokenizerManager(
            stub_tokenizer(), self._to_scheduler, self._to_client, incarnation="i1"
        )
        self.scheduler.receive(self.manager.token_table())
        self.events: list[Any] = []
        self.steps: list[StepEvent] = []
        self.messages = 0
        self.ops = self.requests = self.bytes = self.frames = 0
        self.spare: int | None = None
        """What the engine's newest answer says it can still hold."""
        self.credits = True
        """False: the notebook is told nothing of the engine's KV."""
        self.fault: BaseException | None = None
        self._inbox: deque[Any] = deque()
        self._waiters: dict[str, SinkWaiter] = {}
        self._sessions: dict[str, SinkWaiter] = {}
        self._numbers = itertools.count(1)
        self._wake = threading.Event()
        self._hold = threading.Event()
        self._hold.set()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="whole-engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------ the engine's thread

    def _run(self) -> None:
        try:
            while not self._ending:
                self._hold.wait()
                while self._inbox:
                    self._inbox.popleft()()
                while self.manager.encoding:
                    if not self.manager.pump():
                        time.sleep(0.001)
                if not self.scheduler.step() and not self._inbox and self.scheduler.idle:
                    self._wake.wait(1.0)
                    self._wake.clear()
        except BaseException as fault:
            self.fault = fault
            for rid, waiter in list(self._waiters.items()):
                waiter.fail(make_error_of(fault), rid=rid)

    def _to_scheduler(self, frame: SchedulerFrame) -> None:
        self.frames += 1
        self.scheduler.receive(frame)

    def _from_scheduler(self, message: object) -> None:
        if isinstance(message, BatchOutput):
            self.manager.on_batch(message)

    def _to_client(self, client: int, message: object) -> None:
        if isinstance(message, Chunks):
            if self.credits and message.spare >= 0:
                self.spare = message.spare
            groups: dict[int, tuple[SinkWaiter, list[Any]]] = {}
            for chunk in message.items:
                waiter = self._waiters.get(chunk.rid)
                if waiter is not None:
                    groups.setdefault(id(waiter), (waiter, []))[1].append(chunk)
                if chunk.finish is not None:
                    self._waiters.pop(chunk.rid, None)
            for waiter, chunks in groups.values():
                waiter.take(chunks)
        elif isinstance(message, OpFailed):
            found = self._sessions.get(message.sid)
            if found is not None:
                found.fail(make_error(message.error), sid=message.sid)

    def _publish(self, event: object) -> None:
        if isinstance(event, StepEvent):
            self.steps.append(event)
        elif isinstance(event, RequestEvent | EngineStats):
            self.events.append(event)

    def _post(self, call: Any) -> None:
        self._inbox.append(call)
        self._wake.set()

    # ------------------------------------------------------------ the seam

    def new_sid(self) -> str:
        return f"c1.s{next(self._numbers)}"

    def new_rid(self) -> str:
        return f"c1.r{next(self._numbers)}"

    def template(self) -> TemplateInfo:
        return TemplateInfo(
            {r: (f"<|im_start|>{r}\n", "<|im_end|>\n") for r in ("system", "user", "assistant")}
        )

    @property
    def model_name(self) -> str:
        return "stub"

    def submit(self, block, sink) -> None:
        if self.fault is not None:
            raise make_error_of(self.fault)
        self.messages += 1
        waiter = SinkWaiter(sink)
        for op in block.instructions:
            if isinstance(op, Decode | Select):
                self.requests += 1
                self._waiters[op.rid] = waiter
            self._sessions[op.sid] = waiter
        ops = to_wire(block)
        self.ops += len(ops)
        self.bytes += len(encode(WireBlock(incarnation="i1", ops=ops)))
        self._post(lambda: self.manager.handle(1, ops))

    def abort(self, rids=(), sids=()) -> None:
        self._post(lambda: self.manager.abort(1, rids=list(rids), sids=list(sids)))

    def release(self, sids) -> None:
        self._post(lambda: self.manager.handle(1, [Release(sids=list(sids))]))

    def text_of(self, ids):
        return self.manager.detokenize(list(ids))

    def refuse_kv_join(self) -> str:
        return "" if self.runner.rotates else "The runner cannot."

    def spare_tokens(self) -> int | None:
        return (self.scheduler.allocator.size if self.spare is None else self.spare) if self.credits else None

    def shutdown(self) -> None:
        self._ending = True
        self._hold.set()
        self._wake.set()
        self._thread.join(20)

    # ------------------------------------------------------------ for tests

    def pause(self) -> None:
        self._hold.clear()

    def resume(self) -> None:
        self._hold.set()

    def flush(self) -> None:
        """Empty the cache of what nobody uses."""
        done = threading.Event()
        message = SchedulerControl(client=1, id=1, verb="flush_cache")
        self._post(lambda: (self.scheduler.receive(message), done.set()))
        assert done.wait(20)

    def settle(self) -> None:
        """Wait until the engine is idle."""
        end = time.monotonic() + 60
        quiet = 0  # looks in a row: what goes from one thread to the next is in neither for a moment
        while True:
            taken = threading.Event()
            self._post(taken.set)  # behind all that was posted before
            assert taken.wait(60), "the engine takes nothing"
            idle = self.scheduler.idle and not (self._inbox or self._waiters or self.manager.encoding)
            quiet = quiet + 1 if idle else 0
            if quiet == 3:
                return
            assert self.fault is None, self.fault
            assert time.monotonic() < end, "the engine is never idle"
            time.sleep(0.005)


def make_error_of(fault: BaseException):
    from sgnb.errors import EngineError

    return EngineError(f"{type(fault).__name__}: {fault}")
