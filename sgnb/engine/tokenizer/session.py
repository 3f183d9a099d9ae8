"""A session as the tokenizer process knows it: pending text, the open turn, what waits behind a generation.

Tokenizer process; used by ``manager.py`` alone, on its one thread. Turns parts (text, marks, ids) into pending text and
pending text into ids: BOS, the default system turn and the assistant's stop token are decided here. It sends nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from sgnb.config import MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.pending import Pending
from sgnb.engine.tokenizer.tokenizer import AddedToken, ModelTokenizer
from sgnb.errors import LimitError, RequestError, SgnbError
from sgnb.messages import Commit, Decode, ErrorInfo, Extend, Fork, Ids, Mark, Part, Select, Text

EARLY_BYTES = 4096
"""Pending text beyond this is cut at a safe space and bound to the cached prefix."""
MAX_QUEUED_OPS = 16_384
MAX_RETOKENISED_BYTES = 64 << 20
"""Pending text is tokenised once with every option of a select."""

SessionOp = Extend | Decode | Select | Fork | Commit


@dataclass(slots=True)
class Session:
    """One session of one client."""

    sid: str
    client: int
    pending: Pending = field(default_factory=Pending)
    queue: deque[SessionOp] = field(default_factory=deque)
    """Ops that wait for the request in flight, in order."""
    running: str | None = None
    """Request in flight."""
    unborn: bool = False
    """Its fork waits in the parent's queue: its own ops wait for that."""
    closing: bool = False
    """Released, but a queued fork still needs what its requests give."""
    depth: int = 0
    """Forks above it."""
    started: bool = False
    """Ids were sent: BOS, dummy prefix and default system turn are not due any more."""
    chat: bool = False
    """The session opened with a turn."""
    role: str | None = None
    """Role of the open turn."""
    error: ErrorInfo | None = None
    """First cause; every later op fails with it."""
    size: int = 0
    """Bytes of prompt text accepted so far, queued ones included (an id counts 4)."""
    next_cut: int = EARLY_BYTES

    @property
    def busy(self) -> bool:
        """True while ops must wait."""
        return self.unborn or self.running is not None

    def become_copy(self, parent: Session) -> None:
        """What a fork gives: pending text, turn, first cause of an error. Ops that came meanwhile stay queued."""
        self.unborn = False
        self.pending = parent.pending.copy()
        self.started, self.chat, self.role = parent.started, parent.chat, parent.role
        self.next_cut = parent.next_cut
        self.error = self.error or parent.error
        self.size += parent.size

    def admit(self, op: Extend) -> None:
        """Count the op's text; LimitError beyond the prompt limit, RequestError for text that is not Unicode."""
        for part in op.parts:
            if isinstance(part, Text):
                try:
                    self.size += len(part.text.encode())
                except UnicodeEncodeError as error:
                    raise RequestError(
                        f"text is not valid Unicode: {error.reason} at character {error.start}",
                        code="bad_text",
                    ) from None
            elif isinstance(part, Ids):
                self.size += 4 * len(part.ids)
        if self.size > MAX_PROMPT_BYTES:
            raise LimitError(
                f"the prompt has {self.size} bytes, at most {MAX_PROMPT_BYTES} are allowed",
                hint="Send less text in one state.",
            )

    def extend(self, parts: list[Part], tokenizer: ModelTokenizer, vocab_size: int) -> None:
        """Append parts to the pending text. RequestError for a wrong role or a wrong id."""
        for part in parts:
            if isinstance(part, Text):
                # Inside a turn user text is always literal: it can never form a special token.
                self.pending.add_text(part.text, parse=not part.literal and self.role is None)
            elif isinstance(part, Mark):
                self._mark(part, tokenizer)
            else:
                wrong = next((i for i in part.ids if not 0 <= i < vocab_size), None)
                if wrong is not None:
                    raise RequestError(
                        f"input_ids holds {wrong}; legal ids are 0..{vocab_size - 1}", code="bad_ids"
                    )
                self.pending.add_ids(part.ids)

    def _mark(self, mark: Mark, tokenizer: ModelTokenizer) -> None:
        template = tokenizer.template
        role = template.role(mark.role)
        if role is None:
            if template.error:
                raise RequestError(template.error, code="template", hint="Use text without roles.")
            raise RequestError(
                f"the chat template of {tokenizer.name} has no role {mark.role!r}; it has {', '.join(template.roles)}",
                code="role",
            )
        if mark.begin:
            if self.role is not None:
                raise RequestError(
                    f"a turn of {mark.role!r} begins inside a turn of {self.role!r}",
                    code="role",
                    hint="End the first turn before the next one begins.",
                )
            if not self.started and not self.pending:
                self.chat = True
                if mark.role != "system":
                    self.pending.add_text(template.default_system, parse=True)
            self.pending.add_text(role.prefix, parse=True)
            self.role = mark.role
            return
        if self.role != mark.role:
            raise RequestError(f"a turn of {mark.role!r} ends, but {self.role!r} is open", code="role")
        self.pending.add_text(role.suffix, parse=True)
        self.role = None

    def take_stable(self, tokenizer: ModelTokenizer) -> list[int]:
        """Ids of long pending text up to the last safe space; empty when it is short or cannot be cut."""
        if self.pending.size <= self.next_cut:
            return []
        return self.settle(tokenizer)

    def settle(self, tokenizer: ModelTokenizer) -> list[int]:
        """Ids of pending text up to the last safe space, however short it is; may be empty."""
        ids = self._take(tokenizer, stable=True)
        # Text that could not be cut is tried again when it has doubled, not at every op.
        self.next_cut = EARLY_BYTES + self.pending.size * (1 if ids else 2)
        return ids

    def take(self, tokenizer: ModelTokenizer) -> list[int]:
        """Ids of all that is pending, for a generation.

        An empty prompt starts from BOS, or from the model's first EOS token where it has no BOS; a model with neither
        refuses it (RequestError ``empty_prompt``).
        """
        ids = self._take(tokenizer, stable=False)
        self.next_cut = EARLY_BYTES
        if not ids and not self.started:
            ids = tokenizer.start_ids
            if not ids:
                raise RequestError(
                    f"the prompt is empty, and {tokenizer.name} has no token to start from",
                    code="empty_prompt",
                    hint="Put some text before the generation.",
                )
            self.started = True
        return ids

    def take_options(
        self, options: list[str], tokenizer: ModelTokenizer
    ) -> tuple[list[int], list[int], list[list[int]]]:
        """(settled ids, ids that all options begin with, the rest of each), every option tokenised with what is pending.

        The settled ones are taken; the rest stays pending until the winner is known (``end_options``). A prompt that leaves
        nothing before the first scored token starts as an empty one does.
        """
        settled = self.settle(tokenizer) if self.pending else []
        if self.pending.size * len(options) > MAX_RETOKENISED_BYTES:
            raise LimitError(
                f"{len(options)} options after {self.pending.size} bytes of text that cannot be cut are too much",
                hint="Put a space, a generation or a turn before the select, or give fewer options.",
            )
        whole = []
        for option in options:
            trial = replace(self, pending=self.pending.copy(), queue=deque())
            trial.pending.add_text(option, parse=self.role is None)
            whole.append(trial._take(tokenizer, stable=False))
        common = _common_length(whole)
        if not self.started and common - (common == min(map(len, whole))) <= 0:
            if not tokenizer.start_ids:
                raise RequestError(
                    f"the prompt is empty, and {tokenizer.name} has no token to start from",
                    code="empty_prompt",
                    hint="Put some text before the select.",
                )
            return settled, [*tokenizer.start_ids, *whole[0][:common]], [ids[common:] for ids in whole]
        return settled, whole[0][:common], [ids[common:] for ids in whole]

    def end_options(self) -> None:
        """There is a winner: what was pending is part of the session's ids now."""
        self.pending = Pending()
        self.started = True
        self.next_cut = EARLY_BYTES

    def _take(self, tokenizer: ModelTokenizer, *, stable: bool) -> list[int]:
        first = not self.started
        raw = self.pending.opens_with_ids()
        take = self.pending.take_stable if stable else self.pending.take
        ids = take(tokenizer, first=first and not raw)
        if first and ids:
            self.started = True
            # Exactly one BOS: ours, unless the text already begins with it; a template's own counts as text would.
            opens = self.chat and tokenizer.template.opens_with_bos
            bos = tokenizer.bos_id if opens else tokenizer.bos
            if bos is not None and not raw and ids[0] != bos:
                ids = [bos, *ids]
        return ids

    def stop_ids(self, tokenizer: ModelTokenizer) -> list[int]:
        """Token ids that end a generation of the model's own accord: EOS, and in an assistant turn the first special
        token that the template puts after it."""
        ids = list(tokenizer.eos_token_ids)
        role = tokenizer.template.role("assistant") if self.role == "assistant" else None
        for part in tokenizer.split_added(role.suffix) if role else ():
            if isinstance(part, AddedToken) and part.special:
                if part.id not in ids:
                    ids.append(part.id)
                break
        return ids


def _common_length(rows: list[list[int]]) -> int:
    """How many ids all rows begin with. The extremes in order differ first, if any two do."""
    low, high = min(rows), max(rows)
    return next(
        (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high))
    )


def error_info(fault: BaseException) -> ErrorInfo:
    """An exception as it crosses to the notebook."""
    if isinstance(fault, RequestError):
        return ErrorInfo(kind="RequestError", message=fault.message, code=fault.code, hint=fault.hint)
    if isinstance(fault, SgnbError):
        code = "limit" if isinstance(fault, LimitError) else "error"
        return ErrorInfo(kind=type(fault).__name__, message=fault.message, code=code, hint=fault.hint)
    return ErrorInfo(kind="RequestError", message=f"{type(fault).__name__}: {fault}", code="internal")
