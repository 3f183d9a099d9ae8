"""What the scheduler knows of grammars: a backend that compiles, a matcher of one request, and where it stands.

Scheduler process. ``GrammarManager`` calls ``compile`` on threads of its own, ``Req`` advances a ``GrammarState`` token by
token on the scheduler's. Backends are chosen by name (``BACKENDS``) and imported when the first constraint comes. No queue
and no request here.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sgnb.constraints import Constraint
from sgnb.messages import ErrorInfo

Mask = npt.NDArray[np.int32]
"""ceil(vocab/32) words, bit ``i % 32`` of word ``i // 32`` set for a token that is allowed."""

STEP_SECONDS = 0.5
"""CPU time that one token may cost a matcher: ambiguous regular expressions grow slow with the text."""


class GrammarError(Exception):
    """A constraint that cannot be compiled, or a compiler that could not do it. ``code`` is a stable word."""

    def __init__(self, message: str, *, code: str = "grammar", hint: str = "", lasting: bool = True) -> None:
        super().__init__(message)
        self.info = ErrorInfo(kind="RequestError", code=code, message=message, hint=hint)
        self.lasting = lasting
        """The same constraint fails again: this may be remembered."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens as bytes; ``special_ids`` are no text, so no grammar allows them."""

    table: Sequence[bytes]
    vocab_size: int
    special_ids: frozenset[int]
    eos_token_ids: Sequence[int]

    @property
    def texts(self) -> list[bytes]:
        """Bytes of each id that may stand in an output; empty for the others."""
        return [b"" if i in self.special_ids else text for i, text in enumerate(self.table)]

    @property
    def words(self) -> int:
        """Length of a mask."""
        return -(-self.vocab_size // 32)


class Matcher(ABC):
    """One output's place in a compiled grammar."""

    @abstractmethod
    def fill(self, mask: Mask) -> bool:
        """Set the bits of the text tokens that may come next, clear all others. True: the output may end here."""

    @abstractmethod
    def accept(self, token: int) -> bool:
        """Go on with a token; False, and nothing changed, if the grammar does not allow it."""


class CompiledGrammar(ABC):
    """A compiled constraint, shared by all its requests; never changed."""

    size: int
    """Bytes, about."""
    seconds: float = 0.0
    """What compiling it took, the start of the library not among it."""

    @abstractmethod
    def matcher(self) -> Matcher:
        """A matcher at the beginning."""


class GrammarBackend(ABC):
    """Compiles. ``compile`` may be called from several threads at once, and blocks for a bounded time."""

    @abstractmethod
    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Raises GrammarError when the constraint is refused, takes too long or needs too much memory."""

    @abstractmethod
    def close(self) -> None:
        """End what was started. Idempotent; a compilation under way fails."""


def _xgrammar(vocabulary: Vocabulary) -> GrammarBackend:
    from sgnb.engine.grammar.xgrammar_backend import XGrammarBackend  # noqa: PLC0415  only with a constraint

    return XGrammarBackend(vocabulary)


BACKENDS: dict[str, Callable[[Vocabulary], GrammarBackend]] = {"xgrammar": _xgrammar}
"""By the name in ``EngineArgs.grammar_backend``; called on a thread of the manager."""


class GrammarState:
    """A request's place in its grammar. ``eos_ids`` end the output where the grammar may end.

    After construction and after each ``accept`` exactly one of these holds: ``error`` is set; ``done`` (nothing may follow);
    ``mask`` allows at least one token.
    """

    __slots__ = (
        "_eos",
        "_eos_bits",
        "_matcher",
        "_seen",
        "allowed",
        "done",
        "error",
        "forced",
        "mask",
        "may_end",
    )

    def __init__(self, compiled: CompiledGrammar, eos_ids: frozenset[int], words: int) -> None:
        self._matcher = compiled.matcher()
        self._eos = np.array(sorted(eos_ids), dtype=np.int64)
        self._eos_bits = np.left_shift(np.uint32(1), (self._eos % 32).astype(np.uint32)).view(np.int32)
        self._seen = 0
        self.mask: Mask = np.zeros(words, dtype=np.int32)
        self.allowed = 0
        """Tokens that may come next."""
        self.forced = 0
        """Tokens so far that were the only ones."""
        self.may_end = False
        self.done = False
        self.error: ErrorInfo | None = None
        self._look(time.thread_time())

    def accept(self, token: int) -> None:
        """Go on with a drawn token that is no end."""
        started = time.thread_time()
        try:
            accepted = self._matcher.accept(token)
        except Exception as error:  # a library's fault ends this request, never the engine
            self.error = _fault("grammar", f"its grammar failed at token {self._seen}: {error!r}")
            return
        if not accepted:
            self.error = _fault(
                "grammar_rejected",
                f"its grammar does not allow token {token}, number {self._seen} of its output",
            )
            return
        self.forced += self.allowed == 1
        self._seen += 1
        self._look(started)

    def _look(self, started: float) -> None:
        try:
            self.may_end = self._matcher.fill(self.mask)
        except Exception as error:
            self.error = _fault("grammar", f"its grammar failed after {self._seen} tokens: {error!r}")
            return
        going_on = self.mask.any()
        if self.may_end and len(self._eos):
            np.bitwise_or.at(self.mask, self._eos // 32, self._eos_bits)
        self.allowed = int(np.unpackbits(self.mask.view(np.uint8)).sum())
        self.done = self.may_end and not going_on
        if not going_on and not self.may_end:
            self.error = _fault(
                "grammar_dead_end",
                f"after {self._seen} tokens no token of the vocabulary continues its constraint",
                "The constraint cannot be met from here: loosen it, or check its alternatives.",
            )
        elif time.thread_time() - started > STEP_SECONDS:
            self.error = _fault(
                "grammar_slow",
                f"token {self._seen} of its output took its grammar more than {STEP_SECONDS:g} s",
                "Avoid nested repetitions such as (a*)*, or bound them.",
            )


def _fault(code: str, message: str, hint: str = "") -> ErrorInfo:
    return ErrorInfo(kind="RequestError", code=code, message=message, hint=hint)
