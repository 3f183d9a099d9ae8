"""What the records of several borders share: the base of all, errors, labels, ends, counts, the model's facts.

Every process. The other modules of ``messages`` import it; it imports none of them. Nothing that only one border uses.
"""

from __future__ import annotations

from typing import Literal

import msgspec

FinishType = Literal["stop", "length", "eos", "grammar", "abort", "context", "error"]


class Wire(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="t"):
    """Base of every record of the wire."""


class ErrorInfo(Wire, frozen=True, kw_only=True):
    """An error on its way to the notebook. ``kind`` is a class name of sgnb.errors, ``code`` a stable word."""

    kind: str
    message: str
    code: str = "error"
    hint: str = ""


class Label(Wire, frozen=True, kw_only=True):
    """What people call a request: ``<cell>.<branch> <variable>``, and its source line."""

    cell: str = ""
    branch: str = ""
    name: str = ""
    line: int = 0


class Finish(Wire, frozen=True, kw_only=True):
    """Why a generation ended. ``matched`` is the stop string or token id for ``stop`` and ``eos``."""

    type: FinishType
    matched: str | int | None = None
    error: ErrorInfo | None = None


class TokenLogprob(Wire, frozen=True, kw_only=True, tag=False):
    """Raw model log-probability of one sampled token; ``top`` holds (logprob, id) pairs, highest first."""

    id: int
    logprob: float
    top: list[tuple[float, int]] = []
    allowed: int = 0
    """How many tokens its grammar allowed; 0: there was none."""
    ruled_out: int = -1
    """The likeliest token that the grammar excluded; -1: none."""
    forced: bool = False
    """The grammar allowed this token alone."""
    text: str = ""
    """The token's own, with ``return_text_in_logprobs``."""
    raw: bytes = b""
    """The token's bytes: what of the text it made, for views."""
    top_texts: list[str] = []
    """The texts of ``top``, likewise only when they were asked for."""
    step: int = 0
    """The step that drew it; 0: of a prompt."""


class RequestMeta(Wire, frozen=True, kw_only=True):
    """Counts in tokens, times in seconds, of one finished generation. Sent once, with its Finish."""

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    """What was sampled, the stop tokens included."""
    kept_tokens: int
    """Output tokens the session keeps."""
    queue_time: float
    prefill_time: float
    decode_time: float
    e2e_latency: float
    first_step: int = -1
    last_step: int = -1
    miss: str = ""
    """Why no more of the prompt was reused: ``Match.cause``; empty where nothing was matched."""
    cut_tokens: int = 0
    """Tokens of the session that this prompt replaced: its chat template wrote earlier turns anew."""
    leftover: str = ""
    """Kept characters beyond the last kept token: the session has them as pending text."""
    forced_tokens: int = 0
    """Output tokens that were the only ones its grammar allowed."""
    joined_tokens: int = 0
    """Prompt tokens whose KV was copied from joined branches now; neither cached nor computed."""
    joined_kv: str = ""
    """Of a session that was joined with ``method="kv"``: ``approximate``, or ``exact`` once nothing copied is left."""
    notes: list[str] = []
    """What the user may want to know of this prompt, one sentence or two each."""


class RoleTemplate(Wire, frozen=True, kw_only=True):
    """The text a chat template puts before and after a turn of one role."""

    prefix: str
    suffix: str


class ModelInfo(Wire, frozen=True, kw_only=True):
    """What a client may know of the loaded model."""

    model: str
    path: str
    vocab_size: int
    context_length: int
    max_total_tokens: int
    dtype: str
    device: str
    attention_backend: str
    runner: str
    eos_token_ids: list[int]
    roles: dict[str, RoleTemplate]
    default_system: str
    """Whole text of the default system turn, put first when a conversation does not open with one; may be empty."""
    template_exact: bool
    """False: the template is not made of prefix and suffix; turns are rendered whole and ``roles`` approximates."""
    template_hash: str = ""


ForkBase = Literal["new", "same", "none"]
"""What a join takes for a child's own: all since this fork; what is ``sid``'s own and all since; nothing: it cannot
be joined by its KV."""


class OptionScore(Wire, frozen=True, kw_only=True):
    """One option of a Select: its scored tokens and their raw log-probabilities; ``score`` is the method's value."""

    ids: list[int]
    logprobs: list[float]
    score: float
    unconditional: list[float] = []


class Choice(Wire, frozen=True, kw_only=True):
    """Result of a Select: index of the winner and every option's score, in option order."""

    index: int
    options: list[OptionScore]
