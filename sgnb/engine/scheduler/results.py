"""What a step's result does to its requests: tokens taken, KV committed, ends.

Role: the only place where a request ends (``finish``), in whatever state it is. Scheduler process; ``Scheduler`` hands it
each batch with its result, ``Intake`` ends what is aborted. A fault of one request (bad logits) ends that request alone.
Chooses nobody to run and says nothing itself (``OutputBuilder`` does).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sgnb.engine.scheduler.batch import ScheduleBatch
from sgnb.engine.scheduler.joint import keys_of
from sgnb.engine.scheduler.output import kept_output
from sgnb.engine.scheduler.req import Req, ReqState
from sgnb.engine.scheduler.select import ScoreBatch
from sgnb.messages import ErrorInfo, Finish, ModelWorkerOutput

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

_NON_FINITE = "The weights or an attention kernel produced NaN or infinity; check the model file."


class ResultProcessor:
    """One scheduler's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def process(self, batch: ScheduleBatch | ScoreBatch, result: ModelWorkerOutput) -> None:
        """Take the result of a batch. Rows whose requests ended meanwhile are passed over."""
        if isinstance(batch, ScoreBatch):
            self._process_scores(batch, result)
        else:
            self._process_batch_result(batch, result)

    def _process_batch_result(self, batch: ScheduleBatch, result: ModelWorkerOutput) -> None:
        """Commit KV, take drawn tokens, end what ends. Rows whose request ended or was retracted meanwhile are wasted."""
        scheduler = self._scheduler
        bad = frozenset(result.bad_rows)
        drawn = 0
        alive = batch.alive()  # what a row does ends no other's request
        for row, req in enumerate(batch.reqs):
            if not alive[row]:
                continue
            req.pending -= batch.sample[row]
            req.last_step = result.step
            if row in bad:
                self.fail(req, "non_finite", f"non-finite logits at step {result.step}", _NON_FINITE)
                continue
            # not all of its slots: the step behind this one may have taken some already
            req.committed = batch.prefix_lens[row] + batch.extend_lens[row]
            if batch.copies and (copied := batch.copies.get(row)):
                req.joined_tokens += len(copied)
                req.approximate = True
                for joint, count, end in copied.joints:
                    joint.note_copied(count, end)
            scores = result.scores[row] if result.scores else None
            if scores is not None:
                tops = result.score_tops[row] if result.score_tops else None
                req.take_scores(batch.prefix_lens[row], scores, tops)
            if row < batch.prompts:
                scheduler.recorder.for_rid = req.rid
                req.kv.store(req.fill_keys()[: req.committed])
                if not batch.sample[row]:
                    if req.only_computes and req.committed == req.prefill_len:
                        self.prefilled(req)
                    continue
            self._take_token(req, result.next_token_ids[row], result, row)
            drawn += 1
        scheduler.meter.note_generated(drawn)

    def prefilled(self, req: Req) -> None:
        """The prompt of a request that draws nothing has its KV."""
        if req.selection is None:
            self.finish(req, Finish(type="length"))
        else:
            req.state = ReqState.SCORING
            self._scheduler.scoring.append(req)

    def _process_scores(self, batch: ScoreBatch, result: ModelWorkerOutput) -> None:
        """Take scores; selects with all of theirs have a winner and end."""
        scheduler = self._scheduler
        for req in batch.process(result):
            self.fail(req, "non_finite", f"non-finite logits at step {result.step}", _NON_FINITE)
        for req in {row.req: None for at, row in enumerate(batch.rows) if batch.lives(at)}:
            if req.finished or req.selected.open_jobs():
                continue
            choice = req.selected.decide()
            if choice.index == req.selected.best:
                req.kv.truncate(req.prefill_len)
                req.kv.take_held()
                req.committed = len(req.kv.slots)
            req.drew = True
            scheduler.event(req, "first_token")
            scheduler.outputs.touch(req)
            self.finish(req, Finish(type="stop"))

    def _take_token(self, req: Req, token: int, result: ModelWorkerOutput, row: int) -> None:
        scheduler = self._scheduler
        if not req.drew:
            req.drew = True
            scheduler.event(req, "first_token")
        if req.part != "decode":
            req.enter("decode", scheduler.clock())
        scheduler.outputs.touch(req)
        req.slice += 1
        told = result.logprobs[row]
        if told is not None:
            told = msgspec.structs.replace(told, step=result.step)
        reason = req.accept(token, told, scheduler.table, scheduler.max_len)
        if reason is not None:
            self.finish(req, reason)

    def take_off(self, batch: ScheduleBatch | ScoreBatch) -> None:
        """A batch was launched: prompts that it completes run from now on, so that the next step may count on them."""
        batch.take_off()
        if isinstance(batch, ScheduleBatch):
            for req, draws in zip(batch.reqs[: batch.prompts], batch.sample, strict=False):
                if draws:
                    req.state = ReqState.RUNNING
                    self._scheduler.running_batch.append(req)

    def finish(self, req: Req, reason: Finish) -> None:
        """End a request in whatever state it is: slots back now, its session moved on, its one last output made."""
        scheduler = self._scheduler
        if not req.finish(reason):
            return
        scheduler.vacate(req)
        scheduler.recorder.for_rid = req.rid
        del scheduler.reqs[req.rid]
        kept, leftover = kept_output(req, reason, scheduler.table)
        scheduler.inputs.finished(req, kept)
        node = None
        if reason.type == "error":
            req.kv.release()
        else:
            whole = np.concatenate([req.prompt, np.array(kept, dtype=np.int32)])
            if req.session is not None:
                req.session.computed = min(req.committed, len(whole))
            node = req.kv.release(keys_of(whole, req.joined)[: req.committed])
            if req.session is not None and (req.draws or kept):
                req.session.keep(req.prompt, kept)
                req.session.cell = req.label.cell
        if req.session is not None:
            req.session.active = None
            if node is not None:
                req.session.refer_to(node)
        scheduler.outputs.finished(req, kept, leftover, scheduler.clock())
        scheduler.event(req, "finished", reason=reason.error.code if reason.error else reason.type)

    def fail(self, req: Req, code: str, message: str, hint: str = "") -> None:
        """End a request with an error of its own."""
        error = ErrorInfo(kind="RequestError", code=code, message=message, hint=hint)
        self.finish(req, Finish(type="error", error=error))
