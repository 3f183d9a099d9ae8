"""The Engine handle: what ``sgnb.launch()`` returns and the magics hold.

Notebook process; made by ``backends.engine`` (launch, attach), which also exports it. Puts together a process
(``backends.process``) and a connection (``backends.client``), and is the Backend that programs run on. No language
here, no display, no knowledge of other engines.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sgnb.backends.base import Sink, TemplateInfo, get_default_backend, set_default_backend
from sgnb.backends.client import EngineClient
from sgnb.backends.connection import Address
from sgnb.backends.generate import Generation, Prompt
from sgnb.backends.process import EngineProcess, log_lines
from sgnb.backends.recorder import Recorder
from sgnb.backends.steering import Steering
from sgnb.backends.tally import Tally
from sgnb.backends.wire import SinkWaiter, to_wire
from sgnb.config import EngineArgs
from sgnb.errors import EngineDied, EngineError, EngineStartError, SgnbError
from sgnb.lang.instruction import Block
from sgnb.lang.instruction import Decode as DecodeInstruction
from sgnb.lang.instruction import Fork as ForkInstruction
from sgnb.lang.instruction import Select as SelectInstruction
from sgnb.messages import Abort, EngineStats, ModelInfo, Progress, Release, TelemetryEvent, TelemetryFrame
from sgnb.messages import Block as WireBlock
from sgnb.transport import encode

_SHUTDOWN_SECONDS = 3.0
_LOG_KEPT = 200
_STOP = {"reason": "stopped by its owner", "hint": "Start one with sgnb.launch() or %sgl launch."}
_RESTART = {"reason": "restarted by its owner", "hint": "Run the cell again."}


class Engine(Steering):
    """A running engine: launched by this kernel (``owner``) or attached to. Thread-safe."""

    def __init__(
        self,
        *,
        args: EngineArgs | None,
        address: Address,
        folder: Path,
        name: str,
        model: str,
        process: EngineProcess | None,
        forget: Callable[[Engine], None],
    ) -> None:
        self.name = name
        self.args = args
        self.owner = process is not None
        self.last_stats: EngineStats | None = None
        self._model = model
        self._folder = folder
        self._process = process
        self._pid = address.pid
        self._stopped = False
        self._forget = forget
        self._numbers = itertools.count(1)
        self._state_listeners: tuple[Callable[[str], None], ...] = ()
        self._told = ""
        self._phase = "starting"
        self.since = time.time()
        """Epoch seconds of its start, of its readiness, or of its end, as this kernel saw them."""
        self._log_kept: list[str] = []
        self._lock = threading.Lock()
        self._was_ready = False
        self._joins = Tally()
        self._recorder: Recorder | None = None
        self.client = EngineClient(address, self.note_state)
        self.client.start()

    # ------------------------------------------------------------ what it is

    @property
    def model_name(self) -> str:
        """What to show as the model."""
        return self.client.info.model if self.client.info else self._model

    @property
    def pid(self) -> int:
        """Of the tokenizer process, the one that this kernel watches."""
        return self._pid

    @property
    def state(self) -> str:
        """``starting, idle, running`` (requests of this kernel), ``stuck`` (no step ended for 10 s: see ``trouble``),
        ``died`` (after it was ready), ``failed`` (to start), ``stopped`` (on purpose).
        """
        if self._stopped:
            return "stopped"
        if self.client.end is not None:
            return "died" if self._was_ready else "failed"
        if self.client.info is None:
            return "starting"
        if self.client.trouble:
            return "stuck"
        return "running" if self.client.pending else "idle"

    @property
    def trouble(self) -> str:
        """While it is ``stuck``: since when no step ended, and which part of the engine does not answer; else empty."""
        return self.client.trouble

    @property
    def answering(self) -> bool:
        """False when the engine lives but was silent for 5 s (stopped, or stuck)."""
        return self.client.answering

    @property
    def error(self) -> SgnbError | None:
        """Why it ended, or None."""
        return None if self._stopped else self._described(self.client.end)

    @property
    def info(self) -> ModelInfo | None:
        """The model, once it is loaded."""
        return self.client.info

    @property
    def progress(self) -> list[Progress]:
        """The start steps so far."""
        return list(self.client.progress)

    def __repr__(self) -> str:
        return f"Engine({self.name!r}, {self.model_name}, {self.state})"

    def _described(self, error: SgnbError | None) -> SgnbError | None:
        """A start failure carries the log; the model file's own errors say enough."""
        if error is None or self._was_ready or type(error) not in (EngineError, EngineDied):
            return error
        hint = "" if isinstance(error, EngineDied) else error.hint
        return EngineStartError(
            f"The engine did not start: {error.message}", log=self.log(12), hint=hint or "%sgl log has more."
        )

    # ------------------------------------------------------------ life

    def note_state(self) -> None:
        """Tell listeners when the state is another one; on the I/O thread, and on threads that submit."""
        self._was_ready = self._was_ready or self.client.info is not None
        if self.client.end is not None and not self._log_kept:
            self._log_kept = log_lines(self._folder, _LOG_KEPT)
            if self._process is not None:
                self._process.returncode(1.0)
                self._process.clean()
        told = f"{self.state}{'' if self.answering else ' silent'}"
        with self._lock:
            if told == self._told:
                return
            self._told = told
            # Working or resting is a matter of moments: what lasts is that it is there.
            phase = "ready" if self.state in ("idle", "running", "stuck") else self.state
            if phase != self._phase:
                self._phase, self.since = phase, time.time()
            listeners = self._state_listeners
        for listener in listeners:
            listener(self.state)

    def on_state(self, callback: Callable[[str], None]) -> Callable[[], None]:
        """Call ``callback(state)`` at each change of ``state`` or ``answering``, on any thread. Returns its end."""
        with self._lock:
            self._state_listeners = (*self._state_listeners, callback)

        def stop() -> None:
            with self._lock:
                self._state_listeners = tuple(x for x in self._state_listeners if x is not callback)

        return stop

    def subscribe(self, callback: Callable[[TelemetryEvent], None]) -> Callable[[], None]:
        """Call ``callback(event)`` with telemetry on the I/O thread (it must return at once). Returns its end."""

        def take(event: TelemetryEvent) -> None:
            if isinstance(event, EngineStats):
                self.last_stats = event
            callback(event)

        return self.client.listen(take)

    def subscribe_frames(self, callback: Callable[[TelemetryFrame, bytes], None]) -> Callable[[], None]:
        """Call ``callback(frame, raw)`` with each telemetry frame and its MessagePack on the I/O thread. Returns its end."""
        return self.client.listen_frames(callback)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Block until the model is loaded. Raises EngineStartError with the last log lines when that fails, EngineError
        after ``timeout`` seconds.
        """
        try:
            self.client.wait(lambda: self.client.info is not None, timeout)
        except SgnbError as error:
            raise (self._described(error) or error) from None

    def log(self, n: int = 50) -> list[str]:
        """The newest ``n`` lines of its log."""
        return log_lines(self._folder, n) or self._log_kept[-n:]

    def shutdown(self, *, restarting: bool = False) -> None:
        """End the engine (its owner), or leave it (attached). Whatever waits fails, with words about what comes next:
        ``restarting``: one with the same arguments takes its place. Bounded by about 5 s.
        """
        if os.getpid() != self.client.pid or self._stopped:
            return
        if self._process is not None:
            self._log_kept = self._log_kept or self.log(_LOG_KEPT)
        if self._recorder is not None:
            self._recorder.stop("the engine was stopped")
        ended = self.client.end is not None
        if self._process is not None and not ended and self.client.answering and self.client.welcome:
            try:
                self.client.control("shutdown", _RESTART if restarting else _STOP, timeout=1.0)
            except EngineError:
                pass  # it may end before its answer arrives, or not answer: the signals follow
        self._stopped = True
        if restarting:
            self.client.close(EngineDied("The engine was restarted.", hint=_RESTART["hint"]))
        else:
            self.client.close(EngineDied(self._words(), hint=_STOP["hint"]))
        if self._process is not None:
            self._process.returncode(_SHUTDOWN_SECONDS if not ended else 0.1)
            self._process.end()
        if get_default_backend() is self:
            set_default_backend(None)
        self._forget(self)
        self.note_state()

    def _words(self) -> str:
        return "The engine was stopped." if self.owner else "This kernel left the engine."

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    # ------------------------------------------------------------ Backend

    def new_sid(self) -> str:
        """A session id no other call returns."""
        return f"c{self.client.number()}.s{next(self._numbers)}"

    def new_rid(self) -> str:
        """A request id no other call returns."""
        return f"c{self.client.number()}.r{next(self._numbers)}"

    def template(self) -> TemplateInfo:
        """The model's chat texts; waits for the model."""
        self.wait_ready()
        assert self.client.info is not None
        info = self.client.info
        roles = {role: (text.prefix, text.suffix) for role, text in info.roles.items()}
        return TemplateInfo(roles, info.default_system, info.template_exact)

    def submit(self, block: Block, sink: Sink) -> None:
        """Carry out the block. Raises EngineError when the engine has ended, LimitError when it is too large."""
        self._usable()
        info = self.client.info
        for op in block.instructions:
            if info is not None and isinstance(op, DecodeInstruction):
                op.params.check_model(info.vocab_size)
        frame = encode(WireBlock(incarnation=self._incarnation(), ops=to_wire(block)))
        rids = [op.rid for op in block.instructions if isinstance(op, DecodeInstruction | SelectInstruction)]
        sids = {op.sid for op in block.instructions}
        for op in block.instructions:
            sids.update(op.children if isinstance(op, ForkInstruction) else ())
        self.client.submit(frame, rids, sids, SinkWaiter(sink))
        self.note_state()

    def text_of(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of token ids, and how many of them it covers."""
        found = self.client.control("detokenize", {"ids": list(ids)})
        return str(found["text"]), int(found["count"])

    def spare_tokens(self) -> int | None:
        """KV slots the engine can still give away; before its first answer, all it has."""
        if self.client.spare is None and self.client.info is not None:
            return self.client.info.max_total_tokens
        return self.client.spare

    def abort(self, rids: Sequence[str] = (), sids: Sequence[str] = ()) -> None:
        """Stop requests and drop what their sessions have queued; never blocks, never raises."""
        if (rids or sids) and self.client.incarnation:
            frame = encode(Abort(incarnation=self.client.incarnation, rids=list(rids), sids=list(sids)))
            self.client.post(frame, _number_of([*rids, *sids]))

    def release(self, sids: Sequence[str]) -> None:
        """Close sessions; safe from a finaliser."""
        if sids and self.client.incarnation:
            self.client.forget(sids=sids)
            ops = [Release(sids=list(sids))]
            frame = encode(WireBlock(incarnation=self.client.incarnation, ops=list(ops)))
            self.client.post(frame, _number_of(sids))

    def _incarnation(self) -> str:
        self.client.number()  # waits for the welcome
        return self.client.incarnation

    def _usable(self) -> None:
        if self._stopped and os.getpid() == self.client.pid:
            raise EngineDied(self._words(), hint=_STOP["hint"])
        try:
            self.client.check_usable()
        except SgnbError as error:
            raise (self._described(error) or error) from None

    # ------------------------------------------------------------ direct use

    def generate(
        self,
        prompt: Prompt | None = None,
        *,
        input_ids: Sequence[int] | Sequence[Sequence[int]] | None = None,
        sampling_params: Any = None,
    ) -> Any:
        """Generate from text or token ids: a dict with ``text, prompt_ids, output_ids, meta_info``, or a list of dicts
        for a list of prompts, which run together. ``sampling_params`` has SGLang's names (a dict, or a list of them).

        Raises LimitError before anything is queued, RequestError or EngineDied when it fails. An interrupt aborts.
        """
        self._usable()
        self.wait_ready()
        return Generation(self, prompt, input_ids, sampling_params).run()

    def record(self, path: str | Path, *, text: bool = True, seconds: float | None = None) -> Recorder:
        """Write what the engine does to ``path`` (``.sgnb``) until ``stop()``, the end of a ``with``, or ``seconds``.

        ``text``: with the token ids and text of this kernel's own requests; of others there are lengths only. One at a time.
        Raises RecordingError when the file cannot be made, EngineError when this engine is recorded already.
        """
        self._usable()
        self.wait_ready()
        with self._lock:
            if self._recorder is not None and self._recorder.running:
                raise EngineError(
                    f"Engine {self.name} is recorded already, to {self._recorder.path}.",
                    hint="End that one first: %sgl record stop, or its stop().",
                )
            recorder = Recorder(self.client, path, name=self.name, args=self.args, text=text, seconds=seconds)
            recorder.start()
            self._recorder = recorder
        return recorder

    @property
    def recorder(self) -> Recorder | None:
        """The newest recording of this engine by this kernel; it may have ended."""
        return self._recorder

    def stats(self) -> dict[str, Any]:
        """Live numbers, with SGLang's metric names; counts of requests, sessions and slots, shares 0..1, rates a second.

        Two are of this kernel alone: ``instruction_queue_length`` (generations and selects it sent that have not ended,
        those behind another one of their state included) and ``join_rate`` (branches joined a second, over 60 s).
        """
        figures = self.client.control("stats")
        return figures | {"instruction_queue_length": self.client.pending, "join_rate": self._joins.rate()}

    def refuse_kv_join(self) -> str:
        """See Backend."""
        self.wait_ready()
        if self.info is not None and self.info.runner == "transformers":
            return "The transformers runner cannot copy KV to other positions."
        return ""

    def note_join(self, branches: int) -> None:
        """A program of this kernel joined branches."""
        self._joins.note(branches)

    def abort_all(self) -> dict[str, Any]:
        """Abort every request of the engine, other kernels' too; ``aborted`` counts those of this kernel."""
        self._usable()
        count = self.client.pending
        frame = encode(Abort(incarnation=self._incarnation(), everything=True, all_clients=True))
        self.client.post(frame)
        return {"aborted": count}


def _number_of(ids: Sequence[str]) -> int:
    return int(ids[0][1:].partition(".")[0])
