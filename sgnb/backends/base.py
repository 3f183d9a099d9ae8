"""The seam behind which a block is carried out.

Notebook process. ``runtime.dispatcher`` submits blocks and gets events through a ``Sink``; backends (engine, mock,
openai) implement it. A backend never blocks its caller in ``submit``, ``abort`` or ``release``, calls the sink on a
thread of its own, and gives exactly one ``Done`` or ``Failed`` per Decode, after which nothing more comes for it.
No language semantics here.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from sgnb.errors import EngineError, NoEngine, ProgramTypeError, SgnbError, SourcePosition, a_type_of
from sgnb.lang.instruction import Block
from sgnb.lang.position import here, internal
from sgnb.messages import PromptText

internal(__name__)


class TemplateInfo(msgspec.Struct, frozen=True):
    """The texts a chat template puts around turns; ``default_system`` is a whole turn or empty."""

    roles: dict[str, tuple[str, str]]
    default_system: str = ""
    exact: bool = True


class TokenInfo(msgspec.Struct, frozen=True):
    """One sampled token: id, raw log-probability (None when not asked for), top alternatives (logprob, id)."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[float, int], ...] = ()
    raw: bytes = b""
    """What of the text it made; empty where no log-probabilities were asked for."""
    allowed: int = 0
    """How many tokens its grammar allowed; 0: there was none."""
    ruled_out: int = -1
    """The likeliest token that the grammar excluded; -1: none."""
    forced: bool = False
    """The grammar allowed this token alone."""
    text: str | None = None
    """With ``return_text_in_logprobs``."""
    top_texts: tuple[str, ...] = ()
    """The texts of ``top``, likewise."""
    step: int = 0
    """The engine's step that drew it; 0: not known."""


class Started(msgspec.Struct, frozen=True):
    """The request left the queue, for the first time or once more after a ``Requeued``. ``prompt``: tokens of its prompt,
    0 where that is not known or was told before; ``cached``: of these, what it found in the cache; ``text``: the end of
    the prompt in tokens, where it is told."""

    rid: str
    prompt: int = 0
    cached: int = 0
    text: PromptText | None = None


class Requeued(msgspec.Struct, frozen=True):
    """The request was retracted or suspended: it waits in the engine's queue again."""

    rid: str


class Delta(msgspec.Struct, frozen=True):
    """New text of a generation: whole characters, never part of a stop string. Concatenated it is the final text."""

    rid: str
    text: str
    tokens: tuple[TokenInfo, ...] = ()


class Done(msgspec.Struct, frozen=True):
    """A generation ended. ``finish`` is {"type", "matched"}; ``meta`` has SGLang's meta_info names."""

    rid: str
    finish: dict[str, object]
    meta: dict[str, object] = msgspec.field(default_factory=dict)
    """Of a Select also: ``choice`` (index), ``scores``, ``input_token_logprobs`` (one list of (logprob, id) an option)."""
    prompt: PromptText | None = None
    """The end of its prompt in tokens; None where the backend does not tell it, or told it with ``Started``."""


class Failed(msgspec.Struct, frozen=True):
    """A request (``rid``) or a whole session (``sid``) failed; text so far is kept by the reader."""

    error: SgnbError
    rid: str = ""
    sid: str = ""


BackendEvent = Started | Requeued | Delta | Done | Failed


class Sink(Protocol):
    """Where a backend puts events; called on the backend's thread, must return at once and never raise."""

    def __call__(self, events: Sequence[BackendEvent]) -> None:
        """Take the events in order."""


class Backend(ABC):
    """Carries out blocks."""

    @abstractmethod
    def new_sid(self) -> str:
        """A session id no other call returns."""

    @abstractmethod
    def new_rid(self) -> str:
        """A request id no other call returns."""

    @abstractmethod
    def template(self) -> TemplateInfo:
        """The model's chat texts. May wait for the model to be loaded; raises EngineError if that failed."""

    @abstractmethod
    def submit(self, block: Block, sink: Sink) -> None:
        """Carry out the block; never blocks. Raises EngineError when it cannot even be queued (dead engine)."""

    @abstractmethod
    def abort(self, rids: Sequence[str] = (), sids: Sequence[str] = ()) -> None:
        """Stop requests and drop what their sessions have queued; idempotent. Each still gets its one Done."""

    @abstractmethod
    def release(self, sids: Sequence[str]) -> None:
        """Close sessions; idempotent; safe from a finaliser (it takes no lock a caller may hold)."""

    @property
    @abstractmethod
    def model_name(self) -> str:
        """What to show as the model."""

    @property
    def carrier(self) -> Backend:
        """Who carries blocks out in the end: itself, or the backend behind a stand-in. One carrier, one set of sessions."""
        return self

    def note_join(self, branches: int) -> None:  # noqa: B027  only an engine has figures
        """A program joined that many branches; a figure, nothing is carried out."""

    def refuse_kv_join(self) -> str:
        """Why branches cannot be joined by their KV here; empty where they can. May wait for the model to be loaded."""
        return f"The backend {self.model_name!r} has no KV of its own."

    def text_of(self, ids: Sequence[int]) -> tuple[str, int]:
        """The text of token ids, and how many of them it covers: up to the last that ends a character. Raises EngineError
        where tokens mean nothing."""
        raise EngineError(
            f"The backend {self.model_name!r} has no tokens.", hint="Only an engine has: sgnb.launch()."
        )

    def spare_tokens(self) -> int | None:
        """KV slots the engine can still give away once all it runs has ended at its longest, as far as it said; None when
        it says nothing: then nothing is held back."""
        return None

    def shutdown(self) -> None:  # noqa: B027  a backend without a process has nothing to end
        """End the backend."""


_default: list[Backend | None] = [None]
_lock = threading.Lock()


def set_default_backend(backend: Backend | None) -> None:
    """Make ``backend`` the one that programs use when none is given. ProgramTypeError for what carries out no blocks."""
    _check_backend(backend, here)
    with _lock:
        _default[0] = backend


def get_default_backend() -> Backend | None:
    """The default backend, or None."""
    return _default[0]


def _check_backend(backend: object, where: Callable[[], SourcePosition] | None) -> None:
    if not (
        backend is None
        or isinstance(backend, Backend)
        or isinstance(getattr(backend, "carrier", None), Backend)
    ):
        raise ProgramTypeError(
            f"A backend is an engine, not {a_type_of(backend)}.",
            hint="sgnb.launch() starts one, sgnb.attach(name) gives another notebook's.",
            position=None if where is None else where(),
        )


def require_backend(
    backend: Backend | None = None, where: Callable[[], SourcePosition] | None = None
) -> Backend:
    """``backend``, else the default one; raises NoEngine naming the call that starts one, at the place ``where`` gives."""
    _check_backend(backend, where)
    found = _default[0] if backend is None else backend
    if found is None:
        error = NoEngine(
            "No engine is running.", hint="Start one with sgnb.launch() or %sgl launch, or pass backend=."
        )
        error.position = None if where is None else where()
        raise error
    return found
