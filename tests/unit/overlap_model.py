"""A model of the overlap loop on a device whose jobs run late: what may go wrong between host and device, in miniature.

The host launches step N, then takes the results of step N - depth. The device runs jobs in order, but whenever it likes:
only waiting for a step's event makes sure that it ran. Records and results cross in pinned blocks, a ring. The next token
is a hash of what the slots of a row hold, so a stale record, a reused slot or a token read early shows as a wrong output.
``BUGS`` are mistakes that engines made; each is one switch, and the test demands that each shows.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

BUGS = ("read_early", "ring_too_short", "live_record", "second_stream", "results_by_row")
ROWS, SLOTS, EOS, LONGEST = 3, 40, 0, 9


def next_token(held: list[int]) -> int:
    """The token after these: 0 ends."""
    state = 7
    for token in held:
        state = (state * 31 + token + 1) % 1_000_003
    return state % 6


def alone(prompt: list[int]) -> list[int]:
    """What a request must say."""
    out: list[int] = []
    while len(out) < LONGEST and (not out or out[-1] != EOS):
        out.append(next_token(prompt + out))
    return out


@dataclass
class Request:
    prompt: list[int]
    row: int = -1
    slots: list[int] = field(default_factory=list)
    planned: int = 0
    """Tokens drawn, those in flight included."""
    out: list[int] = field(default_factory=list)
    done: bool = False


@dataclass(frozen=True)
class Row:
    """One row of a record. ``ids``: a prompt; empty: the token this row drew last."""

    row: int
    slots: tuple[int, ...]
    ids: tuple[int, ...]
    length: int


class Device:
    """Its memory is written by its jobs alone, in their order."""

    def __init__(self, rng: random.Random) -> None:
        self.tokens = [-1] * ROWS
        self.table: list[list[int]] = [[-1] * 64 for _ in range(ROWS)]
        self.kv = [-1] * SLOTS
        self.ran = 0
        self._jobs: deque[Callable[[], None]] = deque()
        self._rng = rng

    def launch(self, job: Callable[[], None]) -> None:
        self._jobs.append(job)
        if self._rng.random() < 0.3:
            self._run_one()

    def wait(self, step: int) -> None:
        """Block on the event of a step."""
        while self.ran <= step:
            self._run_one()

    def _run_one(self) -> None:
        if self._jobs:
            self._jobs.popleft()()
            self.ran += 1


class Host:
    """The loop. ``depth``: steps launched ahead of the results; the ring of pinned blocks must be longer."""

    def __init__(self, seed: int, bug: str = "", depth: int = 1) -> None:
        self.rng = random.Random(seed)
        self.device = Device(self.rng)
        self.bug, self.depth = bug, depth
        size = depth if bug == "ring_too_short" else depth + 2
        self.records: list[list[tuple[Row, Request]]] = [[] for _ in range(size)]
        self.results: list[list[int]] = [[] for _ in range(size)]
        self.free_rows, self.free_slots = list(range(ROWS)), list(range(SLOTS))
        self.running: list[Request] = []
        self.flying: deque[list[Request]] = deque()
        self.launched = self.landed = 0

    def run(self, requests: list[Request]) -> None:
        waiting = deque(requests)
        while waiting or self.running or self.flying:
            while waiting and self.free_rows and self.rng.random() < 0.7:
                self.admit(waiting.popleft())
            batch = [req for req in self.running if req.planned < LONGEST]
            if batch:
                self.launch(batch)
            elif self.running and not self.flying:
                raise ValueError("results were lost: a request waits for ever")
            if self.flying and (len(self.flying) > self.depth or not batch):
                self.land()

    def admit(self, req: Request) -> None:
        req.row = self.free_rows.pop()
        self.running.append(req)

    def launch(self, batch: list[Request]) -> None:
        step, block = self.launched, self.launched % len(self.records)
        record = []
        for req in batch:
            ids = tuple(req.prompt) if not req.planned else ()
            new = [self.free_slots.pop(0) for _ in ids or (0,)]
            req.slots += new
            req.planned += 1
            record.append((Row(req.row, tuple(req.slots), ids, len(req.slots)), req))
            if self.bug == "second_stream" and ids:
                for slot, token in zip(new, ids, strict=True):
                    self.device.kv[slot] = token
        self.records[block] = record
        self.results[block] = [-1] * len(record)
        self.device.launch(lambda: self.compute(block))
        self.flying.append(batch)
        self.launched = step + 1

    def compute(self, block: int) -> None:
        """The job of one step, on the device."""
        device = self.device
        drawn = []
        for row, req in self.records[block]:
            slots = req.slots if self.bug == "live_record" else list(row.slots)
            length = len(slots) if self.bug == "live_record" else row.length
            ids = list(row.ids) or [device.tokens[row.row]]
            new = slots[length - len(ids) : length]
            if not (self.bug == "second_stream" and row.ids):
                for slot, token in zip(new, ids, strict=False):
                    device.kv[slot] = token
            device.table[row.row][:length] = slots
            drawn.append(next_token([device.kv[slot] for slot in device.table[row.row][:length]]))
            device.tokens[row.row] = drawn[-1]
        self.results[block][: len(drawn)] = drawn

    def land(self) -> None:
        step, block = self.landed, self.landed % len(self.records)
        if self.bug != "read_early":
            self.device.wait(step)
        tokens = self.results[block]
        for req, token in zip(self.flying.popleft(), tokens, strict=False):
            if self.bug == "results_by_row":
                req = next((other for other in self.running if other.row == req.row), req)
            if req.done:
                continue  # it ended a step ago: this row was computed in vain
            req.out.append(token)
            if token == EOS or len(req.out) >= LONGEST:
                self.end(req)
        self.landed = step + 1

    def end(self, req: Request) -> None:
        """Row and slots are free at once: every later write to them is behind what is in flight."""
        req.done = True
        self.running.remove(req)
        self.free_rows.append(req.row)
        self.free_slots = req.slots + self.free_slots
