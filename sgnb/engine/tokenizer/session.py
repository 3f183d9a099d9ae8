"""A session as the tokenizer process knows it: pending text, the open turn, what waits behind a generation.

Tokenizer process; used by ``manager.py`` alone, on its one thread. Turns parts (text, marks, ids) into pending text and
pending text into ids: BOS, the default system turn and the assistant's stop token are decided here. It sends nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sgnb.config import MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.pending import Pending
from sgnb.engine.tokenizer.tokenizer import AddedToken, ModelTokenizer
from sgnb.errors import LimitError, RequestError, SgnbError
from sgnb.messages import Decode, ErrorInfo, Extend, Ids, Mark, Part, Text

EARLY_BYTES = 4096
"""Pending text beyond this is cut at a safe space and bound to the cached prefix."""
MAX_QUEUED_OPS = 16_384


@dataclass(slots=True)
class Session:
    """One session of one client."""

    sid: str
    client: int
    pending: Pending = field(default_factory=Pending)
    queue: deque[Extend | Decode] = field(default_factory=deque)
    """Ops that wait for the generation in flight, in order."""
    running: str | None = None
    """Request in flight."""
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


def error_info(fault: BaseException) -> ErrorInfo:
    """An exception as it crosses to the notebook."""
    if isinstance(fault, RequestError):
        return ErrorInfo(kind="RequestError", message=fault.message, code=fault.code, hint=fault.hint)
    if isinstance(fault, SgnbError):
        code = "limit" if isinstance(fault, LimitError) else "error"
        return ErrorInfo(kind=type(fault).__name__, message=fault.message, code=code, hint=fault.hint)
    return ErrorInfo(kind="RequestError", message=f"{type(fault).__name__}: {fault}", code="internal")
