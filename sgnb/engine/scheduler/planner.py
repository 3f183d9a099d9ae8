"""What runs next: which requests enter the batch of a pass, and which give way.

Role: the choices of the event loop: prefill or decode, admission from the queue, suspension for a higher priority or a
used-up time slice, retraction when decode does not fit. Scheduler process; ``Scheduler`` asks it once a pass. Order is
``policy``'s, budgets are ``prefill``'s, victims of retraction ``retraction``'s; results are never looked at here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.engine.scheduler.joint import lost
from sgnb.engine.scheduler.policy import MAX_OVERTAKEN
from sgnb.engine.scheduler.prefill import PrefillAdder
from sgnb.engine.scheduler.req import Req, ReqState
from sgnb.engine.scheduler.retraction import victims
from sgnb.engine.scheduler.select import ScoreBatch

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

Batch = ScheduleBatch | ScoreBatch
NoOverlap = Literal["", "grammar", "penalty", "scores", "slots", "nothing"]


class Planner:
    """One scheduler's. Changes its queues, rows and slots; computes nothing."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._prefills = 0
        """Prefill steps since the last one in which streams drew."""

    def needs_results(self) -> NoOverlap:
        """Why the next step cannot be planned before the results of the one in flight are known (``StepEvent.no_overlap``):
        scores are to come, a row depends on the very token that is being drawn, or slots are so short that an end would
        spare a retraction. Empty: it can."""
        scheduler = self._scheduler
        if any(isinstance(flight.batch, ScoreBatch) for flight in scheduler.flights):
            return "scores"
        running = scheduler.running_batch
        for req in running:
            if req.needs_output and req.pending:
                return "grammar" if req.grammar is not None else "penalty"
        return "slots" if scheduler.holdable < decode_need(running) else ""

    def get_next_batch_to_run(self) -> Batch | None:
        """Selects first, then prefill, if any can be admitted; else decode. Running streams get their turn after every
        ``prefill_decode_interval`` others."""
        scheduler = self._scheduler
        if scheduler.running_batch and self._prefills >= scheduler.args.prefill_decode_interval:
            decode = self._update_running_batch()
            if decode is not None:
                return decode
        batch: Batch | None = None
        if not scheduler.scoring:
            batch = self._get_new_batch_prefill()
        if batch is None and scheduler.scoring:
            batch = self._get_score_batch()
        if batch is None:
            return self._update_running_batch()
        mixed = isinstance(batch, ScheduleBatch) and batch.forward_mode == "mixed"
        self._prefills = 0 if mixed else self._prefills + 1
        return batch

    def _get_score_batch(self) -> ScoreBatch | None:
        """As many options as fit. When none does and nothing runs whose end could make room, later selects give theirs
        back, then the first one the KV of its best option: without that it fits alone."""
        scheduler = self._scheduler
        while True:
            size = scheduler.mishaps.chunk(scheduler.args.chunked_prefill_size)
            scheduler.recorder.for_rid = scheduler.scoring[0].rid
            batch = ScoreBatch.prepare(
                scheduler.scoring,
                scheduler.free_rows,
                size if size > 0 else None,
                scheduler.cache,
                scheduler.allocator,
                scheduler.mishaps.limit.rows,
            )
            if batch is not None or scheduler.running_batch:
                return batch
            others = [
                *scheduler.scoring[1:],
                *([scheduler.chunked_req] if scheduler.chunked_req is not None else []),
            ]
            if others:
                self.retract(others[-1])
            elif not scheduler.scoring[0].kv.let_go():
                return None

    def _get_new_batch_prefill(self) -> ScheduleBatch | None:
        """Admit what fits: the next chunk of the chunked request, then the queue in the policy's order. Requests in the
        background that found all they were to compute have ended then, and may have held the rows others wait for."""
        while True:
            batch, ended = self._prefill_pass()
            if batch is not None or not ended:
                return batch

    def _prefill_pass(self) -> tuple[ScheduleBatch | None, bool]:
        """A batch, if something is to compute; whether requests ended by being admitted."""
        scheduler = self._scheduler
        if scheduler.chunked_req is None and not scheduler.waiting_queue:
            return None, False
        if scheduler.waiting_queue:
            scheduler.policy.calc_priority(scheduler.waiting_queue)
            head = scheduler.waiting_queue[0]
            if scheduler.chunked_req is not None and _gives_way(scheduler.chunked_req, head):
                self.suspend(scheduler.chunked_req, "priority")
        adder = PrefillAdder(
            scheduler.args,
            scheduler.mishaps.chunk(scheduler.args.chunked_prefill_size),
            scheduler.cache,
            scheduler.allocator,
            [*scheduler.running_batch, *scheduler.scoring],
            scheduler.ratio.value,
            scheduler.admissible,
            scheduler.waiting_queue,
        )
        for flight in scheduler.flights:
            adder.lead(flight.prompts())
        if scheduler.chunked_req is not None:
            adder.add_chunked(scheduler.chunked_req)
        self._try_queue(adder)
        admitted = [req for req in [*adder.reqs, *adder.ready] if req is not scheduler.chunked_req]
        scheduler.chunked_req = adder.new_chunked
        if admitted:
            self._admit(admitted)
        for req in adder.ready:
            scheduler.results.prefilled(req)
        ended = any(req.finished for req in adder.ready)
        if not adder.reqs:
            return None, ended
        for row, copies in adder.copies.items():
            req = adder.reqs[row]
            joined = sum(one.end - one.joint.start for one in req.joined)
            scheduler.recorder.note(req.rid, "joined", "copied", "tokens", joined, len(copies))
        scheduler.recorder.for_rid = adder.reqs[0].rid
        decoding = self._ready_to_draw()
        may_mix = scheduler.args.enable_mixed_chunk and not scheduler.mishaps.limit.active
        mixed = decoding if may_mix and adder.room >= decode_need(decoding) else None
        batch = ScheduleBatch.prepare_for_extend(
            adder.reqs, adder.extend_lens, scheduler.cache, scheduler.allocator, mixed, adder.copies
        )
        return batch, ended

    def _try_queue(self, adder: PrefillAdder) -> None:
        """Admit from the queue in order. One whose prefix is just being computed is passed over; the first that does not
        fit ends the pass, unless a running one has to make room for it."""
        scheduler = self._scheduler
        for req in scheduler.waiting_queue.copy():
            leader = self._branch_of(req) or adder.leader_of(req)
            if leader is not None:
                if req.leader != leader.rid:
                    req.leader, req.leader_since = leader.rid, scheduler.clock()
                    scheduler.recorder.note(req.rid, "deferred", "leader", leader=leader.rid)
                continue
            if req.joined:
                self._check_joins(req)
            while not adder.add_one_req(req):
                victim = self._victim_of(req) if adder.new_chunked is None else None
                if victim is None:
                    scheduler.recorder.note(req.rid, "deferred", *adder.refused)
                    return
                adder.note_suspended(victim)
                self.suspend(victim, "priority" if victim.priority < req.priority else "quantum")

    def _branch_of(self, req: Req) -> Req | None:
        """The request that computes the last tokens of a branch whose KV this one is going to copy."""
        reqs = self._scheduler.reqs
        waits = (rid for one in req.joined if not one.joint.copied for rid in one.joint.waits)
        return next((reqs[rid] for rid in waits if rid in reqs), None)

    def _check_joins(self, req: Req) -> None:
        """Joined KV that was evicted is computed anew, from true keys: exactly. The session is told."""
        scheduler = self._scheduler
        gone = lost(req.joined, req.fill_ids(), scheduler.cache)
        if not gone:
            return
        count = sum(one.joint.copied for one in gone)
        if count:
            scheduler.recorder.note(req.rid, "recomputed", "join", "tokens", count, 0)
            req.notes.append(
                f"Joined KV made room for others: {count} tokens that were copied from branches are computed anew, exactly."
            )
        req.leave(gone)
        if req.session is not None:
            req.session.leave(gone)

    def _victim_of(self, req: Req) -> Req | None:
        """The running request that has to make room for a waiting one: of lower priority, or of the same with its time slice
        used up while the other had fewer."""
        scheduler = self._scheduler
        quantum = scheduler.args.decode_quantum
        lower = [
            other
            for other in scheduler.running_batch
            if _gives_way(other, req)
            or (quantum and other.priority == req.priority and other.slice >= quantum)
        ]
        return min(lower, key=lambda other: (other.priority, -other.slice, -other.ordinal), default=None)

    def _admit(self, admitted: list[Req]) -> None:
        """Move requests that hold their cached prefix now from the queue to rows of the runner's table."""
        scheduler = self._scheduler
        scheduler.waiting_queue = [req for req in scheduler.waiting_queue if req.kv.node is None]
        scheduler.policy.note_admitted(admitted, scheduler.waiting_queue)
        for req in admitted:
            req.state = ReqState.PREFILL
            req.row = scheduler.free_rows.pop()
            req.committed = len(req.kv.slots)
            req.approximate |= any(one.joint.copied for one in req.joined)
            scheduler.recorder.book.admitted(req.kv.node, req.client)
            req.match = scheduler.match_log.explain(req, req.committed, scheduler.clock())
            limit = req.match_limit
            if (
                limit is not None
                and scheduler.cache.peek(req.prompt_keys[:-1], req.kv.extra_key).length > limit
            ):
                req.match = msgspec.structs.replace(req.match, cause="logprobs")
            scheduler.recorder.note(
                req.rid,
                "admitted",
                "fits",
                "slots",
                req.prefill_len - req.committed,
                scheduler.holdable,
            )
            if req.time_admitted is None:
                req.time_admitted = scheduler.clock()
                req.cached_tokens = req.committed
                req.lost = req.lost_tokens()
                req.first_step = scheduler.meter.forward_steps + 1
                scheduler.meter.note_prompt(len(req.prompt), req.cached_tokens)
            req.enter("prefill", scheduler.clock())
            scheduler.outputs.touch(req)
            scheduler.event(req, "admitted")

    def _update_running_batch(self) -> ScheduleBatch | None:
        """All running requests that may draw one token each; some are retracted first if slots are short."""
        scheduler = self._scheduler
        self._prefills = 0
        if not self._ready_to_draw():
            return None
        if scheduler.holdable < decode_need(scheduler.running_batch):
            chunked = [scheduler.chunked_req] if scheduler.chunked_req is not None else []
            for req in victims(scheduler.running_batch, [*chunked, *scheduler.scoring]):
                self.retract(req)
                if scheduler.holdable >= decode_need(scheduler.running_batch):
                    break
            if scheduler.holdable < decode_need(scheduler.running_batch):
                scheduler.cache.unpin_all()
            scheduler.ratio.retracted(scheduler.running_batch)
        else:
            scheduler.ratio.decay()
        scheduler.recorder.for_rid = scheduler.running_batch[0].rid
        ready = self._ready_to_draw()
        if not ready:
            return None
        return ScheduleBatch.prepare_for_decode(ready, scheduler.cache, scheduler.allocator)

    def _ready_to_draw(self) -> list[Req]:
        """Running requests that may draw one more; with a step in flight that may end them by length, not all."""
        scheduler = self._scheduler
        if not scheduler.flights:  # whoever may draw no more has ended
            return scheduler.running_batch.copy()
        return [req for req in scheduler.running_batch if req.can_draw(scheduler.max_len)]

    def suspend(self, req: Req, reason: str) -> None:
        """Take row and lock from a request and queue it again. Its KV goes to the cache, where it is found again unless
        slots ran short meanwhile."""
        scheduler = self._scheduler
        scheduler.vacate(req)
        scheduler.recorder.note(req.rid, "suspended", reason, "slots", 0, len(req.kv.slots))
        scheduler.recorder.for_rid = req.rid
        node = req.kv.release(req.fill_keys()[: req.committed])
        if node is not None and req.session is not None:
            req.session.refer_to(node)
        self._requeue(req)
        req.turns += reason == "quantum"
        scheduler.event(req, "retracted", reason=reason)

    def retract(self, req: Req) -> None:
        """Take slots and row from a request and queue it again; what it drew stays, nothing is sent twice."""
        scheduler = self._scheduler
        needs, has = decode_need(scheduler.running_batch), scheduler.holdable
        scheduler.recorder.note(req.rid, "retracted", "kv_full", "slots", needs, has)
        scheduler.vacate(req)
        req.kv.release()
        self._requeue(req)
        req.retractions += 1
        scheduler.meter.retracted += 1
        scheduler.event(req, "retracted", reason="kv_full")

    def _requeue(self, req: Req) -> None:
        req.committed = req.slice = 0
        req.leader = ""
        req.state = ReqState.WAITING
        req.enter("queue", self._scheduler.clock())
        self._scheduler.outputs.touch(req)
        self._scheduler.waiting_queue.append(req)


def decode_need(running: list[Req]) -> int:
    """Slots to allocate for one more token of each of ``running``."""
    if not running or running[0].kv.page_size == 1:
        return len(running)
    return sum(req.kv.lack(1) for req in running)


def _gives_way(req: Req, other: Req) -> bool:
    """True when one that runs is suspended for the higher priority of one that waits. Who was overtaken so often that it
    came before all others keeps its place: else the same ones would overtake it again, a token at a time."""
    return req.priority < other.priority and req.overtaken < MAX_OVERTAKEN
