"""Ten minutes of an engine's events in half a minute: the scheduler itself on a clock of its own, and a runner that draws
at once. For ``bench_views.py``; the frames are those that a page gets, encoded as the engine encodes them."""

from __future__ import annotations

import random
from typing import Any

from bench_scheduler import VOCAB, InstantRunner

from sgnb.config import EngineArgs
from sgnb.engine.scheduler.scheduler import Scheduler
from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.messages import Label, RequestEvent, SessionClose, SessionDecode, SessionOpen, TokenTable
from sgnb.sampling_params import SamplingParams
from sgnb.transport import encode

FRAME_SECONDS = 1 / 30
PREFIXES = 12
"""Prompts begin with one of so many texts."""


class Tape:
    """``frames`` of ``seconds`` at ``rate`` steps a second, of ``streams`` requests side by side; one that ends is followed
    by another. ``rids``: those of the last ones."""

    def __init__(self, *, seconds: float, rate: float, streams: int, slots: int = 16384) -> None:
        self.slots, self.began, self.now = slots, 1000.0, 1000.0
        self.frames: list[bytes] = []
        self.rids: list[str] = []
        self._telemetry = Telemetry()
        self._made = 0
        self._random = random.Random(7)
        self._texts = [self._ids(60 + 40 * place) for place in range(PREFIXES)]
        runner: Any = InstantRunner()
        runner.max_total_tokens = slots
        args = EngineArgs.make(runner="stub", max_total_tokens=slots, max_running_requests=64)
        self._scheduler = Scheduler(args, runner, lambda message: None, self._hear, lambda: self.now)
        self._scheduler.receive(TokenTable(table=[b"x"] * VOCAB))
        for _ in range(streams):
            self._ask()
        self._run(seconds, rate)

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(VOCAB) for _ in range(count)]

    def _hear(self, event: Any) -> None:
        self._telemetry.emit(event)
        if isinstance(event, RequestEvent) and event.state == "finished":
            self._scheduler.receive(SessionClose(sids=[event.rid.replace("r", "s")]))
            self._ask()

    def _ask(self) -> None:
        self._made += 1
        sid, rid = f"c1.s{self._made}", f"c1.r{self._made}"
        ids = self._random.choice(self._texts) + self._ids(self._random.randrange(20, 200))
        drawn = SamplingParams.make({"max_new_tokens": self._random.randrange(50, 500), "temperature": 0.0})
        label = Label(cell=str(1 + self._made % 40), branch=str(self._made % 3), name="finding")
        self._scheduler.receive(SessionOpen(sid=sid, client=1))
        self._scheduler.receive(
            SessionDecode(
                rid=rid,
                sid=sid,
                client=1,
                ids=ids,
                params=drawn,
                stops=[],
                stop_token_ids=[],
                eos_token_ids=[],
                label=label,
            )
        )
        self.rids = [*self.rids[-7:], rid]

    def _run(self, seconds: float, rate: float) -> None:
        due = self.now + FRAME_SECONDS
        for _ in range(round(seconds * rate)):
            self._scheduler.step()
            self.now += 1 / rate
            if self.now >= due:
                self.frames.append(encode(self._telemetry.take_frame("bench", self.now)))
                due = self.now + FRAME_SECONDS

    @property
    def picture(self) -> dict[str, Any]:
        """What the page has before the first frame."""
        return {
            "seq": 0, "time": self.began, "step": 0, "slots": self.slots, "page_size": 1, "nodes": [], "runs": [],
            "requests": [], "past": [], "next": [], "settings": {"schedule_policy": "lpm"},
        }  # fmt: skip
