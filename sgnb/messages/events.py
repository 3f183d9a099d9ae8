"""Telemetry's events: what the scheduler and the cache did, told where it happened, folded by the views.

Made in the scheduler process, published and kept in its ring, written to recordings. Lengths, ids of requests, owners and
salted hashes only: never text or token ids.
"""

from __future__ import annotations

from typing import Literal

from sgnb.messages.parts import Label, Wire


class EngineStats(Wire, frozen=True, kw_only=True, tag="stats"):
    """SGLang's metric names. Counts; ``token_usage`` and ``cache_hit_rate`` are shares 0..1; throughput in tokens/s."""

    time: float
    num_running_reqs: int
    num_queue_reqs: int
    num_sessions: int
    num_used_tokens: int
    """Slots held by running requests (locked or in flight)."""
    num_cached_tokens: int
    """Slots in the tree that nobody locks."""
    num_free_tokens: int
    max_total_num_tokens: int
    token_usage: float
    cache_hit_rate: float
    """Reused share of the prompt tokens of the last 60 s."""
    gen_throughput: float
    new_token_ratio: float
    num_retracted_reqs: int
    forward_steps: int
    prompt_tokens_total: int
    cached_tokens_total: int
    generated_tokens_total: int
    evicted_tokens_total: int
    num_grammar_queue_reqs: int = 0
    """Requests whose grammar is not ready."""
    num_paused_reqs: int = 0
    """Requests that a paused scheduler holds."""
    paused: bool = False
    """The scheduler is held between two steps, with requests or without."""
    fork_rate: float = 0.0
    """Forked children a second, over the last 60 s."""
    num_half_filled_tokens: int = 0
    """Slots lost to half-filled pages: of running requests' last pages, without a token yet."""
    num_locked_tokens: int | None = None
    """Of ``num_used_tokens``, the slots in the tree that running requests lock; the others are in flight. None: not told, as
    in recordings made before there was the figure (0 is a figure)."""


class Match(Wire, frozen=True, kw_only=True):
    """What the cache had of a prompt, told once, at the match. Lengths in tokens."""

    matched: int
    node: int
    """The node in which the match ended; 0: the root."""
    cause: Literal[
        "hit",
        "disabled",
        "cold",
        "short",
        "evicted",
        "flushed",
        "diverged",
        "page",
        "logprobs",
        "namespace",
        "retokenized",
    ]
    """Why no more: all there was to find; the cache is off; nothing begins like this; what is cached ends here; it was there
    and made room; it was flushed; what is cached goes on differently; the rest fills no page; logprobs of the prompt were
    asked for; it is cached under another key; the same text is cached in other tokens."""
    diverged_at: int = -1
    """Position of the first token that differs."""
    equal_again: int = 0
    """Tokens right behind it that agree again."""
    waited_for: str = ""
    """The request that was computing the same prefix, and ``waited`` seconds for it."""
    waited: float = 0.0
    gone_at: float = 0.0
    """Of ``evicted``: when, for whom (``gone_for``), how many tokens (``gone_tokens``)."""
    gone_for: str = ""
    gone_tokens: int = 0
    gone_policy: str = ""
    half_page: int = 0
    """Of ``page``: tokens that could be reused but for their page, which they do not fill."""


class RequestEvent(Wire, frozen=True, kw_only=True, tag="request"):
    """A request changed state. Lengths and ids only, never text or token ids."""

    time: float
    rid: str
    client: int
    label: Label
    state: Literal["queued", "compiling", "compiled", "admitted", "first_token", "retracted", "finished"]
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reason: str = ""
    """Of ``compiling``: ``compiling grammar``;
    of ``retracted``: ``kv_full``, ``priority``, ``quantum``; of ``finished``: the finish type or error code."""
    match: Match | None = None
    """Of ``admitted``."""
    joined_tokens: int = 0
    """Prompt tokens whose KV was copied from joined branches."""
    duplicate_tokens: int = 0
    """Prompt tokens that another request computed at the same time; this one's copy was freed."""


class StepRow(Wire, frozen=True, kw_only=True, gc=False):
    """One row of a step: how many new tokens it computes after how many that have KV."""

    rid: str
    kind: Literal["prefill", "decode", "score"]
    tokens: int
    prefix: int


