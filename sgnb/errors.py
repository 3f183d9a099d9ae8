"""Every exception sgnb raises on purpose.

A leaf: every package may import it, it imports nothing of sgnb. Used in all three processes; errors cross a process
as ``messages.ErrorInfo`` and are made into these classes on the notebook's side. No text formatting for widgets here.

    SgnbError
    ├── ProgramError      wrong DSL: knows the cell or file, line, column, caret and the fix
    │   ├── ProgramTypeError  also a TypeError: an unknown argument or a value of the wrong type
    │   ├── ParseError        also a ValueError: gen(parse=True) got a text that means no such object
    │   ├── UnknownVariable   also a KeyError: a variable that no generation or set_var has bound
    │   └── UnknownAttribute  also an AttributeError: a name that a state, a program or an expression has not
    ├── LimitError        input over a documented limit (design: Limits), refused where it enters
    │   └── ConstraintError   a regex, schema or grammar that is malformed, or says what cannot be enforced
    ├── RecordingError    a recording that cannot be written or read: file, place, what is wrong
    ├── ModelFileError    a model file that is truncated, lies or is foreign: file, tensor, expected, found
    ├── EngineError       the engine could not do it
    │   ├── NoEngine          no engine is running; names the call that starts one
    │   ├── EngineStartError  it did not come up; carries the last log lines
    │   ├── EngineDied        it ended while something waited; carries the reason
    │   ├── AuthFailed        wrong token or a foreign socket
    │   └── RequestError      one request was refused or failed; has a ``code``
    └── Cancelled         the run was stopped by its user
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourcePosition:
    """A place in user source: 1-based ``line``, 0-based ``col`` in characters, and the text of that line."""

    file: str
    line: int
    col: int
    end_col: int | None = None
    text: str = ""
    in_cell: bool = False

    def __str__(self) -> str:
        where = "Line" if self.in_cell else f"{self.file}, line"
        return f"{where} {self.line}, column {self.col + 1}"


def a_type_of(value: object) -> str:
    """The value's type as a sentence has it: ``a str``, ``an int``."""
    name = type(value).__name__
    return f"{article(name)} {name}"


def article(word: str) -> str:
    """``a`` or ``an``."""
    return "an" if word[:1].lower() in "aeio" else "a"


WIDEST = 76
"""Characters of a source line that are shown: a longer one is folded, and its carets then stand below nothing."""
BEFORE = 24
"""Of these so many before what is pointed at."""


def _excerpt(text: str, col: int) -> tuple[str, int]:
    """Of a long line the part around column ``col``, and where that column is in it."""
    if len(text) <= WIDEST:
        return text, col
    blanks = len(text) - len(text.lstrip())
    text, col = text[blanks:], max(0, col - blanks)
    start = max(0, min(col - BEFORE, len(text) - WIDEST))
    shown = text[start : start + WIDEST]
    if start + WIDEST < len(text):
        shown = shown[:-1] + "…"
    if start:
        shown = "…" + shown[1:]
    return shown, col - start


class SgnbError(Exception):
    """Base of all errors of sgnb. ``hint`` is one sentence that names the next thing to do."""

    def __init__(self, message: str, *, hint: str = "", position: SourcePosition | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.position = position

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """The error as shown: place and sentence, the source line with a caret, the fix."""
        out = [f"{self.position}: {self.message}" if self.position else self.message]
        if self.position and self.position.text:
            text = self.position.text.rstrip("\n").expandtabs(1)
            width = max(1, (self.position.end_col or self.position.col + 1) - self.position.col)
            text, col = _excerpt(text, self.position.col)
            width = min(width, max(1, len(text) - col))
            out += [f"    {text}", f"    {' ' * col}{'^' * width}"]
        if self.hint:
            out.append(self.hint)
        return out

    def _render_traceback_(self) -> list[str]:
        """IPython shows this instead of a stack: a user's mistake needs its place, not our frames."""
        return [f"{type(self).__name__}: " + "\n".join(self.lines())]


class ProgramError(SgnbError):
    """The program text is wrong, or used wrongly, at ``position``."""


class ProgramTypeError(ProgramError, TypeError):
    """An unknown argument, or a value of a type the language does not take."""


class ParseError(ProgramError, ValueError):
    """The text of a generation does not mean what ``parse=True`` asked for."""


class UnknownVariable(ProgramError, KeyError):
    """A state was asked for a variable that nothing has bound."""


class UnknownAttribute(ProgramError, AttributeError):
    """A state, its branches, a program, a run or an expression was asked for a name it has not."""


class LimitError(SgnbError):
    """Input over a documented limit; raised before anything is queued."""


class RecordingError(SgnbError):
    """A recording cannot be written, or a file is none, is of another version, or is damaged."""


class ConstraintError(LimitError):
    """A regular expression, JSON schema or grammar is malformed, or holds what no grammar can enforce."""


class ModelFileError(SgnbError):
    """A model file cannot be used. Says which file, which tensor, what was expected and what was found."""


class EngineError(SgnbError):
    """The engine could not do what was asked."""


class NoEngine(EngineError):
    """No engine is running."""


class EngineStartError(EngineError):
    """The engine did not come up. ``log`` holds its last lines."""

    def __init__(self, message: str, *, log: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = list(log)

    def lines(self) -> list[str]:
        """The sentence, the last log lines, the fix."""
        base = [self.message, *(f"    {line}" for line in self.log[-12:])]
        return [*base, self.hint] if self.hint else base


class EngineDied(EngineError):
    """The engine ended while something waited for it."""


class AuthFailed(EngineError):
    """The engine's socket refused the token, or belongs to somebody else."""


class RequestError(EngineError):
    """One request was refused or failed; its neighbours go on. ``code`` is a stable word."""

    def __init__(
        self, message: str, *, code: str = "error", hint: str = "", position: SourcePosition | None = None
    ) -> None:
        super().__init__(message, hint=hint, position=position)
        self.code = code


class Cancelled(SgnbError):
    """The run was stopped by its user; text so far is kept."""
