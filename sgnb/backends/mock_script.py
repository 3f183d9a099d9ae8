"""What the mock backend says: outputs of a script, cut as an engine would, and choices by a made-up score.

Notebook process; used by ``backends.mock``, which carries blocks out. A token is a word with the space before it or a single
other character. Pure, but for the count of what a script has given already.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from sgnb.backends.conform import conforming_text
from sgnb.errors import RequestError
from sgnb.lang.instruction import Decode, Select
from sgnb.sampling_params import SamplingParams

HANG = object()
"""A script entry that never answers."""

Script = Callable[..., object] | Mapping[str, object] | Sequence[object] | str | None


class Answers:
    """A script (see ``MockBackend``), and how much of it has been given."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._used: dict[str, int] = {}

    def answer(self, prompt: str, op: Decode | Select) -> object:
        """The output of one generation or choice; an Exception: it fails; HANG: it never ends."""
        script = self._script
        if script is None:
            return _unscripted(op)
        if callable(script):
            return script(prompt, op.name, op.params if isinstance(op, Decode) else SamplingParams())
        if isinstance(script, str):
            return script
        key = op.name if isinstance(script, Mapping) else ""
        entry = script.get(key, _unscripted(op)) if isinstance(script, Mapping) else script
        if isinstance(entry, list | tuple):
            if isinstance(op, Select) and not _names_option(entry, self._used.get(key, 0), op):
                return None
            number = self._used.get(key, 0)
            self._used[key] = number + 1
            if number >= len(entry):
                return RequestError(f"the script has no output number {number + 1} for {op.name!r}")
            return entry[number]
        return entry


def _unscripted(op: Decode | Select) -> str:
    """What is said without a script: the variable's name, or a text that meets the constraint."""
    constraint = op.params.constraint if isinstance(op, Decode) else None
    return f"<{op.name}>" if constraint is None else conforming_text(constraint)


def _names_option(entry: Sequence[object], number: int, op: Select) -> bool:
    """Whether the next scripted output is for this Select; else it is left to the generation it is for."""
    return number < len(entry) and (entry[number] in op.options or not isinstance(entry[number], str))


def choice_score(prompt: str, option: str) -> float:
    """A deterministic score in -10..0 of an option after a prompt."""
    digest = hashlib.blake2b(f"{prompt}\0{option}".encode(), digest_size=4).digest()
    return -int.from_bytes(digest, "big") % 10_000 / 1000 - 10.0


def choose(prompt: str, op: Select, scripted: object) -> str:
    """The option that wins: the scripted one if it is an option, else the one of the highest score."""
    if scripted in op.options:
        return str(scripted)
    return max(op.options, key=lambda option: choice_score(prompt, option))


def tokens_of(text: str) -> list[str]:
    """The mock's tokens: words with the space before them, and single other characters."""
    return re.findall(r" ?\w+|.", text, re.DOTALL)


def cut(text: str, op: Decode) -> tuple[str, dict[str, object]]:
    """The part of ``text`` that the parameters allow, and why it ends."""
    params = op.params
    end, matched = len(text), None
    for stop in params.stop:
        at = text.find(stop)
        if 0 <= at < end:
            end, matched = at, stop
    pieces = tokens_of(text[:end])
    if len(pieces) > params.max_new_tokens or params.max_new_tokens == 0:
        return "".join(pieces[: params.max_new_tokens]), {"type": "length", "matched": None}
    if matched is not None:
        return text[:end], {"type": "stop", "matched": matched}
    return text, {"type": "eos", "matched": 0}