class StepNote(Wire, frozen=True, kw_only=True, gc=False):
    """A decision of the pass, with its numbers: what was needed and what there was, in ``unit``. Who waits for a leader or a
    grammar is noted once, and again when that changes; for room, in each pass in which it is the first that does not fit."""

    rid: str
    what: Literal["admitted", "deferred", "retracted", "suspended", "joined", "recomputed", "evicted"]
    reason: str
    """``fits``; ``leader`` (its prefix is being computed by ``leader``), ``kv``, ``rows``, ``chunk``, ``input``, ``grammar``
    (it is being compiled);
    ``kv_full``; ``priority``, ``quantum``, ``memory`` (its step failed for want of memory, or with one that did); of
    ``joined``: ``copied`` (of ``needs`` joined tokens ``has`` are copied now); of ``recomputed``: ``join`` (so many copied
    tokens were evicted); of ``evicted``: the policy (``needs`` slots were short for ``rid``, ``has`` were freed)."""
    unit: str = ""
    needs: int = 0
    has: int = 0
    leader: str = ""


class StepEvent(Wire, frozen=True, kw_only=True, tag="step"):
    """One forward pass and the decisions before it. Times in seconds; counts in slots or requests, before the pass."""

    time: float
    step: int
    mode: Literal["extend", "decode", "mixed", "score"]
    rows: list[StepRow]
    notes: list[StepNote] = []
    schedule_seconds: float = 0.0
    forward_seconds: float = 0.0
    sample_seconds: float = 0.0
    process_seconds: float = 0.0
    exposed_host_seconds: float = 0.0
    """How long the runner had nothing to do before this pass, though there was work: from the end of the pass before, or,
    after a rest, from the moment the scheduler began to plan this one."""
    schedule_under: int = 0
    """The step that was being computed while this one was planned; 0: none, its results were known."""
    free: int = 0
    evictable: int = 0
    running: int = 0
    queued: int = 0
    new_token_ratio: float = 0.0
    drawn: int = 0
    bad_rows: int = 0
    wasted_rows: int = 0
    """Rows whose request had ended before their result came."""
    no_overlap: Literal["", "grammar", "penalty", "scores", "slots", "nothing"] = ""
    """Why this step, with ``enable_overlap``, was planned only after the results of the one before: a row's mask or its
    penalties depend on the token drawn there, the scores of options do, slots were so short that an end would make room, or
    nothing could be planned before. Empty: it was planned ahead, or nothing was in flight."""
    failed: Literal["", "memory", "skipped", "error"] = ""
    """Not computed: it ran out of memory and its requests are tried again in smaller steps; the step it rested on failed; or
    a fault that ended its requests."""


class RadixEvent(Wire, frozen=True, kw_only=True, tag="radix"):
    """The tree changed. A node covers tokens ``start … start + length`` of its prefix."""

    time: float
    kind: Literal["insert", "split", "evict", "flush", "pin", "unpin", "lock", "unlock"]
    """``lock`` and ``unlock`` count on the whole path from ``node`` up; a lock is also a use of that path."""
    node: int
    parent: int
    start: int
    length: int
    for_rid: str = ""
    """Of insert and evict: whose tokens, or for whom room was made."""
    policy: str = ""
    """Of evict."""
    next: list[int] = []
    """Of the last evict that one need of slots caused: the nodes that would go next, at most six."""
    child: int = 0
    """Of split: the node that was cut; it lies below ``node`` now and begins where that one ends."""


class SlotRun(Wire, frozen=True, kw_only=True, array_like=True, gc=False):
    """Slots ``start … start + count``; ``owner``: a request id, or ``node:<id>`` for the tree's, or empty: free."""

    owner: str
    start: int
    count: int
    kind: str = ""
    """Of a request's slots: ``prefill`` or ``decode``, what computes them; empty for ``score``, the tree's and free ones."""


class KVDelta(Wire, frozen=True, kw_only=True, tag="kv"):
    """Slots that changed hands since the last one, in order; a later run overrides an earlier one."""

    time: float
    step: int
    runs: list[SlotRun]


class KnobEvent(Wire, frozen=True, kw_only=True, tag="knob"):
    """Knobs of the scheduler were changed; a timeline draws a line with their names before ``step``."""

    time: float
    step: int
    """The first step they hold for."""
    objective: str
    knobs: dict[str, int | float | bool | str | None]
    """Only those that changed, with their new values."""
