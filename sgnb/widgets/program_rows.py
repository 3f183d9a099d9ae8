"""What the program view is made of: rows, their text, the cost of each generation, and the branches they stand in.

Notebook process; filled by ``widgets.fold``, read by ``widgets.fold_data`` (live) and ``widgets.static``. Plain data with
the words that need nothing else. No events, no HTML, no clocks.
"""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sgnb.errors import SgnbError
from sgnb.lang.position import CELL_PREFIX
from sgnb.messages import PromptText
from sgnb.widgets import words
from sgnb.widgets.prompt_tokens import TextTokens, find_texts

MAX_TOKENS = 20_000
"""Tokens of a segment whose details are kept; later ones are text only."""
SHOWN_OPTIONS = 12
"""Choices of a select that are shown; of the others their number."""
GOOD_REUSE = 0.9
"""Below this share of a prompt the view offers to say why not more was reused."""
NOT_NEW = frozenset({"evicted", "flushed", "logprobs", "namespace", "retokenized"})
"""Causes of a miss that are told however little was computed: that text had been there."""
NOT_RUN = "not run"
FORCED, GRAMMAR = 1, 2


@dataclass(slots=True)
class Segment:
    """A stretch of prompt text (``model`` False) or of one generation; ``hidden`` characters are over the cap."""

    model: bool
    name: str = ""
    parts: list[str] = field(default_factory=list)
    sent: int = 0
    hidden: int = 0
    hidden_bytes: int = 0
    prompt: TextTokens | None = None
    """Of prompt text: which tokens of a prompt it is; of several prompts, that of the one that reused least of it."""
    tokens: list[Any] = field(default_factory=list)
    """``backends.base.TokenInfo`` of each token, where log-probabilities were asked for."""
    marks: list[float] = field(default_factory=list)
    """Three numbers a token: UTF-16 units of text, probability (-1: unknown), flags FORCED and GRAMMAR."""
    sent_marks: int = 0
    _decoder: Any = None

    def text(self) -> str:
        """All of it."""
        if len(self.parts) > 1 and self.sent in (
            0,
            len(self.parts),
        ):  # what was sent stays apart from what was not
            self.parts[:] = ["".join(self.parts)]
            self.sent = min(self.sent, 1)
        return "".join(self.parts)

    def add_tokens(self, tokens: Iterable[Any]) -> None:
        """Keep the details of tokens, and how much of the text each made."""
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        for token in tokens:
            if len(self.tokens) >= MAX_TOKENS:
                return
            made = self._decoder.decode(token.raw)
            units = len(made) + sum(ord(char) > 0xFFFF for char in made)
            chance = -1.0 if token.logprob is None else round(math.exp(min(0.0, token.logprob)), 3)
            self.tokens.append(token)
            self.marks += (units, chance, FORCED * token.forced + GRAMMAR * (token.allowed > 0))


