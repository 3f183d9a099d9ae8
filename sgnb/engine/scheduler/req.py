"""A request: one generation on its way through the scheduler.

Role: what is asked, what came out so far, and the one place where it ends. Scheduler process; made by ``Scheduler`` from a
``SessionDecode``. Moves no slots itself (``ReqKV`` does) and sends nothing (``OutputBuilder`` does).

    (COMPILING, while its grammar is not ready; then)
    WAITING ──admitted──► PREFILL ──last chunk──► RUNNING (a select: SCORING) ──finish()──► FINISHED
       ▲                     │ retracted             │ retracted
       └─────────────────────┴───────────────────────┘          finish() is legal in every state, once

Lengths, in tokens::

    0 …… cached …… committed …… len(kv.slots) ……… len(prompt) ……… total_len
    │ reused │ computed │ in the step that runs now │                  the last output token has no KV yet
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Literal

import numpy as np

from sgnb.engine.grammar.base import GrammarState
from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.mem_cache.req_kv import ReqKV
from sgnb.engine.scheduler.joint import Joined, keys_of
from sgnb.engine.scheduler.session import Session
from sgnb.engine.scheduler.stop import StopHit, StopScanner
from sgnb.messages import FROM_PREVIOUS, Finish, Match, SessionDecode, TokenLogprob

if TYPE_CHECKING:
    from sgnb.engine.scheduler.select import Selection


Part = Literal["queue", "prefill", "decode"]


class ReqState(Enum):
    """Where a request is. The values are what people read in ``requests``."""

    COMPILING = "compiling"
    WAITING = "waiting"
    PREFILL = "prefill"
    RUNNING = "running"
    SCORING = "scoring"
    FINISHED = "finished"


class Req:
    """One generation. ``ordinal`` is its place in the order of arrival; times are seconds of the scheduler's clock.

    Two kinds draw nothing: one with a ``selection`` scores options after its prompt, and a ``background`` one only computes
    its prompt (nobody waits for it, nothing is told).
    """

    # Where it is
    state = ReqState.WAITING
    finish_reason: Finish | None = None
    row = -1
    """``req_pool_idx``: its row in the runner's table while it holds one."""
    stint = 0
    """Counts the rows it gave up: results of a step that was launched in an earlier stint are not its own any more."""
    pending = 0
    """Tokens that are being drawn by steps whose results are not known yet."""
    committed = 0
    """Tokens whose KV is computed by a step that was processed; what lies beyond never enters the tree."""
    grammar: GrammarState | None = None
    """Its place in its grammar, from when that is compiled."""

    # What the cache and joins gave it
    cached_tokens = 0
    cut_tokens = 0
    """Ids of its session that its prompt replaced."""
    match: Match | None = None
    """What the cache had of it when it was admitted last."""
    lost = 0
    """Of what its session had computed, tokens that were gone when it was first admitted."""
    joined_tokens = 0
    """Tokens whose KV it copied."""
    approximate = False
    """Some of what it drew comes after copied KV."""

    # How it fared in the queue
    overtaken = 0
    """Later requests that were admitted before it."""
    leader = ""
    """The request whose prefix this one waited for last, since ``leader_since``."""
    leader_since = 0.0
    slice = 0
    """Tokens drawn since it was admitted last."""
    turns = 0
    """Time slices it has had."""
    retractions = 0
    peeked = (-1, 0, 0)
    """Memo of the policy: tree epoch, length asked, length matched."""

    # What was told, and when
    sent_ids = 0
    told_start = False
    told_waits = False
    """What was told last is that it is back in the queue."""
    time_admitted: float | None = None
    drew = False
    """Its first token is known (a select: its winner)."""
    first_step = -1
    last_step = -1

    _fill: IntArray | None = None
    _fill_keys: IntArray | None = None
    _prompt_keys: IntArray | None = None

    def __init__(
        self,
        msg: SessionDecode,
        session: Session | None,
        kv: ReqKV,
        *,
        ordinal: int,
        random_seed: int,
        now: float,
        selection: Selection | None = None,
        background: bool = False,
        joined: list[Joined] | None = None,
    ) -> None:
        self.rid, self.client, self.label, self.priority = msg.rid, msg.client, msg.label, msg.priority
        self.session, self.kv = session, kv
        self.ordinal, self.time_received = ordinal, now
        self.spent = {"queue": 0.0, "prefill": 0.0, "decode": 0.0}
        """Seconds in each part of its life, up to ``part_since``; from then on it is in ``part``."""
        self.part: Part = "queue"
        self.part_since = now
        self.selection, self.background = selection, background
        self.prompt: IntArray = (
            np.array(msg.ids, dtype=np.int32) if session is None else session.prompt_with(msg.ids)
        )
        self.joined: list[Joined] = joined or []
        """Joins that its prompt contains, with copied KV or going to have it."""

        self.constraint = msg.params.constraint
        self.params = msg.params.unconstrained()
        self.penalised = self.params.penalised
        self.seed = msg.params.seed if msg.params.seed is not None else derive_seed(random_seed, msg.rid)
        self.stop_ids = frozenset(msg.stop_token_ids)
        self.eos_ids = frozenset() if msg.params.ignore_eos else frozenset(msg.eos_token_ids)
        self.banned_ids = sorted(self.stop_ids | self.eos_ids)
        self.stops = msg.stops
        self.scanner = StopScanner(msg.stops)

        self.output_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        """Of the output tokens that are not sent yet."""
        self.input_logprobs: list[TokenLogprob] = []
        """Of the prompt, from ``logprob_start_len`` on; the first entry has no value."""
        self.notes: list[str] = []

    @property
    def total_len(self) -> int:
        """Prompt and output tokens."""
        return len(self.prompt) + len(self.output_ids)

    @property
    def family(self) -> object | None:
        """What its session shares with those it was forked from or into."""
        return self.session.family if self.session is not None else None

    @property
    def draws(self) -> bool:
        """True for a generation."""
        return self.selection is None and not self.background

    @property
    def only_computes(self) -> bool:
        """True when no token is drawn once its prompt has its KV: of a select, in the background, and of a generation of no
        token that asks for log-probabilities of its prompt."""
        return not self.draws or self.params.max_new_tokens == 0

    @property
    def selected(self) -> Selection:
        """The selection of a select."""
        assert self.selection is not None, "not a select"
        return self.selection

    @property
    def prefill_len(self) -> int:
        """Tokens that must have KV before it draws or scores. A select's rows compute the last prompt token themselves (and
        what shares its page), since the first scores come after it. In the background only whole pages are worth it."""
        if self.draws:
            return self.total_len
        page = self.kv.page_size
        return (len(self.prompt) - (self.selection is not None)) // page * page

    @property
    def drawn(self) -> int:
        """Output tokens, those that are being drawn included."""
        return len(self.output_ids) + self.pending

    @property
    def remaining(self) -> int:
        """Output tokens it may still draw."""
        return self.params.max_new_tokens - len(self.output_ids)

    @property
    def finished(self) -> bool:
        """True once ``finish`` was called."""
        return self.state is ReqState.FINISHED

    def can_draw(self, max_len: int) -> bool:
        """True if it may draw one more token than are drawn and being drawn; ``max_len`` as in ``accept``."""
        return self.remaining > self.pending and self.total_len + self.pending < max_len

    @property
    def next_scored(self) -> int | None:
        """The first token of the prompt whose log-probability is wanted and not known; None: there is none."""
        start = self.params.logprob_start_len
        if not self.draws or not self.params.return_logprob or start < 0:
            return None
        position = start + max(1, len(self.input_logprobs))
        return position if position < len(self.prompt) else None

    @property
    def match_limit(self) -> int | None:
        """Most tokens of its prompt that may come from the cache: the one before a wanted log-probability is computed."""
        position = self.next_scored
        return None if position is None else position - 1

    def score_targets(self, start: int, count: int) -> list[int] | None:
        """Which token's log-probability is wanted after each of ``count`` tokens from ``start`` on (-1: none)."""
        first = self.next_scored
        if first is None or start + count < first:
            return None
        following = self.prompt[start + 1 : start + count + 1].tolist()
        wanted = [token if start + i + 1 >= first else -1 for i, token in enumerate(following)]
        return wanted + [-1] * (count - len(wanted))

    def open_input_logprobs(self) -> None:
        """The first entry, which has no value: it is there even when the prompt's last token is the only one asked for."""
        first = self.params.logprob_start_len
        if not self.input_logprobs and self.params.return_logprob and 0 <= first < len(self.prompt):
            self.input_logprobs.append(TokenLogprob(id=int(self.prompt[first]), logprob=0.0))

    def take_scores(
        self, start: int, scores: list[float], tops: list[list[tuple[float, int]]] | None
    ) -> None:
        """Log-probabilities of the prompt's tokens behind ``start``; those that are known already are passed over."""
        self.open_input_logprobs()
        for i, value in enumerate(scores):
            position = start + i + 1
            if position == self.next_scored:
                best = tops[i] if tops is not None else []
                made = TokenLogprob(id=int(self.prompt[position]), logprob=value, top=best)
                self.input_logprobs.append(made)

    @property
    def needs_output(self) -> bool:
        """True if its next step depends on the value of each token before: none may be in the making when it is planned."""
        return self.penalised or self.grammar is not None

    def next_input(self) -> int:
        """The token whose KV the next step computes: the last one drawn, or a promise of it."""
        return FROM_PREVIOUS if self.pending else self.output_ids[-1]

    def fill_ids(self) -> IntArray:
        """All tokens that must have KV before the next one is drawn: prompt, and output after a retraction."""
        if self._fill is None or len(self._fill) != self.total_len:
            self._fill = (
                np.concatenate([self.prompt, np.array(self.output_ids, dtype=np.int32)])
                if self.output_ids
                else self.prompt
            )
        return self._fill

    def lost_tokens(self) -> int:
        """Of what its session had computed, how many tokens its match does not reach because their KV is gone."""
        if self.session is None or self.match is None or self.match.cause in ("disabled", "logprobs"):
            return 0
        page = self.kv.page_size  # a page that was never full was never cached
        had = min(self.session.computed // page * page, len(self.prompt) - 1)
        return max(0, had - self.committed)

    def fill_keys(self) -> IntArray:
        """What ``fill_ids`` are found by in the tree."""
        if not self.joined:
            return self.fill_ids()
        if self._fill_keys is None or len(self._fill_keys) != self.total_len:
            self._fill_keys = keys_of(self.fill_ids(), self.joined)
        return self._fill_keys

    @property
    def prompt_keys(self) -> IntArray:
        """What its prompt is found by in the tree."""
        if not self.joined:
            return self.prompt
        if self._prompt_keys is None:
            self._prompt_keys = keys_of(self.prompt, self.joined)
        return self._prompt_keys

    def leave(self, gone: list[Joined]) -> None:
        """Compute from true keys what these joins had copied."""
        self.joined = [one for one in self.joined if one not in gone]
        self._fill_keys = self._prompt_keys = None
        self.peeked = (-1, 0, 0)

    @property
    def joined_kv(self) -> str:
        """See ``RequestMeta``."""
        if self.approximate or self.session is None:
            return "approximate" if self.approximate else ""
        return self.session.joined_kv

    def banned_now(self) -> list[int]:
        """Ids that must not be drawn now: what would end it below ``min_new_tokens``."""
        least = self.params.min_new_tokens
        return self.banned_ids if least and self.drawn < least else _NONE

    def accept(
        self, token: int, logprob: TokenLogprob | None, table: Sequence[bytes], max_len: int
    ) -> Finish | None:
        """Append a drawn token; how the generation ends with it, if it does.

        ``max_len``: most tokens a request can have. Order: stop id, EOS, stop string, grammar, length, context.
        """
        params, output_ids = self.params, self.output_ids
        output_ids.append(token)
        if params.return_logprob:
            self.open_input_logprobs()
            if logprob is not None:
                self.logprobs.append(logprob)
        text = table[token] if token < len(table) else b""
        if token in self.stop_ids:
            return self._end_by_stop_id(token, text)
        if token in self.eos_ids:
            return Finish(
                type="eos", matched=token
            )  # its bytes are no text: no stop string is looked for in them
        hit = self.scanner.feed(text)
        if hit is not None:
            return Finish(type="stop", matched=self._stop_text(hit))
        if self.grammar is not None:
            self.grammar.accept(token)
            if self.grammar.error is not None:
                return Finish(type="error", error=self.grammar.error)
            if self.grammar.done:
                return Finish(type="grammar")
        count = len(output_ids)
        if count >= params.max_new_tokens:
            return Finish(type="length")
        if len(self.prompt) + count >= max_len:
            return Finish(type="context")
        return None

    def _end_by_stop_id(self, token: int, text: bytes) -> Finish:
        """A stop id is not part of the text, unless its bytes complete a stop string, which cuts earlier."""
        probe = copy.copy(self.scanner)
        hit = probe.feed(text)
        if hit is None:
            return Finish(type="stop", matched=token)
        self.scanner = probe
        return Finish(type="stop", matched=self._stop_text(hit))

    def _stop_text(self, hit: StopHit) -> str:
        return self.stops[hit.index].decode("utf-8", "replace")

    def enter(self, part: Part, now: float) -> None:
        """From now on its time counts as this part: ``queue`` until it is admitted and again once it is retracted,
        ``prefill`` (the scores of a select too) until it draws a token, then ``decode``."""
        self.spent[self.part] += max(0.0, now - self.part_since)
        self.part, self.part_since = part, now

    def finish(self, reason: Finish) -> bool:
        """The only way to FINISHED. False, and nothing changed, if it is finished already."""
        if self.finished:
            return False
        self.state = ReqState.FINISHED
        self.finish_reason = reason
        return True


_NONE: list[int] = []


def derive_seed(random_seed: int, rid: str) -> int:
    """Seed of a request without one: a hash of the engine's ``random_seed`` and the ordinal in its id (``c3.r21`` → 21).

    The client's number is left out, so the same notebook draws the same numbers whoever attached before it.
    """
    ordinal = rid.rsplit(".r", 1)[-1]
    digest = hashlib.blake2b(f"{random_seed}:{ordinal}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1
