"""Long work in pieces: generators that give way between them, and who drives them.

Tokenizer process. A *steps* generator yields ``None`` after a piece of work (others may run now), or an ``Aside``: a
call that must not run on the loop's thread, because it waits (a template's rendering) or cannot be cut (text without a
border, whose encoding releases the GIL). Whoever drives it sends the call's result back in, or throws its error in.
``Jobs`` drives many, a piece of each in turn; ``run_steps`` drives one to its end. Nothing about text or sessions here.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Lane = Literal["encode", "render"]


@dataclass(frozen=True, slots=True)
class Aside:
    """A call for a helper thread. Calls of one lane run one after the other."""

    call: Callable[[], Any]
    lane: Lane


T = TypeVar("T")
Steps = Generator[Aside | None, Any, T]


def run_steps(steps: Steps[T]) -> T:
    """All pieces at once, on this thread; the result, or what was raised."""
    try:
        asked = next(steps)
        while True:
            if asked is None:
                asked = next(steps)
                continue
            try:
                answer = asked.call()
            except Exception as error:
                asked = steps.throw(error)
            else:
                asked = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


class _Helper:
    """One thread that carries out the calls of a lane; it starts with the first of them."""

    def __init__(self, lane: Lane, wake: Callable[[], None]) -> None:
        self._lane = lane
        self._wake = wake
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[[], Any]) -> Future[Any]:
        """Queue a call. A cancelled one is passed over."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"sgnb-{self._lane}", daemon=True)
            self._thread.start()
        future: Future[Any] = Future()
        self._calls.put((future, call))
        return future

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(call())
            except BaseException as error:  # raised again where the steps wait for it
                future.set_exception(error)
            self._wake()


@dataclass(slots=True, eq=False)
class Job:
    """Steps that are under way."""

    steps: Steps[None]
    then: Callable[[], None]
    """Called when it has ended after it had to give way; not when it was done at once, nor when it was cancelled."""
    waits: Future[Any] | None = None
    done: bool = False

    @property
    def ready(self) -> bool:
        """True when its next piece can run now."""
        return self.waits is None or self.waits.done()


class Jobs:
    """Jobs of all sessions, a piece of each in turn. ``wake`` is called, from any thread, when an aside has ended.

    ``at_once``: the cost that may begin without waiting for its turn, between two steps.
    """

    def __init__(self, wake: Callable[[], None], at_once: int) -> None:
        self._at_once = self._left = at_once
        self._helpers: dict[Lane, _Helper] = {
            "encode": _Helper("encode", wake),
            "render": _Helper("render", wake),
        }
        self._jobs: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def ready(self) -> bool:
        """True when some job can go on now; one that waits for an aside cannot."""
        return any(job.ready for job in self._jobs)

    def start(self, steps: Steps[None], then: Callable[[], None], cost: int) -> Job:
        """Begin a job with its first piece (all of it when the text is short), unless much began before it already."""
        job = Job(steps, then)
        left, self._left = self._left, self._left - min(cost, self._at_once // 2)  # one piece of a long one
        if left > 0:
            self._advance(job)
        if not job.done:
            self._jobs.append(job)
        return job

    def step(self) -> None:
        """One piece of the next job that can go on, if any."""
        self._left = self._at_once
        for _ in range(len(self._jobs)):
            job = self._jobs[0]
            self._jobs.rotate(-1)
            if job.ready:
                self._advance(job)
                if job.done:
                    self._jobs.remove(job)
                    job.then()
                return

    def cancel(self, job: Job) -> None:
        """End a job between two pieces: what it had not finished has not happened."""
        if not job.done:
            job.done = True
            if job.waits is not None:
                job.waits.cancel()
            job.steps.close()
            self._jobs.remove(job)

    def _advance(self, job: Job) -> None:
        waited, job.waits = job.waits, None
        try:
            if waited is None:
                asked = next(job.steps)
            elif (fault := waited.exception()) is not None:
                asked = job.steps.throw(fault)
            else:
                asked = job.steps.send(waited.result())
        except StopIteration:
            job.done = True
            return
        if asked is not None:
            job.waits = self._helpers[asked.lane].submit(asked.call)