@dataclass(slots=True)
class Cost:
    """What one generation costs. Counts in tokens, time in seconds; ``state`` in queued, running, done, failed."""

    name: str
    limit: int
    rid: str = ""
    state: str = "queued"
    held: bool = False
    """It is not with the engine yet: KV is short."""
    prompt: int | None = None
    cached: int = 0
    miss: str = ""
    """Why no more of the prompt was reused: ``messages.Match.cause``."""
    tokens: int = 0
    forced: int = 0
    seconds: float | None = None
    asked: float = 0.0
    """When it was queued, by the log's clock."""
    first_step: int = -1
    last_step: int = -1
    reason: dict[str, Any] = field(default_factory=dict)
    shape: str = ""
    """What its output must be, in words."""
    texts: list[Segment] = field(default_factory=list)
    """Prompt texts of its state that no generation before it has read."""
    shared: str = ""
    """The request whose result it takes, where a pass found them equal: it computed nothing of its own."""
    shared_with: str = ""
    """That one in words: ``branch 0``, or its variable."""
    after: str = ""
    """The generation before it in the same state that had not ended when it was queued."""
    options: tuple[str, ...] = ()
    """Of a choice."""
    winner: int = -1
    shares: list[float] = field(default_factory=list)
    """Each option's share of the probability of all."""
    method: str = ""
    """How the choice is made, by its name."""
    scores: list[float] = field(default_factory=list)
    first: float = 0.0
    """When its first text came, by the log's clock."""
    last: float = 0.0

    def read(self, told: PromptText) -> list[Segment]:
        """Take what the engine told of its prompt; returns the texts of which more is known now."""
        texts = [(text.text(), text.hidden_bytes) for text in self.texts]
        changed = []
        for segment, tokens in zip(self.texts, find_texts(told, self.rid, self.cached, texts), strict=True):
            if tokens and (segment.prompt is None or tokens.cached < segment.prompt.cached):
                segment.prompt = tokens
                changed.append(segment)
        return changed

    @property
    def chosen(self) -> str:
        """``= high (0.91)``: the winner with its share, once there is one."""
        if not 0 <= self.winner < len(self.options):
            return ""
        share = f" ({self.shares[self.winner]:.2f})" if self.shares else ""
        return f"= {option_words(self.options[self.winner])}{share}"

    @property
    def queued(self) -> str:
        """Why it does not run yet, as far as the run knows."""
        return "queued, short of KV" if self.held else "queued"

    def took(self) -> str:
        """How long it took, or nothing while that is not known."""
        return "" if self.seconds is None else words.duration(self.seconds)

    def end(self, state: str, reason: str, now: float) -> None:
        """It has ended and its backend tells no more of it: as long as it took is counted here."""
        self.state, self.reason = state, {"type": reason}
        self.seconds = None if reason == NOT_RUN else max(0.0, now - self.asked)

    def parts(self, *, times: bool, stopped: bool, chosen: bool = True) -> list[str]:
        """The cost line's words after the bar, without the variable's name. ``chosen``: with the winner of a choice."""
        if self.state == "queued":
            return [f"starts when {words.visible(self.after)} ends"] if self.after else [self.queued]
        if self.reason.get("type") == NOT_RUN:
            return [NOT_RUN]
        if self.options and self.state == "running":
            return [scoring_words(self.options)]
        if self.state == "running":
            return [f"{words.count(self.tokens)} of ≤{words.THIN}{words.count(self.limit)} tok"]
        took = [self.took()] if times and self.seconds is not None else []
        if self.options and self.winner >= 0:
            return [*([self.chosen] if chosen else []), *took]
        if self.shared:
            took = [f"shared with {self.shared_with}, computed once"]
        forced = f", {words.count(self.forced)} forced" if self.forced else ""
        counted = [] if self.options else [f"{words.count(self.tokens)} tok{forced}"]
        return [*counted, *took, words.stop_words(self.reason, stopped=stopped, shape=self.shape)]

    def reuse(self) -> str:
        """``20 of 31 tokens reused``, or nothing while it is not known."""
        return "" if self.prompt is None else words.reuse_words(self.cached, self.prompt)

    def why(self) -> str:
        """``Why not 476?`` where much of the prompt was computed, or some of it for another reason than that it is new."""
        if (
            not self.prompt
            or self.state == "running"
            or (self.cached >= GOOD_REUSE * self.prompt and self.miss not in NOT_NEW)
        ):
            return ""
        return f"Why not {words.count(self.prompt)}?"

    def score(self, winner: int, scores: Any) -> None:
        """Take which option won, and the mean log-probability of each where it is known."""
        self.winner = winner if 0 <= winner < len(self.options) else -1
        self.scores, self.shares = [], []
        if isinstance(scores, list) and len(scores) == len(self.options):
            self.scores = [float(score) for score in scores]
            highest = max(self.scores)
            weights = [math.exp(score - highest) for score in self.scores]
            self.shares = [weight / sum(weights) for weight in weights]

    def shown_options(self) -> list[tuple[int, str, str]]:
        """``(place, text, share)`` of the options that are shown: the first twelve, and the winner."""
        places = list(range(min(SHOWN_OPTIONS, len(self.options))))
        if self.winner >= SHOWN_OPTIONS:
            places[-1] = self.winner
        return [
            (place, option_words(self.options[place]), f"{self.shares[place]:.2f}" if self.shares else "")
            for place in places
        ]

    def more_options(self) -> str:
        """``88 more choices``, or nothing."""
        rest = len(self.options) - SHOWN_OPTIONS
        return f"{words.count(rest)} more choice{'' if rest == 1 else 's'}" if rest > 0 else ""

    def rate(self) -> int:
        """Tokens a second since its first text; 0 while that says nothing."""
        spent = self.last - self.first
        return round(self.tokens / spent) if spent > 0.1 else 0


def error_lines(error: BaseException) -> tuple[list[str], int]:
    """An error as shown, and its line of the cell (0: not known); of Python's own the traceback knows it."""
    if isinstance(error, SgnbError):
        return [words.visible(line) for line in error.lines()], 0
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename.startswith(CELL_PREFIX):
            line = trace.tb_lineno
        trace = trace.tb_next
    place = f"Line {line}: " if line else ""
    return [words.visible(f"{place}{type(error).__name__}: {error}")], line


