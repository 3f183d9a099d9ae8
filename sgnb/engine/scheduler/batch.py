"""A batch: the requests of one forward pass, with the slots for what it computes.

Role: the step between requests and the frozen record of the runner: ``prepare_for_extend`` and ``prepare_for_decode``
allocate (evicting if short), ``get_model_worker_batch`` copies plain lists. Scheduler process; called by ``Scheduler``. No
choice of who runs is made here (``policy``, ``prefill``, ``retraction``).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sgnb.engine.mem_cache.base import BaseAllocator
from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.scheduler.joint import Copies
from sgnb.engine.scheduler.req import Req, ReqState
from sgnb.messages import ModelWorkerBatch


@dataclass(slots=True)
class ScheduleBatch:
    """Rows of one pass. Row ``i`` computes ``extend_lens[i]`` tokens after ``prefix_lens[i]`` that have KV."""

    forward_mode: Literal["extend", "decode", "mixed"]
    reqs: list[Req]
    extend_lens: list[int]
    prefix_lens: list[int]
    input_ids: list[int]
    out_cache_loc: list[int]
    sample: list[bool]
    prefix_locs: list[list[int] | None] = field(default_factory=list)
    fresh: list[list[int]] = field(default_factory=list)
    """Of each row: the slots that were allocated for it now. With pages, more or fewer than its new tokens."""
    copies: dict[int, Copies] = field(default_factory=dict)
    """Of rows that begin with KV of joined branches."""
    prompts: int = 0
    """The first rows, which compute prompts; the others draw one token after their last one."""
    copy_dst: list[int] = field(default_factory=list)
    stints: list[int] = field(default_factory=list)

    @classmethod
    def prepare_for_extend(
        cls,
        reqs: list[Req],
        extend_lens: list[int],
        cache: RadixCache,
        allocator: BaseAllocator,
        decoding: list[Req] | None = None,
        copies: dict[int, Copies] | None = None,
    ) -> ScheduleBatch:
        """Prompts, or chunks of them. ``reqs`` are bound to their cached prefix already. ``decoding``: running requests that
        draw their next token in the same step. ``copies``: what rows copy from branches before they compute."""
        copies = copies or {}
        prefix_lens = [len(req.kv.slots) + len(copies.get(row, ())) for row, req in enumerate(reqs)]
        input_ids: list[int] = []
        sample = []
        for req, start, count in zip(reqs, prefix_lens, extend_lens, strict=True):
            fill = req.fill_ids()
            input_ids += fill[start : start + count].tolist()
            sample.append(not req.only_computes and start + count == len(fill))
        batch = cls(
            "extend", reqs, extend_lens, prefix_lens, input_ids, [], sample, copies=copies, prompts=len(reqs)
        )
        if decoding:
            batch.forward_mode = "mixed"
            batch.reqs = [*reqs, *decoding]
            batch.extend_lens = [*extend_lens, *[1] * len(decoding)]
            batch.prefix_lens = [*prefix_lens, *[len(req.kv.slots) for req in decoding]]
            batch.input_ids += [req.next_input() for req in decoding]
            batch.sample += [True] * len(decoding)
        batch._alloc(cache, allocator)
        return batch

    @classmethod
    def prepare_for_decode(
        cls, reqs: list[Req], cache: RadixCache, allocator: BaseAllocator
    ) -> ScheduleBatch:
        """One token a row: the last one drawn, or being drawn."""
        count = len(reqs)
        prefix_lens = [len(req.kv.slots) for req in reqs]
        input_ids = [req.next_input() for req in reqs]
        batch = cls("decode", reqs, [1] * count, prefix_lens, input_ids, [], [True] * count)
        batch._alloc(cache, allocator)
        return batch

    def _alloc(self, cache: RadixCache, allocator: BaseAllocator) -> None:
        """Slots for every new token; callers made sure that free and evictable ones suffice."""
        counts = self.extend_lens
        if self.copies:
            counts = [count + len(self.copies.get(row, ())) for row, count in enumerate(counts)]
        if allocator.page_size == 1:
            lacks = counts
        else:
            lacks = [req.kv.lack(count) for req, count in zip(self.reqs, counts, strict=True)]
        need = sum(lacks)
        if allocator.available < need:
            cache.evict(need - allocator.available)
        slots = allocator.alloc(need)
        for copies in self.copies.values():
            copies.unlock(cache)
        if allocator.page_size == 1 and self.forward_mode == "decode":
            self._alloc_decode(slots)
            return
        at = 0
        for row, (req, count, lack) in enumerate(zip(self.reqs, counts, lacks, strict=True)):
            if row in self.copies:
                self._copy(req, self.copies[row], slots[at : at + lack], count)
                at += lack
                continue
            self.prefix_locs.append(req.kv.slots.copy() if req.kv.table_stale else None)
            req.kv.table_stale = False
            fresh = slots[at : at + lack]
            self.fresh.append(fresh)
            self.out_cache_loc += req.kv.grow(fresh, count)
            at += lack

    def _alloc_decode(self, slots: list[int]) -> None:
        """The same where each row takes one slot: the step that is made most often."""
        self.out_cache_loc = slots
        for req, slot in zip(self.reqs, slots, strict=True):
            kv = req.kv
            self.prefix_locs.append(kv.slots.copy() if kv.table_stale else None)
            kv.table_stale = False
            self.fresh.append([slot])
            kv.slots.append(slot)

    def _copy(self, req: Req, copies: Copies, fresh: list[int], count: int) -> None:
        """Slots of a row that copies first: the runner's table is told anew, behind the copy."""
        self.fresh.append(fresh)
        taken = req.kv.grow(fresh, count)
        self.copy_dst += taken[: len(copies)]
        self.out_cache_loc += taken[len(copies) :]
        self.prefix_locs.append(req.kv.slots[: len(req.kv.slots) - count + len(copies)])
        req.kv.table_stale = False

    def take_off(self) -> None:
        """The record is handed over: from now on its rows draw tokens that nobody knows yet."""
        self.stints = [req.stint for req in self.reqs]
        for req, draws in zip(self.reqs, self.sample, strict=True):
            req.pending += draws

    def lives(self, row: int) -> bool:
        """False once the request of a row has ended or given its row up: the result is nobody's."""
        req = self.reqs[row]
        return not req.finished and req.stint == self.stints[row]

    @property
    def wasted(self) -> int:
        """Rows whose result is nobody's."""
        return len(self.reqs) - sum(self.alive())

    def alive(self) -> list[bool]:
        """``lives`` of each row."""
        over = ReqState.FINISHED
        return [
            req.state is not over and req.stint == stint
            for req, stint in zip(self.reqs, self.stints, strict=True)
        ]

    @property
    def constrained(self) -> bool:
        """A row that draws has a grammar: its mask depends on the token before, so the batch cannot be made ahead."""
        return any(
            req.grammar is not None and draws for req, draws in zip(self.reqs, self.sample, strict=True)
        )

    def _bitmask(self) -> bytes | None:
        """One row of bits a request; all set where no grammar excludes anything."""
        if not self.constrained:
            return None
        words = next(len(req.grammar.mask) for req in self.reqs if req.grammar is not None)
        everything = b"\xff" * (4 * words)
        return b"".join(
            req.grammar.mask.tobytes() if req.grammar is not None and draws else everything
            for req, draws in zip(self.reqs, self.sample, strict=True)
        )

    def _score_targets(self) -> list[list[int] | None]:
        """Prompts whose log-probabilities are wanted; empty when there is none."""
        if not self.prompts:
            return []
        spans = zip(self.reqs, self.prefix_lens, self.extend_lens, range(len(self.reqs)), strict=True)
        found = [
            req.score_targets(start, count) if row < self.prompts else None
            for req, start, count, row in spans
        ]
        return found if any(one is not None for one in found) else []

    def get_model_worker_batch(self, step: int, behind: int = 0) -> ModelWorkerBatch:
        """The frozen record: plain ints and lists, nothing shared with requests."""
        reqs = self.reqs
        return ModelWorkerBatch(
            step=step,
            behind=behind,
            forward_mode=self.forward_mode,
            input_ids=self.input_ids,
            req_pool_indices=[req.row for req in reqs],
            seq_lens=[start + count for start, count in zip(self.prefix_lens, self.extend_lens, strict=True)],
            prefix_lens=self.prefix_lens,
            extend_lens=self.extend_lens,
            out_cache_loc=self.out_cache_loc,
            prefix_locs=self.prefix_locs,
            sample=self.sample,
            params=[req.params for req in reqs],
            seeds=[req.seed for req in reqs],
            positions_drawn=[len(req.output_ids) + req.pending for req in reqs],
            banned=[req.banned_now() for req in reqs],
            bitmask=self._bitmask(),
            score_targets=self._score_targets(),
            copy_src=[slot for one in self.copies.values() for slot in one.src],
            copy_dst=self.copy_dst,
            copy_shift=[shift for one in self.copies.values() for shift in one.shift],
            drawn_ids=[req.output_ids.copy() if req.penalised else None for req in reqs]
            if any(req.penalised for req in reqs)
            else [],
        )
