"""Intake: what each input message does to sessions and requests.

Role: the door of the scheduler. Scheduler process; called by ``Scheduler`` at the two places of a pass where inputs are
received, one message after another. Opens, extends and closes sessions, makes requests of decodes, aborts. Every abort is
idempotent and legal in every state; what is unknown was closed or has ended meanwhile, and is passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sgnb.engine.mem_cache.base import IntArray
from sgnb.engine.mem_cache.req_kv import ReqKV
from sgnb.engine.scheduler import control
from sgnb.engine.scheduler.admission import bad_ids, join_refusal, refusal
from sgnb.engine.scheduler.compile_ahead import compile_ahead
from sgnb.engine.scheduler.joining import append_branches
from sgnb.engine.scheduler.joint import Joined, before
from sgnb.engine.scheduler.req import Req
from sgnb.engine.scheduler.select import Selection
from sgnb.engine.scheduler.session import Session
from sgnb.messages import (
    AbortReqs,
    ClientGone,
    ErrorInfo,
    Finish,
    Label,
    SchedulerControl,
    SchedulerInput,
    SessionClose,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionJoin,
    SessionOpen,
    SessionSelect,
    Stop,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

log = logging.getLogger(__name__)


class Intake:
    """One scheduler's door. Numbers requests in the order they arrive."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ordinal = 0
        self._handlers: dict[type, Callable[..., None]] = {
            SessionOpen: self._open,
            SessionExtend: self._extend,
            SessionDecode: self._decode,
            SessionFork: self._fork,
            SessionSelect: self._select,
            SessionCommit: self._commit,
            SessionJoin: self._join,
            SessionClose: self._close,
            AbortReqs: self._abort_reqs,
            ClientGone: self._client_gone,
            SchedulerControl: self._control,
            Stop: self._stop,
            TokenTable: self._take_table,
        }

    def handle(self, msg: SchedulerInput) -> None:
        """Carry out one message."""
        self._scheduler.inputs.received(msg)
        self._handlers[type(msg)](msg)

    def _open(self, msg: SessionOpen) -> None:
        if msg.sid in self._scheduler.sessions:
            log.warning("session %s is opened twice; the first one stays", msg.sid)
            return
        self._scheduler.sessions[msg.sid] = Session(msg.sid, msg.client, msg.extra_key, self._scheduler.cache)

    def _extend(self, msg: SessionExtend) -> None:
        session = self._scheduler.sessions.get(msg.sid)
        if session is None:
            return  # closed meanwhile
        if session.active is not None:
            session.error = ErrorInfo(
                kind="RequestError",
                code="order",
                message=f"session {msg.sid} was extended while it generates",
                hint="This is a fault of sgnb: its text and tokens would be out of order.",
            )
            return
        session.error = session.error or bad_ids(msg.ids, self._scheduler.runner.vocab_size)
        if session.error is None:
            session.extend(msg.ids)

    def _fork(self, msg: SessionFork) -> None:
        """Copies of a session. One that is closed has none: whoever decodes on a child is told."""
        parent = self._scheduler.sessions.get(msg.sid)
        for sid in msg.children if parent is not None else ():
            if sid in self._scheduler.sessions:
                log.warning("session %s is opened twice; the first one stays", sid)
            elif parent is not None:
                self._scheduler.sessions[sid] = parent.fork(sid, msg.base)
                self._scheduler.meter.note_fork()

    def _decode(self, msg: SessionDecode) -> None:
        """Queue a generation, or end it at once: refused, or nothing to draw."""
        self._queue(msg, None)

    def _select(self, msg: SessionSelect) -> None:
        """Queue a select. An option with nothing of its own takes the last token it shares, so that it has a score."""
        session = self._scheduler.sessions.get(msg.sid)
        ids, options = msg.ids, msg.options
        keep = len(session.ids) if session is not None else 0
        keep = keep if msg.keep is None else msg.keep
        if not all(options):
            whole = ids or (session.ids[:keep][-1:].tolist() if session is not None else [])
            keep -= not ids and bool(whole)
            ids, options = ids[:-1], [[*whole[-1:], *option] for option in options]
        selection = Selection(options, msg.method) if options and all(options) else None
        params = SamplingParams(
            max_new_tokens=selection.longest if selection is not None else 1, temperature=0.0
        )
        asked = SessionDecode(
            rid=msg.rid,
            sid=msg.sid,
            client=msg.client,
            ids=ids,
            keep=max(keep, 0),
            params=params,
            stops=[],
            stop_token_ids=[],
            eos_token_ids=[],
            label=msg.label,
            priority=msg.priority,
        )
        self._queue(asked, selection or Selection([[0]], msg.method))

    def _queue(self, msg: SessionDecode, selection: Selection | None) -> None:
        if msg.rid in self._scheduler.reqs:
            log.error("request id %s is used twice; the second one is ignored", msg.rid)
            return
        scheduler = self._scheduler
        session = scheduler.sessions.get(msg.sid)
        error = refusal(scheduler, msg, session, selection)
        if error is not None:
            # Nothing of a refused message is used, and its session, which may be generating, is not touched.
            msg, session = msgspec.structs.replace(msg, ids=[], stops=[]), None
        keep = msg.keep if session is not None else None
        cut = session.cut(keep) if session is not None and keep is not None and selection is None else 0
        kv = ReqKV(scheduler.cache, scheduler.allocator, session.extra_key if session is not None else "")
        prompt = None
        if session is not None and selection is not None:  # its session changes only with a winner
            prompt = np.concatenate([session.prompt_with([])[:keep], np.array(msg.ids, dtype=np.int32)])
        joined = session.joined if session is not None else []
        if prompt is not None and keep is not None:
            joined = before(joined, keep)
        req = self._make(msg, session, kv, selection=selection, prompt=prompt, joined=joined)
        req.cut_tokens = cut
        if session is not None:
            session.active = req
        scheduler.event(req, "queued")
        if error is not None:
            scheduler.finish(req, Finish(type="error", error=error))
        elif req.params.max_new_tokens == 0 and req.next_scored is None:
            req.open_input_logprobs()
            scheduler.finish(req, Finish(type="length"))
        elif req.constraint is not None:
            scheduler.await_grammar(req, req.constraint)
        else:
            scheduler.waiting_queue.append(req)

    def _make(
        self,
        msg: SessionDecode,
        session: Session | None,
        kv: ReqKV,
        *,
        selection: Selection | None = None,
        background: bool = False,
        prompt: IntArray | None = None,
        joined: list[Joined] | None = None,
    ) -> Req:
        scheduler = self._scheduler
        scheduler.was_busy = True
        self._ordinal += 1
        req = Req(
            msg,
            session,
            kv,
            ordinal=self._ordinal,
            random_seed=scheduler.args.random_seed,
            now=scheduler.clock(),
            selection=selection,
            background=background,
            joined=joined,
        )
        if prompt is not None:
            req.prompt = prompt
        scheduler.reqs[req.rid] = req
        return req

    def _commit(self, msg: SessionCommit) -> None:
        """Append settled ids, then compute what is not cached, as a request of nobody's: it is only worth doing early."""
        self._extend(SessionExtend(sid=msg.sid, ids=msg.ids))
        scheduler = self._scheduler
        session = scheduler.sessions.get(msg.sid)
        if session is not None and session.error is None:
            self._compute(session)

    def _compute(self, session: Session) -> str:
        """Compute a session's ids in the background; the request that does, or an empty string when nothing is to be
        done."""
        scheduler = self._scheduler
        whole = session.prompt_with([])
        too_long = len(whole) > min(scheduler.max_len - 1, scheduler.allocator.size)
        known = scheduler.cache.peek(session.keys(), session.extra_key).length
        full = len(scheduler.waiting_queue) >= scheduler.args.max_queued_requests
        page = scheduler.allocator.page_size
        if too_long or full or known >= len(whole) // page * page or scheduler.cache.disabled:
            return ""
        asked = SessionDecode(
            rid=f"{session.sid}.k{self._ordinal + 1}",
            sid=session.sid,
            client=session.client,
            ids=whole.tolist(),
            params=SamplingParams(max_new_tokens=0, temperature=0.0),
            stops=[],
            stop_token_ids=[],
            eos_token_ids=[],
            label=Label(name="@commit"),
        )
        kv = ReqKV(scheduler.cache, scheduler.allocator, session.extra_key)
        req = self._make(asked, None, kv, background=True, joined=session.joined.copy())
        scheduler.event(req, "queued")
        scheduler.waiting_queue.append(req)
        return req.rid

    def _join(self, msg: SessionJoin) -> None:
        """Append branches to their parent. Their last tokens, which have no KV yet, are computed in the background, all at
        once; whoever computes on the parent next copies the branches then."""
        scheduler = self._scheduler
        parent = scheduler.sessions.get(msg.sid)
        if parent is None or parent.error is not None:
            return
        parent.error = join_refusal(scheduler, msg, parent)
        if parent.error is not None:
            return
        branches = [scheduler.sessions[part.sid] for part in msg.parts]
        waits = frozenset(filter(None, map(self._compute, branches)))
        append_branches(parent, branches, msg, waits, scheduler.private_ids, scheduler.cache)

    def _close(self, msg: SessionClose) -> None:
        for sid in msg.sids:
            session = self._scheduler.sessions.pop(sid, None)
            if session is not None:
                if session.active is not None:
                    self._scheduler.finish(session.active, Finish(type="abort"))
                session.release()

    def _abort_reqs(self, msg: AbortReqs) -> None:
        for rid in msg.rids:
            req = self._scheduler.reqs.get(rid)
            if req is not None:
                self._scheduler.finish(req, Finish(type="abort"))

    def _client_gone(self, msg: ClientGone) -> None:
        reqs = [req for req in self._scheduler.reqs.values() if req.client == msg.client]
        sids = [sid for sid, session in self._scheduler.sessions.items() if session.client == msg.client]
        log.info(
            "client %d is gone: %d requests aborted, %d sessions closed", msg.client, len(reqs), len(sids)
        )
        self._abort_reqs(AbortReqs(rids=[req.rid for req in reqs]))
        self._close(SessionClose(sids=sids))
        self._scheduler.inputs.forget(msg.client)
        if self._scheduler.paused and self._scheduler.paused_by == msg.client:
            self._scheduler.resume()

    def _stop(self, msg: Stop) -> None:
        self._scheduler.stop_reason = msg.reason

    def _take_table(self, msg: TokenTable) -> None:
        self._scheduler.table = msg.table
        self._scheduler.grammars.set_vocabulary(msg)

    def _control(self, msg: SchedulerControl) -> None:
        if msg.verb == "defragment":
            self._scheduler.mover.ask(msg)  # not while a step runs: its slots must stay where they are
        elif msg.verb == "compile_grammar":
            compile_ahead(self._scheduler, msg)  # answered once it is compiled
        else:
            self._scheduler.send(control.answer(self._scheduler, msg))