def option_words(option: str) -> str:
    """An option as it is shown: in quotes where blanks at its ends would not be seen."""
    return words.quoted(option, len(option)) if option.strip() != option else words.visible(option)


def scoring_words(options: Sequence[str]) -> str:
    """``scoring 3 choices``."""
    return f"scoring {words.count(len(options))} choice{'' if len(options) == 1 else 's'}"


@dataclass(slots=True)
class Row:
    """One turn, one stretch outside of turns, a fork, a join, a note or an error. ``state`` in ok, failed; ``kind`` in turn,
    fork, join, note, error. ``lane``: where it stands, by number; ``arms``: the lanes of a fork.
    """

    role: str = ""
    branch: str = ""
    line: int = 0
    kind: str = "turn"
    state: str = "ok"
    lane: int = 0
    segments: list[Segment] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    error: list[str] = field(default_factory=list)
    arms: list[int] = field(default_factory=list)
    joined: list[Lane] = field(default_factory=list)
    """Of a join: the branches, as far as they are of this run; ``count``: how many they are."""
    count: int = 0
    began: float = 0.0
    """Of a fork, and of its join: when it was forked, by the log's clock."""

    def waits(self) -> tuple[str, ...]:
        """Of a join: names of the branches that have something under way."""
        return tuple(lane.name for lane in self.joined if lane.under_way)

    def join_words(self, *, times: bool) -> str:
        """``3 branches, 0.52 s``, from the fork until the last of them ended; while some go on ``waiting for branch 1``."""
        if waits := self.waits():
            return words.waiting(waits)
        ended = max((lane.ended for lane in self.joined), default=0.0)
        took = f", {words.duration(ended - self.began)}" if times and ended > self.began > 0 else ""
        return f"{words.count(self.count)} branch{'' if self.count == 1 else 'es'}{took}"

    def prompt_tokens(self) -> tuple[int, int] | None:
        """``(reused, all)`` tokens of a row that is prompt text alone; None while they are not known."""
        texts = [segment for segment in self.segments if segment.parts]
        if self.costs or self.kind != "turn" or not texts:
            return None
        known = [segment.prompt for segment in texts if segment.prompt is not None]
        if len(known) < len(texts):
            return None
        return sum(one.cached for one in known), sum(one.count for one in known)


@dataclass(slots=True)
class Lane:
    """A state's rows: the root, or a branch. ``fork``: the row of the fork it came of, -1 for a root."""

    number: int
    name: str = ""
    parent: int = -1
    fork: int = -1
    costs: list[Cost] = field(default_factory=list)
    failed: bool = False
    under_way: int = 0
    """Generations of it, and of branches inside it, that have not ended."""
    ended: float = 0.0
    """When the last of them did, by the log's clock."""

    def words(self, *, ended: str, times: bool) -> tuple[str, str]:
        """Its state as a key (waiting, running, done, stopped, failed) and in words. ``ended``: how the run did, if so."""
        if self.failed or any(cost.state == "failed" for cost in self.costs):
            return "failed", "failed"
        for cost in self.costs:
            if cost.state != "running":
                continue
            if cost.options:
                return "running", scoring_words(cost.options)
            rate = cost.rate() if times else 0
            return "running", f"decoding, {words.count(rate)} tok/s" if rate else "decoding"
        if any(cost.state == "queued" for cost in self.costs):
            return "waiting", next(cost.queued for cost in self.costs if cost.state == "queued")
        if any(cost.reason.get("type") == "abort" for cost in self.costs):
            return "stopped", "stopped" if ended == "stopped" else "aborted"
        if self.costs and all(cost.reason.get("type") == NOT_RUN for cost in self.costs):
            return "stopped", NOT_RUN
        if not self.costs and ended in ("failed", "stopped"):  # before this branch asked for anything
            return "stopped", NOT_RUN
        return ("done", "done") if self.costs or ended else ("waiting", "")

    def over(self) -> bool:
        """True when nothing of it is under way and something was."""
        return bool(self.costs) and all(cost.state in ("done", "failed") for cost in self.costs)

    def values(self) -> list[list[str]]:
        """``[name, value, share]`` of its choices."""
        return [
            [
                words.visible(cost.name),
                option_words(cost.options[cost.winner]),
                f"{cost.shares[cost.winner]:.2f}" if cost.shares else "",
            ]
            for cost in self.costs
            if 0 <= cost.winner < len(cost.options)
        ]
