"""A scheduler on the stub runner, stepped by hand, that checks every output as it comes.

The stub's next token is a hash of the whole prefix and its pool verifies each slot it reads, so a wrong slot, position or
order shows at once. ``alone`` gives what a request must say: the same one in an engine of its own, with no cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.drivers import Driver
from sgnb.engine.model_executor.stub_runner import STUB_EOS, STUB_VOCAB, StubRunner
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.messages import (
    AbortReqs,
    BatchOutput,
    Choice,
    ClientGone,
    EngineStats,
    Finish,
    JoinPart,
    Label,
    ReqOutput,
    RequestEvent,
    RequestMeta,
    SchedulerControl,
    SchedulerReply,
    SessionClose,
    SessionCommit,
    SessionDecode,
    SessionExtend,
    SessionFork,
    SessionJoin,
    SessionOpen,
    SessionSelect,
    TokenLogprob,
    TokenTable,
)
from sgnb.sampling_params import SamplingParams

BYTES = [bytes([i]) for i in range(256)] + [b"<|im_start|>", b"<|im_end|>", b"<|endoftext|>"]
assert len(BYTES) == STUB_VOCAB


@dataclass
class Told:
    """All that was said about one request, in order."""

    ids: list[int] = field(default_factory=list)
    visible: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    started: int = 0
    waits: int = 0
    begun: tuple[int, int] = (0, 0)
    """Tokens of its prompt and what was cached of them, as told when it left the queue."""
    finish: Finish | None = None
    meta: RequestMeta | None = None
    leftover: bytes = b""
    choice: Choice | None = None
    input_logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    output_ids: list[int] = field(default_factory=list)

    def hear(self, out: ReqOutput) -> None:
        assert self.finish is None, f"{out.rid}: something was said after the finish"
        self.ids += out.ids
        assert out.visible >= (self.visible[-1] if self.visible else 0), "what was shown is never taken back"
        self.visible.append(out.visible)
        self.logprobs += out.logprobs
        self.started += out.started
        self.waits += out.waits
        assert self.started > 0, "whatever is said of it, it left the queue before"
        assert self.started - self.waits in (0, 1), "it leaves the queue and comes back to it in turn"
        if out.started and self.started == 1:
            self.begun = (out.prompt_tokens, out.cached_tokens)
        if out.finish is not None:
            self.finish, self.meta, self.leftover = out.finish, out.meta, out.leftover
            self.choice = out.choice
            self.input_logprobs = out.input_logprobs
            self.prompt_ids, self.output_ids = out.prompt_ids, out.output_ids
            assert self.meta is not None
            assert self.meta.completion_tokens == len(self.ids)
            assert self.meta.cached_tokens <= max(0, self.meta.prompt_tokens - 1)
            assert min(self.meta.queue_time, self.meta.prefill_time, self.meta.decode_time) >= 0

    @property
    def text(self) -> bytes:
        """Bytes that were shown."""
        return b"".join(BYTES[i] for i in self.ids)[: self.visible[-1]]


class HookedRunner(StubRunner):
    """``during`` is called after the computation of each step, before its result is known."""

    during: Callable[[Any], None] | None = None
    log: list[Any]

    def forward(self, batch):
        out = super().forward(batch)
        self.log.append(batch)
        if self.during is not None:
            self.during(batch)
        return out


class Rig:
    """One scheduler. Ids of sessions and requests are numbers; prompts are bytes or ids."""

    runner_type: type[HookedRunner] = HookedRunner

    def __init__(
        self,
        *,
        table: list[bytes] | None = BYTES,
        driver: Driver | None = None,
        clock: Callable[[], float] | None = None,
        **args: Any,
    ) -> None:
        args = {"max_total_tokens": 4096, "context_length": 1024, "max_running_requests": 16, **args}
        self.args = EngineArgs.make(runner="stub", **args)
        self.runner = self.runner_type(self.args)
        self.runner.log = []
        self.told: dict[str, Told] = {}
        self.events: list[RequestEvent] = []
        self.stats: list[EngineStats] = []
        self.detail: list[Any] = []
        """Step, radix and slot events."""
        self.replies: list[SchedulerReply] = []
        self.scheduler = Scheduler(self.args, driver or self.runner, self._send, self._publish, clock)
        if table is not None:
            self.scheduler.receive(TokenTable(table=table))

    def _send(self, message) -> None:
        if isinstance(message, SchedulerReply):
            self.replies.append(message)
            return
        assert isinstance(message, BatchOutput)
        assert len({item.rid for item in message.items}) == len(message.items)
        for item in message.items:
            self.told[item.rid].hear(item)

    def _publish(self, event) -> None:
        kinds = {RequestEvent: self.events, EngineStats: self.stats}
        kinds.get(type(event), self.detail).append(event)

    # ------------------------------------------------------------ inputs

    def open(self, sid: int, client: int = 1, extra_key: str = "") -> None:
        self.scheduler.receive(SessionOpen(sid=f"c{client}.s{sid}", client=client, extra_key=extra_key))

    def extend(self, sid: int, ids, client: int = 1) -> None:
        self.scheduler.receive(SessionExtend(sid=f"c{client}.s{sid}", ids=list(ids)))

    def decode(
        self,
        n: int,
        ids,
        *,
        sid: int | None = None,
        client: int = 1,
        fresh: bool = True,
        keep: int | None = None,
        priority: int = 0,
        cell: str = "",
        **params,
    ) -> str:
        """Ask for a generation on session ``sid`` (by default a new one of the same number). Returns the rid."""
        params = {"temperature": 0.0, "max_new_tokens": 8, **params}
        sid = n if sid is None else sid
        if fresh:
            self.open(sid, client)
        rid = f"c{client}.r{n}"
        made = SamplingParams.make(params)
        self.told[rid] = Told()
        self.scheduler.receive(
            SessionDecode(
                rid=rid,
                sid=f"c{client}.s{sid}",
                client=client,
                ids=list(ids),
                params=made,
                stops=[stop.encode() for stop in made.stop],
                stop_token_ids=list(made.stop_token_ids),
                eos_token_ids=[STUB_EOS],
                label=Label(name="@generate", cell=cell),
                keep=keep,
                priority=priority,
            )
        )
        return rid

    def fork(self, sid: int, *children: int, client: int = 1) -> None:
        names = [f"c{client}.s{child}" for child in children]
        self.scheduler.receive(SessionFork(sid=f"c{client}.s{sid}", children=names))

    def join(self, sid: int, *branches: int, ids=b"", skip: int = 0, client: int = 1) -> None:
        """Append branches by their KV."""
        parts = [JoinPart(sid=f"c{client}.s{branch}", skip=skip) for branch in branches]
        self.scheduler.receive(SessionJoin(sid=f"c{client}.s{sid}", ids=list(ids), parts=parts))

    def commit(self, sid: int, ids, client: int = 1) -> None:
        self.scheduler.receive(SessionCommit(sid=f"c{client}.s{sid}", ids=list(ids)))

    def select(
        self,
        n: int,
        ids,
        options,
        *,
        method: str = "token_length_normalized",
        sid: int | None = None,
        client: int = 1,
        fresh: bool = True,
    ) -> str:
        """Ask for a select, as ``decode`` does."""
        sid = n if sid is None else sid
        if fresh:
            self.open(sid, client)
        rid = f"c{client}.r{n}"
        self.told[rid] = Told()
        message = SessionSelect(
            rid=rid,
            sid=f"c{client}.s{sid}",
            client=client,
            ids=list(ids),
            options=[list(option) for option in options],
            method=method,
        )
        self.scheduler.receive(message)
        return rid

    def abort(self, *rids: str) -> None:
        self.scheduler.receive(AbortReqs(rids=list(rids)))

    def close(self, *sids: int, client: int = 1) -> None:
        self.scheduler.receive(SessionClose(sids=[f"c{client}.s{sid}" for sid in sids]))

    def gone(self, client: int) -> None:
        self.scheduler.receive(ClientGone(client=client))

    def ask(self, verb: str, client: int = 1, **args) -> SchedulerReply:
        self.scheduler.receive(
            SchedulerControl(client=client, id=len(self.replies) + 1, verb=verb, args=args)
        )
        self.scheduler.step()
        return self.replies[-1]

    # ------------------------------------------------------------ steps

    def step(self, count: int = 1) -> bool:
        more = True
        for _ in range(count):
            more = self.scheduler.step()
            self.scheduler.check_integrity()
        return more

    def drain(self, limit: int = 5000) -> None:
        """Step until idle; the books are checked after each step, and everything must be free or cached at the end."""
        for _ in range(limit):
            if not self.step():
                break
        assert self.scheduler.idle, f"not idle after {limit} steps"
        scheduler = self.scheduler
        assert scheduler.cache.lock_total == 0
        free = scheduler.allocator.available + scheduler.cache.evictable_size + scheduler.cache.pinned_size
        assert free == scheduler.allocator.size
        assert sorted(scheduler.free_rows) == list(range(self.args.max_running_requests))
        for rid, told in self.told.items():
            assert told.finish is not None, f"{rid} never ended"

    def run(self, n: int, ids, **kw) -> Told:
        """One request, to its end."""
        rid = self.decode(n, ids, **kw)
        self.drain()
        return self.told[rid]


def alone(ids, **params) -> Told:
    """What a request says in an engine of its own: no cache, no chunks, no neighbours."""
    args = {key: params.pop(key) for key in ("max_total_tokens", "context_length", "table") if key in params}
    n = params.pop("n", 1)
    return Rig(disable_radix_cache=True, chunked_prefill_size=-1, **args).run(n, ids, **params)
