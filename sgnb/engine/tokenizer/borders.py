"""Where pending text may be cut so that its ids cannot change: the space rule.

Tokenizer process; used by ``pending.py`` (long text that more text may follow) and by ``tokenizer.py`` (long text is
encoded in pieces, between which others run). A text is cut *before* a space that follows a non-space: no merge builds a
token that is not in the vocabulary, no pre-tokenizer known here takes a space after a non-space, and a space is inert
under NFC. The rule is checked on the loaded tokenizer with random texts; a tokenizer that fails holds everything until
the text is complete, which is always right and loses only sharing before that moment. Pure; no sessions here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sgnb.engine.tokenizer.steps import Aside, Steps, run_steps

PIECE_CHARS = 16_384
"""Encoding goes in pieces of about this size: one long call is slower, and nothing else runs beside it."""
ASIDE_CHARS = 4 * PIECE_CHARS
"""A piece that found no border before this size is encoded on a helper thread."""
CHECK_PAIRS = 300

Encode = Callable[[Sequence[str]], list[list[int]]]
"""Encodes several texts, each on its own, without special tokens or a dummy prefix."""


@dataclass(frozen=True, slots=True)
class BorderRule:
    """The space rule of one tokenizer. ``hold``: never cut."""

    blocked: frozenset[int] = frozenset()
    """Last UTF-8 bytes of the characters that stand directly before a space inside a vocabulary entry (X)."""
    half: frozenset[str] = frozenset()
    """All proper prefixes of the added tokens: a text that ends with one may still grow into that token."""
    rstrip: tuple[str, ...] = ()
    """Added tokens that take the whitespace after them."""
    hold: bool = False
    _longest: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_longest", max(map(len, self.half), default=0))

    def stable(self, text: str, *, growing: bool = True) -> int:
        """The largest legal cut of ``text`` (an index into it), or 0: hold everything.

        ``growing``: the end of ``text`` may grow into an added token (it is parsed for them).
        """
        if self.hold:
            return 0
        limit = len(text)
        for size in range(min(self._longest, len(text)) if growing else 0, 0, -1):
            if text[-size:] in self.half:
                limit = len(text) - size
                break
        at = text.rfind(" ", 0, limit + 1)
        while at > 0:
            before = text[at - 1]
            if (
                not before.isspace()
                and before != "▁"
                and before.encode("utf-8", "surrogatepass")[-1] not in self.blocked
                and not text.endswith(self.rstrip, 0, at)
            ):
                return at
            at = text.rfind(" ", 0, at)
        return 0


def make_rule(table: Iterable[bytes], added: Iterable[str], rstrip: Iterable[str]) -> BorderRule:
    """The rule for a vocabulary (its byte table) and its added tokens' texts."""
    blocked = set()
    for entry in table:
        at = entry.find(b" ", 1)
        while at > 0:
            blocked.add(entry[at - 1])
            at = entry.find(b" ", at + 1)
    half = frozenset(text[:size] for text in added for size in range(1, len(text)))
    return BorderRule(blocked=frozenset(blocked), half=half, rstrip=tuple(rstrip))


def encode_long(text: str, rule: BorderRule, encode: Encode) -> list[int]:
    """The ids of ``text``, encoded in pieces cut by the rule: the same ids as in one call."""
    return run_steps(encode_steps(text, rule, encode))


def encode_steps(text: str, rule: BorderRule, encode: Encode) -> Steps[list[int]]:
    """``encode_long`` that gives way after each piece but the last."""
    if len(text) <= PIECE_CHARS:
        return encode([text])[0] if text else []
    ids: list[int] = []
    start = 0
    while start < len(text):
        size = PIECE_CHARS
        while True:
            window = text[start : start + size]
            cut = len(window) if start + size >= len(text) else rule.stable(window)
            if cut:
                break
            size = len(text) - start if rule.hold else size * 2
        piece = text[start : start + cut]
        start += cut
        if cut > ASIDE_CHARS:
            ids += yield Aside(partial(_encode_one, encode, piece), "encode")
            continue
        ids += encode([piece])[0]
        if start < len(text):
            yield None
    return ids


def _encode_one(encode: Encode, text: str) -> list[int]:
    return encode([text])[0]


def check_rule(rule: BorderRule, encode: Encode, pairs: int = CHECK_PAIRS, seed: int = 0) -> bool:
    """True when ``encode(head) + encode(rest) == encode(whole)`` for random texts and cuts by the rule."""
    if rule.hold:
        return True
    rng = random.Random(seed)
    heads: list[str] = []
    rests: list[str] = []
    wholes: list[str] = []
    while len(heads) < pairs:
        text = random_text(rng)
        cut = rule.stable(text[: rng.randint(1, len(text))])
        if not cut:  # too little to cut: give it a place where the rule may cut, or try the next text
            text += " x"
            cut = rule.stable(text)
        heads.append(text[:cut])
        rests.append(text[cut:])
        wholes.append(text)
    encoded = encode(heads + rests + wholes)
    size = len(heads)
    return all(encoded[i] + encoded[size + i] == encoded[2 * size + i] for i in range(size))


_ATOMS = (
    *"abcdefgh XYZ0123456789 .,;:!?'\"()[]{}<>/\\|@#$%^&*_-+=~`",
    *(" ", "  ", "   ", "\n", "\n\n", "\t", " \n", "\r\n", "\u00a0", "\u3000", "\u200b", "\u200d"),
    *(
        "it's",
        "we'll",
        "I'm",
        "they've",
        "'d",
        "'re",
        "the ",
        " of",
        "return ",
        "def f(x):\n    ",
        "</b>",
        "<b>",
    ),
    *(
        "日",
        "本語",
        "한국",
        "ㅎㅏ",
        "मन",
        "ال",
        "é",
        "o\u0316\u0301",
        "ﬁ",
        "½",
        "🎈",
        "👩\u200d👧",
        "🇫🇷",
        "▁",
        "µ",
    ),
)


def random_text(rng: random.Random) -> str:
    """Text of the kinds that break tokenizer borders: code, contractions, CJK, marks, emoji, runs of blanks."""
    return "".join(rng.choice(_ATOMS) for _ in range(rng.randint(2, 40)))
