"""A session as the tokenizer process knows it: pending text, the open turn, what waits behind a generation.

Tokenizer process; used by ``manager``, ``queues`` and ``sender``, on their one thread. Turns parts (text, marks, ids)
into pending text and pending text into ids: BOS, the default system turn and the assistant's stop token are decided
here. Where the chat template is not exact, the whole conversation is kept beside the pending text, and a prompt is what
the template makes of it; the pending text is for what it cannot render. It sends nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from sgnb.config import MAX_PROMPT_BYTES
from sgnb.engine.tokenizer.beginning import Beginning
from sgnb.engine.tokenizer.borders import PIECE_CHARS
from sgnb.engine.tokenizer.chat_template import TemplateFault
from sgnb.engine.tokenizer.conversation import Conversation, Render
from sgnb.engine.tokenizer.pending import Pending
from sgnb.engine.tokenizer.prompt_text import MAX_TOLD
from sgnb.engine.tokenizer.steps import Job, Steps
from sgnb.engine.tokenizer.tokenizer import AddedToken, ModelTokenizer
from sgnb.errors import LimitError, RequestError, SgnbError
from sgnb.messages import (
    Commit,
    Decode,
    ErrorInfo,
    Extend,
    Fork,
    ForkBase,
    Ids,
    Join,
    Mark,
    Part,
    Select,
    Text,
)

EARLY_BYTES = 4096
"""Pending text beyond this is cut at a safe space and bound to the cached prefix."""
MAX_QUEUED_OPS = 16_384
MAX_RETOKENISED_BYTES = 64 << 20
"""Pending text is tokenised once with every option of a select."""
BLANK_NOTE = (
    "The prompt ends with a space; most tokens begin with theirs, so the model continues worse. "
    "Leave out the space before the generation."
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a generation starts from: ids to append after a cut to ``keep`` (None: no cut), and notes for the user."""

    ids: list[int]
    keep: int | None = None
    notes: tuple[str, ...] = ()


SessionOp = Extend | Decode | Select | Fork | Commit | Join


