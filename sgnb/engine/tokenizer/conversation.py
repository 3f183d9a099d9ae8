"""A session's turns, kept for a chat template that is not made of prefixes and suffixes.

Tokenizer process; ``session.py`` keeps one for each session of such a model, and at each generation has the whole
conversation rendered (``template_renderer.py``) and tokenised here; the session is then cut to the ids that are common.
No sessions, no processes here.

What a program wrote can form no added token, though the template sees it as it is: a *breaker*, a character that is in
no text, is put inside whatever could be read as one, and taken out again after the rendered text was parsed. What the
model sampled as an added token stays one. So a template that looks for ``</think>`` finds the model's, not the user's.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sgnb.engine.tokenizer.chat_template import TemplateFault
from sgnb.engine.tokenizer.steps import Aside, Steps
from sgnb.engine.tokenizer.tokenizer import AddedToken, ModelTokenizer

Render = Callable[[list[dict[str, str]], bool], str]
"""Messages and ``add_generation_prompt`` to text; TemplateFault. It may take seconds: never on the loop's thread."""
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]
"""Noncharacters: Unicode keeps them for a program's own use, no text should have one."""


@dataclass(slots=True)
class Turn:
    """One turn: text, and whether it is a token that the model sampled (else it is literal)."""

    role: str
    pieces: list[tuple[str, bool]] = field(default_factory=list)

    def add(self, text: str, *, token: bool = False) -> None:
        """Append text; literal pieces next to each other are one."""
        if not text:
            return
        if self.pieces and not token and not self.pieces[-1][1]:
            text = self.pieces.pop()[0] + text
        self.pieces.append((text, token))


class Marks:
    """Makes literal text harmless for the parser, and undoes it. ``texts``: all that must not hold a character used here."""

    def __init__(self, added: Sequence[AddedToken], texts: Sequence[str]) -> None:
        tokens = sorted({token.content for token in added if token.content})
        singles = [text for text in tokens if len(text) == 1]
        free = [one for one in _NONCHARACTERS if not any(one in text for text in texts)]
        if len(free) < 2 + len(singles):
            raise TemplateFault("its texts hold the characters that would mark their places")
        self.breaker, self.end, *rest = free
        # A token of one character has no inside: another character stands for it.
        self._hide = str.maketrans(dict(zip(singles, rest, strict=False)))
        self._show = str.maketrans({**dict(zip(rest, singles, strict=False)), self.breaker: None})
        self._firsts = tuple({text[0] for text in tokens})
        self._ends = tuple({text[at:] for text in tokens for at in range(1, len(text))})
        pairs = sorted({(text[0], text[1]) for text in tokens if len(text) > 1})
        begins = "|".join(f"{re.escape(one)}(?={re.escape(next_one)})" for one, next_one in pairs)
        self._begin = re.compile(begins) if begins else None

    def put(self, text: str) -> str:
        """``text`` in which no added token is found, whatever is put around it; blanks at its ends stay at its ends."""
        core = text.strip()
        before, _, after = text.partition(core) if core else (text, "", "")
        if self._begin is not None:
            core = self._begin.sub(lambda match: match[0] + self.breaker, core)
        if core.endswith(self._firsts):
            core += self.breaker
        if core.startswith(self._ends):
            core = self.breaker + core
        return before + core.translate(self._hide) + after

    def encode(self, text: str, tokenizer: ModelTokenizer) -> Steps[list[int]]:
        """Ids of a whole prompt that was rendered from marked texts, without BOS."""
        ids: list[int] = []
        for part in tokenizer.split_added(text):
            if isinstance(part, AddedToken):
                ids.append(part.id)
            elif plain := part.translate(self._show):
                ids += yield from tokenizer.encode_run(plain, first=not ids)
        return ids


class Conversation:
    """Turns, and the session's ids as the scheduler has them."""

    __slots__ = ("_open", "_sampled", "ids", "lost", "turns")

    def __init__(self) -> None:
        self.turns: list[Turn] = []
        self.ids: array[int] = array("i")
        self.lost = False
        """It holds something that is no turn: it cannot be rendered any more, now or later."""
        self._open: Turn | None = None
        self._sampled: list[int] = []

    def copy(self) -> Conversation:
        """The same turns and ids, independent of these."""
        twin = Conversation()
        twin.turns = [Turn(turn.role, turn.pieces.copy()) for turn in self.turns]
        twin.ids = array("i", self.ids)
        twin.lost = self.lost
        twin._open = twin.turns[-1] if self._open is not None else None
        return twin

    # ------------------------------------------------------------ what a program does

    def begin(self, role: str) -> None:
        """A turn begins."""
        self._open = Turn(role)
        self.turns.append(self._open)

    def end(self) -> None:
        """The open turn ends."""
        self._open = None

    def add_text(self, text: str) -> None:
        """Text of the open turn; outside of turns a template has no place for it."""
        if self._open is not None:
            self._open.add(text)
        elif text:
            self.lost = True

    # ------------------------------------------------------------ what the model did

    def sent(self, ids: Sequence[int], keep: int | None = None) -> None:
        """The scheduler was given these ids; ``keep``: after a cut to so many."""
        if self.lost:
            return
        if keep is not None:
            del self.ids[keep:]
        self.ids.extend(ids)

    def sampled(self, ids: Iterable[int]) -> None:
        """Output of the generation in flight."""
        if not self.lost:
            self._sampled.extend(ids)

    def finished(self, kept: int, leftover: str, tokenizer: ModelTokenizer) -> None:
        """The generation has ended: the session keeps ``kept`` of its tokens, and ``leftover`` as text."""
        ids, self._sampled = self._sampled[:kept], []
        self.ids.extend(ids)
        turn = self._open
        if turn is None:
            self.lost = self.lost or bool(ids or leftover)
            return
        added = {token.id for token in tokenizer.added}
        held = b""
        for token in ids:
            if token in added:
                turn.add(held.decode("utf-8", "replace"))
                turn.add(tokenizer.table[token].decode("utf-8", "replace"), token=True)
                held = b""
            elif token < len(tokenizer.table):
                held += tokenizer.table[token]
        turn.add(held.decode("utf-8", "replace") + leftover)

    # ------------------------------------------------------------ the prompt

    def prompt(self, tokenizer: ModelTokenizer, render: Render) -> Steps[list[int]]:
        """Ids of the whole conversation for a generation now, as the template writes it; without BOS.

        An open turn of the assistant follows the generation prompt, any other open turn ends where its text ends.
        TemplateFault when the template cannot render it.
        """
        texts = [text for turn in self.turns for text, _ in turn.pieces]
        marks = Marks(tokenizer.added, [*texts, tokenizer.chat_template or ""])
        messages = [
            {"role": turn.role, "content": "".join(t if token else marks.put(t) for t, token in turn.pieces)}
            for turn in self.turns
        ]
        answers = self._open is not None and self._open.role == "assistant"
        tail = messages.pop()["content"] if answers else ""
        cut = self._open is not None and not answers
        if cut:
            messages[-1]["content"] += marks.end
        text: str = yield Aside(partial(render, messages, answers), "render")
        if cut:
            text, found, after = text.partition(marks.end)
            if not found or marks.end in after:
                raise TemplateFault("the text of the open turn does not come out once")
        return (yield from marks.encode(text + tail, tokenizer))

    def common(self, ids: Sequence[int]) -> int:
        """How many ids at the start the session has already."""
        for at, (mine, other) in enumerate(zip(self.ids, ids, strict=False)):
            if mine != other:
                return at
        return min(len(self.ids), len(ids))
