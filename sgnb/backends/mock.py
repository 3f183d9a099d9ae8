"""A scripted backend: programs run without an engine, for tests, docs and examples.

Notebook process; a thread of its own carries blocks out and calls the sink, as the engine's I/O thread does. Outputs come
from a script, one token (a word or a piece of space) at a time; stops, lengths and aborts end them as the engine would.
It knows nothing of models: a token is a piece of text. What is said is ``mock_script``'s.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sgnb.backends.base import (
    Backend,
    BackendEvent,
    Delta,
    Done,
    Failed,
    Sink,
    Started,
    TemplateInfo,
    TokenInfo,
)
from sgnb.backends.mock_script import HANG, Answers, Script, choice_score, choose, cut, tokens_of
from sgnb.errors import EngineDied, RequestError
from sgnb.lang.instruction import Block, Decode, Extend, Fork, IdsPart, Init, Select, TextPart
from sgnb.lang.instruction import Instruction as Op
from sgnb.reasoning import split_reasoning

CHATML = TemplateInfo(
    roles={role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", "assistant")}
)


@dataclass(slots=True)
class _Session:
    text: str = ""
    queue: deque[tuple[Op, Sink]] = field(default_factory=deque)
    now: _Request | None = None
    waits: bool = False
    """True until the fork that opens it has been carried out."""
    closing: bool = False
    """True when it was released while a fork waited."""


@dataclass(slots=True)
class _Request:
    op: Decode | Select
    sink: Sink
    prompt: str
    pieces: deque[str]
    full: str
    """What is still to come, cut at the stop."""
    finish: dict[str, object]
    hang: bool = False
    error: Exception | None = None
    started: float = field(default_factory=time.monotonic)
    count: int = 0
    text: str = ""
    announced: bool = False


class MockBackend(Backend):
    """Answers from ``script``: a callable ``(prompt, name, params) -> str``, outputs by gen name (a str, or a list used
    in order), one list for all gens in order, or one str for all. An output may be an Exception (the gen fails) or HANG.
    What the script leaves open is ``<name>``, or for a constrained gen a short text that meets its constraint.

    A Select takes the scripted output when that is one of its options, else the option of the highest ``choice_score``.
    ``delay`` is seconds a token; ``log`` keeps every block in order; ``prompts`` each gen's (name, prompt).
    """

    def __init__(
        self,
        script: Script = None,
        *,
        delay: float = 0.0,
        template: TemplateInfo = CHATML,
        model: str = "mock",
    ) -> None:
        self._script = Answers(script)
        self._delay = delay
        self._template = template
        self._model = model
        self._sids = itertools.count(1)
        self._rids = itertools.count(1)
        self._sessions: dict[str, _Session] = {}
        self._aborted: deque[str] = deque()
        self._inbox: deque[tuple[Block, Sink] | str] = deque()
        """Blocks, and sessions to release, in order."""
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._start_lock = threading.Lock()
        self._dead: EngineDied | None = None
        self.log: list[Block] = []
        self.prompts: list[tuple[str, str]] = []
        self.released: list[str] = []
        self.aborted: list[str] = []

    # ------------------------------------------------------------ the seam

    def new_sid(self) -> str:
        """``m.s1``, ``m.s2`` …"""
        return f"m.s{next(self._sids)}"

    def new_rid(self) -> str:
        """``m.r1``, ``m.r2`` …"""
        return f"m.r{next(self._rids)}"

    def template(self) -> TemplateInfo:
        """The template given."""
        return self._template

    @property
    def model_name(self) -> str:
        """The name given."""
        return self._model

    def submit(self, block: Block, sink: Sink) -> None:
        """Queue a block."""
        if self._dead is not None:
            raise self._dead
        self.log.append(block)
        self._inbox.append((block, sink))
        self._run()

    def abort(self, rids: Sequence[str] = (), sids: Sequence[str] = ()) -> None:
        """Stop requests, and all that these sessions have queued."""
        self.aborted += rids
        self._aborted.extend(rids)
        self._run()

    def release(self, sids: Sequence[str]) -> None:
        """Forget sessions."""
        self._inbox.extend(sids)
        self._wake.set()

    def kill(self, reason: str = "the engine was killed") -> None:
        """Die as an engine does: everything under way fails, nothing can be submitted."""
        self._dead = EngineDied(reason, hint="Start it again with %sgl launch.")
        self._run()

    def shutdown(self) -> None:
        """End the thread."""
        self.kill("the mock backend was shut down")

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        if self._thread is None:
            with self._start_lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name="sgnb-mock", daemon=True)
                    self._thread.start()
        self._wake.set()

    def _work(self) -> None:
        while True:
            busy = self._step()
            if self._dead is not None and not busy:
                self._fail_all(self._dead)
                return
            if not busy:
                self._wake.wait()
                self._wake.clear()
            elif self._delay:
                time.sleep(self._delay)

    def _step(self) -> bool:
        """One token for each session that generates; True while there is more to do."""
        while self._inbox:
            item = self._inbox.popleft()
            if isinstance(item, str):
                self.released.append(item)
                self._close(item)
            else:
                self._queue(*item)
        self._take_aborts()
        if self._dead is not None:
            return False
        more = [self._step_session(session) for session in list(self._sessions.values())]
        for sid in [sid for sid, session in self._sessions.items() if session.closing]:
            self._close(sid)
        return any(more)

    def _queue(self, block: Block, sink: Sink) -> None:
        """Queue what a block holds in its sessions; refused, as an engine does, for a session that is not open."""
        for op in block.instructions:
            if isinstance(op, Init):
                self._sessions[op.sid] = _Session()
            session = self._sessions.get(op.sid)
            if session is None:
                error = RequestError(f"no session {op.sid!r} of this client is open", code="unknown_session")
                rid = op.rid if isinstance(op, Decode | Select) else ""
                _send(sink, Failed(error, rid=rid, sid="" if rid else op.sid))
                continue
            session.queue.append((op, sink))
            if isinstance(op, Fork):
                for child in op.children:
                    self._sessions[child] = _Session(waits=True)

    def _close(self, sid: str) -> None:
        """A released session stops what it does; one that forks wait for goes on until they are open."""
        session = self._sessions.get(sid)
        if session is None:
            return
        self._advance(session)
        if any(isinstance(op, Fork) for op, _ in session.queue):
            session.closing = True
            return
        del self._sessions[sid]
        if session.now is not None:
            _send(session.now.sink, _aborted(session.now.op.rid, session.now))
        for op, sink in session.queue:
            if isinstance(op, Decode | Select):
                _send(sink, _aborted(op.rid, None))

    def _fork(self, session: _Session, op: Fork) -> None:
        for sid in op.children:
            child = self._sessions.get(sid)
            if child is not None:
                child.text, child.waits = session.text, False

    def _advance(self, session: _Session) -> None:
        """Carry out what is queued up to the next generation."""
        while session.now is None and session.queue and not session.waits:
            op, sink = session.queue.popleft()
            if isinstance(op, Extend):
                session.text += "".join(self._part(part) for part in op.parts)
            elif isinstance(op, Decode | Select):
                session.now = self._begin(op, sink, session.text)
            elif isinstance(op, Fork):
                self._fork(session, op)

    def _step_session(self, session: _Session) -> bool:
        self._advance(session)
        request = session.now
        if request is None or request.hang:
            return False
        if request.error is not None:
            error = request.error
            made = (
                error if isinstance(error, RequestError) else RequestError(f"{type(error).__name__}: {error}")
            )
            _send(request.sink, Failed(made, rid=request.op.rid))
            session.now = None
            return True
        events: list[BackendEvent] = []
        if not request.announced:
            request.announced = True
            events.append(Started(request.op.rid))
        if request.pieces:
            piece = request.pieces.popleft()
            request.count += 1
            request.text += piece
            logprob = -0.5 if isinstance(request.op, Decode) and request.op.params.return_logprob else None
            if isinstance(request.op, Decode):
                events.append(Delta(request.op.rid, piece, (TokenInfo(len(piece), logprob),)))
        if not request.pieces:
            session.text += _kept(request)
            session.now = None
            events.append(Done(request.op.rid, request.finish, _meta(request)))
            self._advance(session)  # a fork behind it is open before a release that its end causes
        request.sink(events)
        return session.now is not None or bool(session.queue)

    def _part(self, part: object) -> str:
        if isinstance(part, TextPart | IdsPart):
            return part.text
        role, begin = part.role, part.begin  # type: ignore[attr-defined]
        prefix, suffix = self._template.roles.get(role, ("", ""))
        return prefix if begin else suffix

    def _begin(self, op: Decode | Select, sink: Sink, prompt: str) -> _Request:
        self.prompts.append((op.name, prompt))
        try:
            output = self._script.answer(prompt, op)
        except Exception as error:
            output = error
        if output is HANG:
            return _Request(op, sink, prompt, deque(), "", {}, hang=True)
        if isinstance(output, Exception):
            return _Request(op, sink, prompt, deque(), "", {}, error=output)
        if isinstance(op, Select):
            winner = choose(prompt, op, output)
            return _Request(op, sink, prompt, deque([winner]), winner, {"type": "stop", "matched": None})
        text, finish = cut(str(output), op)
        return _Request(op, sink, prompt, deque(tokens_of(text)), text, finish)

    def _take_aborts(self) -> None:
        rids = set()
        while self._aborted:
            rids.add(self._aborted.popleft())
        if not rids:
            return
        for session in self._sessions.values():
            if session.now is not None and session.now.op.rid in rids:
                request, session.now = session.now, None
                session.text += request.text
                _send(request.sink, _aborted(request.op.rid, request))
            for op, sink in list(session.queue):
                if isinstance(op, Decode | Select) and op.rid in rids:
                    session.queue.remove((op, sink))
                    _send(sink, _aborted(op.rid, None))

    def _fail_all(self, error: EngineDied) -> None:
        for session in self._sessions.values():
            queued = [(op.rid, sink) for op, sink in session.queue if isinstance(op, Decode | Select)]
            now = [] if session.now is None else [(session.now.op.rid, session.now.sink)]
            for rid, sink in now + queued:
                _send(sink, Failed(error, rid=rid))
        self._sessions.clear()


def _kept(request: _Request) -> str:
    """What of the output stays in the session."""
    family = request.op.params.reasoning if isinstance(request.op, Decode) else None
    return request.text if family is None else split_reasoning(request.text, family)[1]


def _send(sink: Sink, event: BackendEvent) -> None:
    sink([event])


def _choice_meta(request: _Request, op: Select) -> dict[str, Any]:
    scores = [choice_score(request.prompt, option) for option in op.options]
    winner = op.options.index(request.full)
    scores[winner] = max(*scores, -0.5)
    return {
        "choice": winner,
        "scores": scores,
        "input_token_logprobs": [
            [(score, len(token)) for token in tokens_of(option)]
            for score, option in zip(scores, op.options, strict=True)
        ],
    }


def _meta(request: _Request) -> dict[str, Any]:
    extra = _choice_meta(request, request.op) if isinstance(request.op, Select) and not request.pieces else {}
    return {
        **extra,
        "prompt_tokens": len(tokens_of(request.prompt)),
        "cached_tokens": 0,
        "completion_tokens": request.count,
        "queue_time": 0.0,
        "prefill_time": 0.0,
        "decode_time": time.monotonic() - request.started,
        "e2e_latency": time.monotonic() - request.started,
    }


def _aborted(rid: str, request: _Request | None) -> Done:
    return Done(rid, {"type": "abort", "matched": None}, {} if request is None else _meta(request))


__all__ = ["CHATML", "HANG", "MockBackend"]
