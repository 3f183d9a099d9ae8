"""Admission: which waiting requests enter the next prefill step, and how much of them.

Role: the budgets of one pass. Scheduler process; one ``PrefillAdder`` is made for each pass by ``Scheduler``. It binds
and locks the cached prefix of whom it admits; slots are allocated afterwards, by the batch. Order is the policy's.

Budgets, in tokens (of KV: in slots of whole pages)::

    total   free + evictable − what running requests are expected to still need (min(remaining, 4096) · new_token_ratio)
    input   max_prefill_tokens: sum of new input admitted in one pass (the first request may exceed it without chunking)
    chunk   chunked_prefill_size, or less while memory is short: what one pass computes; a prompt that does not fit in it
            becomes *the* chunked request
    rows    max_running_requests
A chunk ends at a page border, so that all of it enters the tree; one that is smaller than a page computes a page.
The first request that does not fit ends the pass: nobody behind it is let past, so it is bound to be next.

In-batch sharing: a request that has ``MIN_SHARED`` tokens more in common with one that is in prefill than with the cache
waits for that one (its leader). Nothing is remembered of it: each pass looks anew, so it goes on as soon as the leader is
no longer in prefill, for whatever reason. Waiting costs the followers a step; so what counts is what all of them save: arms
of one fork wait for as many common tokens as make up ``MIN_SHARED`` together (eight arms: 4), and none computes in vain
what the fork left to compute.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from sgnb.config import EngineArgs
from sgnb.engine.mem_cache.base import BaseAllocator, IntArray, common_length
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.scheduler.joint import Copies, plan_copies
from sgnb.engine.scheduler.req import Req

CLIP_NEW_TOKENS = 4096
"""A huge ``max_new_tokens`` is an upper bound, not a forecast."""


MIN_SHARED = 32
"""A shorter prefix is computed twice sooner than waited for."""


class NewTokenRatio:
    """The share of their allowed output that running requests are expected to need: optimistic, corrected by failure.

    Falls linearly with each decode step that fits, is estimated anew when requests had to be retracted, and starts
    over when the engine is idle.
    """

    DECAY_STEPS = 600
    RETRACT_MARGIN = 20

    def __init__(self, conservativeness: float) -> None:
        self.set_conservativeness(conservativeness)

    def set_conservativeness(self, conservativeness: float) -> None:
        """Start over with another margin."""
        self.initial = min(0.7 * conservativeness, 1.0)
        self.minimum = 0.14 * self.initial
        self.value = self.initial
        self._decay = (self.initial - self.minimum) / self.DECAY_STEPS

    def decay(self) -> None:
        """A decode step fitted."""
        self.value = max(self.value - self._decay, self.minimum)

    def retracted(self, running: list[Req]) -> None:
        """Estimate from those that stay: what they decoded, and a margin, of what they may."""
        decoded = sum(len(req.output_ids) for req in running)
        allowed = sum(req.params.max_new_tokens for req in running)
        margin = self.RETRACT_MARGIN * len(running)
        self.value = max(self.minimum, min(1.0, (decoded + margin) / (allowed + 1)))

    def reset(self) -> None:
        """The engine is idle: what was learnt is of other requests."""
        self.value = self.initial


class PrefillAdder:
    """Fills one pass: the chunked request first, then the queue, until the first that does not fit."""

    def __init__(
        self,
        args: EngineArgs,
        chunk: int,
        cache: RadixCache,
        allocator: BaseAllocator,
        running: list[Req],
        ratio: float,
        rows: int,
        waiting: Iterable[Req] = (),
    ) -> None:
        self.reqs: list[Req] = []
        self.extend_lens: list[int] = []
        self.copies: dict[int, Copies] = {}
        """By row: what is copied from joined branches before the row computes."""
        self.new_chunked: Req | None = None
        """A request whose prompt is not finished by this pass."""
        self.ready: list[Req] = []
        """Selects whose prompt was found in the cache: nothing to compute before they score."""
        self.refused: tuple[str, str, int, int] = ("", "", 0, 0)
        """Why the last request did not fit: code, unit, what it needs, what there is."""
        self._cache = cache
        self._allocator = allocator
        self._running = running
        self._rows = rows
        self._input = args.max_prefill_tokens
        page = allocator.page_size
        self._chunk = max(chunk, page) if chunk > 0 else None
        self._planned = 0
        self._leaders: dict[tuple[str, bytes], list[Req]] = {}
        self._relatives: dict[object, list[Req]] = {}
        self._waiting = waiting
        self._ratio = ratio
        self._admitted = 0
        """Slots that those who enter in this pass will need in later ones."""

    @cached_property
    def _kin(self) -> Counter[object]:
        """How many of the queue belong to each family."""
        return Counter(req.family for req in self._waiting if req.family is not None)

    @cached_property
    def _owed(self) -> int:
        """Slots that those who run are expected to need; not asked for in most passes of a full batch."""
        return sum(req.kv.lack(_expected(req, self._ratio)) for req in self._running)

    @property
    def room(self) -> int:
        """Slots that are left beside what this pass computes."""
        return self._holdable

    @property
    def _holdable(self) -> int:
        """Slots this pass can still allocate (free, or evictable now)."""
        return self._allocator.available + self._cache.evictable_size - self._planned

    def add_chunked(self, req: Req) -> None:
        """The next chunk of the request in flight; as much as fits now, perhaps nothing."""
        rest = req.prefill_len - len(req.kv.slots)
        copies = self._copies_of(req, rest)
        count = self._chunk_of(req, rest, copies)
        taken = len(copies) + count
        if taken < rest:
            self.new_chunked = req
        if count > 0:
            self._take(req, count, copies)
            self._admitted += req.kv.lack(rest + _expected(req, 1.0)) - req.kv.lack(taken)
        else:
            copies.unlock(self._cache)
            self._admitted += req.kv.lack(rest)

    def _copies_of(self, req: Req, rest: int) -> Copies:
        """What can be copied from joined branches now; at least one token is left to compute. Nothing where the branches'
        slots, which must stay meanwhile, would take the room that the request needs."""
        if not req.joined or rest < 1:
            return Copies()
        position = len(req.kv.slots)
        end = position + rest - 1
        limit = req.match_limit
        copies = plan_copies(req.joined, position, end if limit is None else min(end, limit), self._cache)
        if copies and req.kv.lack(rest) > self._holdable:
            copies.unlock(self._cache)
            return Copies()
        return copies

    def _chunk_of(self, req: Req, rest: int, copies: Copies) -> int:
        """How much of a prompt this step computes, behind what it copies: all that is left of it, up to a page border, or up
        to the next copy."""
        have, rest = len(req.kv.slots) + len(copies), rest - len(copies)
        most = rest if self._chunk is None else min(rest, self._chunk)
        count = min(most, req.kv.room(self._holdable) - len(copies))
        if copies.until is not None and 0 < copies.until - have <= count:
            return copies.until - have
        if count < rest:
            count -= (have + count) % self._allocator.page_size
        return max(0, count)

    def lead(self, reqs: list[Req]) -> None:
        """Requests whose prompts are being computed now: what they share is in the cache after that."""
        for req in reqs:
            if len(req.prompt) > MIN_SHARED:
                self._leaders.setdefault((req.kv.extra_key, _opening(req.prompt_keys)), []).append(req)
            if req.family is not None:
                self._relatives.setdefault(req.family, []).append(req)

    def leader_of(self, req: Req) -> Req | None:
        """The request in prefill whose prefix is worth waiting for."""
        if self._cache.disabled or not (self._leaders or self._relatives) or req.match_limit is not None:
            return None
        ids = req.fill_keys()
        kin = self._relatives.get(req.family, ()) if req.family is not None else ()
        found = [*self._leaders.get((req.kv.extra_key, _opening(ids)), ()), *kin]
        if not found:
            return None
        shared = [
            (common_length(leader.prompt_keys[: leader.prefill_len], ids[:-1], 0), leader) for leader in found
        ]
        length, leader = max(shared, key=lambda pair: pair[0], default=(0, None))
        length -= length % self._allocator.page_size
        followers = self._kin[req.family] if leader in kin else 1
        saved = length - self._cache.peek(ids[:-1], req.kv.extra_key).length
        return leader if saved * max(followers, 1) >= MIN_SHARED else None

    def note_suspended(self, req: Req) -> None:
        """A running request is about to make room: its row will be free and what it holds can be evicted."""
        self._owed -= req.kv.lack(_expected(req, self._ratio))
        self._running.remove(req)
        self._rows += 1

    def add_one_req(self, req: Req) -> bool:
        """Try the next of the queue. False: it does not fit now and the pass ends here; nothing was changed."""
        if self.new_chunked is not None or not self._rows or self._chunk == 0:
            self.refused = (
                ("rows", "rows", 1, 0) if not self._rows else ("chunk", "tokens", 1, self._chunk or 0)
            )
            return False
        cached = req.kv.bind(req.fill_keys(), req.priority, req.match_limit)
        extend = req.prefill_len - cached
        alone = not self._running and not self.reqs and not self.ready
        needs = req.kv.lack(extend + _expected(req, 1.0)) + self._owed + self._admitted
        copies = self._copies_of(req, extend)
        if copies and needs > self._holdable:
            copies.unlock(self._cache)
            copies = Copies()
        fits = needs <= self._holdable
        count = self._chunk_of(req, extend, copies)
        if not (fits or (alone and req.kv.lack(extend) <= self._holdable)):
            self.refused = ("kv", "slots", needs, self._holdable)
        elif not self._input_allows(extend):
            self.refused = ("input", "tokens", extend, self._input)
        elif extend and not count:  # what is left of the step does not reach a page border
            self.refused = ("chunk", "tokens", self._allocator.page_size, self._chunk or 0)
        else:
            self._enter(req, count, extend, copies)
            return True
        copies.unlock(self._cache)
        req.kv.release()
        return False

    def _enter(self, req: Req, count: int, extend: int, copies: Copies) -> None:
        """Admit a request, which copies some of its ``extend`` tokens and computes ``count`` of them now."""
        taken = len(copies) + count
        if taken < extend:
            self.new_chunked = req
        self._rows -= 1
        self._admitted += req.kv.lack(extend + _expected(req, 1.0)) - req.kv.lack(taken)
        if extend:
            self._take(req, count, copies)
        else:
            self.ready.append(req)

    def _input_allows(self, extend: int) -> bool:
        """Chunks are cut to the budget of a step anyway; whole prompts must fit, but for the first."""
        return not self.reqs or extend <= self._input

    def _take(self, req: Req, count: int, copies: Copies) -> None:
        self.lead([req])
        if copies:
            self.copies[len(self.reqs)] = copies
        self.reqs.append(req)
        self.extend_lens.append(count)
        self._planned += req.kv.lack(len(copies) + count)
        self._input = max(0, self._input - count)
        if self._chunk is not None:
            self._chunk -= count


def _opening(ids: IntArray) -> bytes:
    return ids[:MIN_SHARED].tobytes()


def _expected(req: Req, ratio: float) -> int:
    """Slots a request is expected to need beyond its prompt; at least the next one."""
    return max(1, math.ceil(min(req.remaining, CLIP_NEW_TOKENS) * ratio))