@dataclass(frozen=True, slots=True)
class Options:
    """A select's prompt (as ``Prompt``, what all options begin with) and the rest of each option."""

    ids: list[int]
    rests: list[list[int]]
    keep: int | None = None


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
    job: Job | None = None
    """The op whose text is being encoded; later ones wait in the queue."""
    encoding: Decode | Select | Fork | Join | None = None
    """That op, if it is more than text."""
    options: Options | None = None
    """Of the select in flight: what becomes of the session with its winner."""
    unborn: bool = False
    """Its fork waits in the parent's queue: its own ops wait for that."""
    closing: bool = False
    """Released, but a queued fork still needs what its requests give."""
    awaited_by: str | None = None
    """The session that will be joined with this one."""
    awaiting: bool = False
    """A join waits for its branches."""
    beginning: Beginning | None = None
    """Of a branch."""
    depth: int = 0
    """Forks above it."""
    conversation: Conversation | None = None
    """Only where the chat template is not exact, and until something came that it cannot render."""
    blank_end: bool = False
    """The program's last text ends with a space, and nothing came after it."""
    notes: list[str] = field(default_factory=list)
    started: bool = False
    """Ids were sent: BOS, dummy prefix and default system turn are not due any more."""
    chat: bool = False
    """The session opened with a turn."""
    role: str | None = None
    """Role of the open turn."""
    error: ErrorInfo | None = None
    """First cause; every later op fails with it."""
    fresh: list[int] = field(default_factory=list)
    """Prompt ids that were sent since its last request: ``prompt_text``. Replaced, never changed: copies share it."""
    size: int = 0
    """Bytes of prompt text accepted so far, queued ones included (an id counts 4)."""
    next_cut: int = EARLY_BYTES

    @property
    def busy(self) -> bool:
        """True while ops must wait."""
        return self.unborn or self.awaiting or self.running is not None or self.job is not None

    def become_copy(self, parent: Session, base: ForkBase = "new") -> None:
        """What a fork gives: pending text, turns, first cause of an error. Ops that came meanwhile stay queued."""
        self.unborn = False
        self.pending = parent.pending.copy()
        if base == "new":
            self.beginning = Beginning(parent.pending.copy(), parent.size, started=parent.started)
        elif base == "same" and parent.beginning is not None:
            self.beginning = parent.beginning.copy()
        self.conversation = parent.conversation.copy() if parent.conversation is not None else None
        self.blank_end, self.notes = parent.blank_end, parent.notes.copy()
        self.started, self.chat, self.role = parent.started, parent.chat, parent.role
        self.next_cut, self.fresh = parent.next_cut, parent.fresh
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
            self.blank_end = self.blank_end and isinstance(part, Text)
            if isinstance(part, Text):
                # Inside a turn user text is always literal: it can never form a special token.
                self._add_text(part.text, parse=not part.literal and self.role is None)
                self.blank_end = part.text.endswith(" ") if part.text else self.blank_end
                if self.conversation is not None:
                    self.conversation.add_text(part.text)
            elif isinstance(part, Mark):
                self._mark(part, tokenizer)
            else:
                wrong = next((i for i in part.ids if not 0 <= i < vocab_size), None)
                if wrong is not None:
                    raise RequestError(
                        f"input_ids holds {wrong}; legal ids are 0..{vocab_size - 1}", code="bad_ids"
                    )
                self.pending.add_ids(part.ids)
                if self.beginning is not None:
                    self.beginning.add_ids(part.ids)
                if self.conversation is not None and part.ids:
                    self.conversation.lost = True

    def _add_text(self, text: str, *, parse: bool) -> None:
        self.pending.add_text(text, parse=parse)
        if self.beginning is not None:
            self.beginning.add_text(text, parse=parse)

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
                    self._add_text(template.default_system, parse=True)
            self._add_text(role.prefix, parse=True)
            self.role = mark.role
            if self.conversation is not None:
                self.conversation.begin(mark.role)
            return
        if self.role != mark.role:
            raise RequestError(f"a turn of {mark.role!r} ends, but {self.role!r} is open", code="role")
        self._add_text(role.suffix, parse=True)
        self.role = None
        if self.conversation is not None:
            self.conversation.end()

    def take_stable(self, tokenizer: ModelTokenizer) -> Steps[list[int]]:
        """Ids of long pending text up to the last safe space; empty when it is short or cannot be cut."""
        if self.pending.size <= self.next_cut or self.renders:
            return []
        return (yield from self.settle(tokenizer))

    def settle(self, tokenizer: ModelTokenizer) -> Steps[list[int]]:
        """Ids of pending text up to the last safe space, however short it is; empty where nothing can be cut, and for a
        conversation that is rendered whole."""
        if not self.pending or self.renders:
            return []
        ids = yield from self._take(tokenizer, stable=True)
        # Text that could not be cut is tried again when it has doubled, not at every op.
        self.next_cut = EARLY_BYTES + self.pending.size * (1 if ids else 2)
        return ids

    def cost(self, op: SessionOp) -> int:
        """About how many bytes this op has encoded now."""
        if isinstance(op, Select):
            return (self.pending.size + 16) * len(op.options)
        if isinstance(op, Fork | Commit | Join):
            return self.pending.size
        return self.pending.size if isinstance(op, Decode) or self.pending.size > self.next_cut else 0

    def cancelled(self) -> None:
        """An encoding was ended between its pieces: its text stays pending, and is not tried again at every op."""
        self.job = self.encoding = None
        self.next_cut = EARLY_BYTES + 2 * self.pending.size

    def prompt(self, tokenizer: ModelTokenizer, render: Render) -> Steps[Prompt]:
        """What the next generation starts from; nothing stays pending. RequestError as ``take``."""
        found: Prompt | None = None
        if self.conversation is not None and self.conversation.lost and self.conversation.turns:
            self.conversation = None
            self.notes.append(
                f"The chat template of {tokenizer.name} has no place for text outside of turns; from here on this "
                "conversation is put together from the template's prefixes and suffixes."
            )
        if self.renders:
            found = yield from self._rendered(tokenizer, render)
        if found is None:
            found = Prompt((yield from self.take(tokenizer)))
        if self.conversation is not None:
            self.conversation.sent(found.ids, found.keep)
        self._generates()
        notes = (*self.notes, BLANK_NOTE) if self.blank_end else tuple(self.notes)
        self.notes.clear()
        self.blank_end = False
        return Prompt(found.ids, found.keep, notes)

    def sends(self, ids: list[int]) -> None:
        """These ids of the prompt go to the scheduler, ahead of a request."""
        if len(self.fresh) <= MAX_TOLD:  # else it is too long to be told anyway
            self.fresh = [*self.fresh, *ids]

    def take_fresh(self, ids: list[int], keep: int | None) -> list[int]:
        """A request begins with ``ids``: all that was not told of its prompt. After a cut to ``keep`` only these."""
        fresh, self.fresh = (ids if keep is not None else [*self.fresh, *ids]), []
        return fresh

    def _generates(self) -> None:
        """What comes now is not the program's text any more."""
        if self.beginning is not None:
            self.beginning.open = False

    def take_rest(self, tokenizer: ModelTokenizer) -> Steps[list[int]]:
        """Ids of all that is pending, if anything is."""
        return (yield from self._take(tokenizer, stable=False)) if self.pending else []

    def append_branches(self, branches: Sequence[Session]) -> None:
        """Branches were joined by their ids: nothing is pending, and the last one's turn goes on here."""
        for branch in branches:
            assert branch.beginning is not None, "only branches are joined"
            self.size += branch.size - branch.beginning.size
            self.role, self.blank_end, self.chat = branch.role, branch.blank_end, self.chat or branch.chat
            if self.beginning is not None:
                self.beginning.open = False
        self.started, self.conversation, self.fresh = True, None, []

    @property
    def renders(self) -> bool:
        """True when the prompt is what the template makes of the whole conversation."""
        return self.conversation is not None and not self.conversation.lost and bool(self.conversation.turns)

    def _rendered(self, tokenizer: ModelTokenizer, render: Render) -> Steps[Prompt | None]:
        """The whole conversation's prompt after the ids it has in common with the session; None, with a note, if the
        template fails."""
        assert self.conversation is not None
        try:
            ids = yield from self.conversation.prompt(tokenizer, render)
        except TemplateFault as fault:
            self.notes.append(
                f"The chat template of {tokenizer.name} does not render this conversation ({fault}); "
                "what is new of it is put together from the template's prefixes and suffixes."
            )
            return None
        if not ids:
            return None
        if tokenizer.bos is not None and ids[0] != tokenizer.bos:
            ids = [tokenizer.bos, *ids]
        common = self.conversation.common(ids)
        self.pending.clear()
        self.started = True
        return Prompt(ids[common:], common if common < len(self.conversation.ids) else None)

    def take_options(self, options: list[str], tokenizer: ModelTokenizer, render: Render) -> Steps[Options]:
        """Every option tokenised with what is pending, and what all begin with. Nothing is taken: the text stays pending
        until there is a winner (``end_options``).

        A prompt that leaves nothing before the first scored token starts as an empty one does. After a prompt that a
        template has rendered, options are tokenised by themselves.
        """
        if self.pending.size * len(options) > MAX_RETOKENISED_BYTES:
            raise LimitError(
                f"{len(options)} options after {self.pending.size} bytes of text that cannot be cut are too much",
                hint="Put a space, a generation or a turn before the select, or give fewer options.",
            )
        base = replace(self, pending=self.pending.copy(), queue=deque(), notes=[], job=None, beginning=None)
        rendered: Prompt | None = None
        if self.renders:
            rendered = yield from base._rendered(tokenizer, render)
        whole, spent = [], 0
        for option in options:
            trial = replace(base, pending=base.pending.copy())
            trial.pending.add_text(option, parse=self.role is None)
            whole.append((yield from trial._take(tokenizer, stable=False)))
            spent += base.pending.size + len(option)
            if spent > PIECE_CHARS:
                spent = 0
                yield None
        common = _common_length(whole)
        before = rendered.ids if rendered is not None else []
        if not base.started and common - (common == min(map(len, whole))) <= 0:
            before = tokenizer.start_ids
            if not before:
                raise RequestError(
                    f"the prompt is empty, and {tokenizer.name} has no token to start from",
                    code="empty_prompt",
                    hint="Put some text before the select.",
                )
        keep = rendered.keep if rendered is not None else None
        return Options([*before, *whole[0][:common]], [ids[common:] for ids in whole], keep)

    def end_options(self, index: int, text: str) -> None:
        """The select in flight chose this option: it and what was pending are part of the session's ids now."""
        assert self.options is not None
        self.pending.clear()
        if self.beginning is not None:
            self.beginning.add_text(text, parse=False)
            self.beginning.taken([*self.options.ids, *self.options.rests[index]])
        self.started, self.blank_end = True, False
        self.next_cut = EARLY_BYTES
        if self.conversation is not None:
            self.conversation.sent([*self.options.ids, *self.options.rests[index]], self.options.keep)
            self.conversation.add_text(text)

    def sampled(self, ids: list[int]) -> None:
        """Output of the generation in flight."""
        if self.conversation is not None:
            self.conversation.sampled(ids)

    def finished(self, kept: int, leftover: str, tokenizer: ModelTokenizer) -> None:
        """The generation has ended with so many tokens kept; ``leftover``: kept characters that no kept token covers."""
        self.running = self.options = None
        # Model text, so always literal.
        self.pending.add_text(leftover, parse=False)
        if self.conversation is not None:
            self.conversation.finished(kept, leftover, tokenizer)

    def take(self, tokenizer: ModelTokenizer) -> Steps[list[int]]:
        """Ids of all that is pending.

        An empty prompt starts from BOS, or from the model's first EOS token where it has no BOS; a model with neither
        refuses it (RequestError ``empty_prompt``).
        """
        ids = yield from self._take(tokenizer, stable=False)
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

    def _take(self, tokenizer: ModelTokenizer, *, stable: bool) -> Steps[list[int]]:
        first = not self.started
        raw = self.pending.opens_with_ids()
        take = self.pending.take_stable if stable else self.pending.take
        ids = yield from take(tokenizer, first=first and not raw)
        if first and ids:
            self.started = True
            # Exactly one BOS: ours, unless the text already begins with it; a template's own counts as text would.
            opens = self.chat and tokenizer.template.opens_with_bos
            bos = tokenizer.bos_id if opens else tokenizer.bos
            if bos is not None and not raw and ids[0] != bos:
                ids = [bos, *ids]
        if self.beginning is not None:
            self.beginning.taken(ids)
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
