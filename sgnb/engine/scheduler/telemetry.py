"""Telemetry of the scheduler: numbered events, a bounded ring of them, and the engine's figures.

Role: ``Meter`` counts what the scheduler does and makes ``EngineStats``; ``Telemetry`` numbers events, keeps the last eleven
minutes or 64 MB and hands out frames for the PUB socket. Scheduler process; the process loop gives ``Telemetry.emit`` to
``Scheduler`` as its ``publish`` and sends ``take_frame`` at each heartbeat or sooner. Lengths, ids and labels only, never
text or token ids. No sockets here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec

from sgnb.config import HEARTBEAT_SECONDS
from sgnb.messages import EncodedFrame, EngineStats, Numbered, TelemetryEvent

RING_SECONDS = 660.0
"""Ten minutes, and as long as two whole pictures (``key_pictures``) lie apart."""
RING_BYTES = 64 << 20
ENTRY_BYTES = 136
"""What Python needs beside an entry's own bytes: most events are small, so it counts."""
FRAME_BYTES = 4 << 20
HIT_RATE_SECONDS = 60.0
THROUGHPUT_SECONDS = 2.0
FORK_SECONDS = 60.0


def steady_clock() -> Callable[[], float]:
    """Seconds since the epoch as of now, then steadily forward: a changed system clock makes no negative times."""
    offset = time.time() - time.monotonic()
    return lambda: offset + time.monotonic()


class Telemetry:
    """Numbers events from 1 without holes; keeps a bounded past."""

    def __init__(self, ring_bytes: int = RING_BYTES, ring_seconds: float = RING_SECONDS) -> None:
        self.last_seq = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Numbered)
        self._ring: deque[tuple[float, bytes]] = deque()
        """Encoded: objects would take several times the bytes that are counted."""
        self._bytes = 0
        self._ring_bytes = ring_bytes
        self._ring_seconds = ring_seconds
        self._fresh: deque[bytes] = deque()
        """Those that no frame has carried yet."""

    def emit(self, event: TelemetryEvent) -> None:
        """Number an event, keep it, and put it in the next frame. It is encoded once, here."""
        self.last_seq += 1
        encoded = self._encoder.encode(Numbered(seq=self.last_seq, event=event))
        self._ring.append((event.time, encoded))
        self._bytes += len(encoded) + ENTRY_BYTES
        self._fresh.append(encoded)
        while self._bytes > self._ring_bytes or self._ring[0][0] < event.time - self._ring_seconds:
            self._bytes -= len(self._ring.popleft()[1]) + ENTRY_BYTES

    def take_frame(self, incarnation: str, now: float) -> EncodedFrame:
        """What is new since the last frame, some 4 MB of it at most (then more is ``pending``); an empty one is the
        heartbeat."""
        events: list[msgspec.Raw] = []
        size = 0
        while self._fresh and (not events or size + len(self._fresh[0]) <= FRAME_BYTES):
            encoded = self._fresh.popleft()
            size += len(encoded)
            events.append(msgspec.Raw(encoded))
        last = self.last_seq - len(self._fresh)
        return EncodedFrame(incarnation=incarnation, last_seq=last, time=now, events=events)

    @property
    def pending(self) -> bool:
        """True when a frame would carry events."""
        return bool(self._fresh)

    @property
    def first_seq(self) -> int:
        """Number of the oldest event in the ring; numbers have no holes."""
        return self.last_seq - len(self._ring) + 1

    def history(self, from_seq: int, limit: int | None = None) -> list[Numbered]:
        """Events from ``from_seq`` on that are still in the ring, oldest first, at most ``limit``."""
        start = max(0, from_seq - self.first_seq)
        if start >= len(self._ring):
            return []
        kept = islice(self._ring, start, None if limit is None else start + limit)
        return [self._decoder.decode(encoded) for _, encoded in kept]


class Meter:
    """Totals and rates. Times are seconds of the clock it is given."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.forward_steps = 0
        self.retracted = 0
        self.prompt_total = 0
        self.cached_total = 0
        self.generated_total = 0
        self._prompts: deque[tuple[float, int, int]] = deque()
        self._generated: deque[tuple[float, int]] = deque()
        self._forks: deque[float] = deque()
        self._next_beat = 0.0

    def note_prompt(self, prompt: int, cached: int) -> None:
        """A request was admitted for the first time."""
        self.prompt_total += prompt
        self.cached_total += cached
        self._prompts.append((self.clock(), prompt, cached))

    def note_generated(self, count: int) -> None:
        """A step drew ``count`` tokens."""
        if count:
            self.generated_total += count
            self._generated.append((self.clock(), count))

    def note_fork(self) -> None:
        """A session was forked off another."""
        self._forks.append(self.clock())

    def fork_rate(self) -> float:
        """Forked sessions a second, over the last minute."""
        now = self.clock()
        while self._forks and self._forks[0] < now - FORK_SECONDS:
            self._forks.popleft()
        return len(self._forks) / FORK_SECONDS

    def due(self) -> bool:
        """True once every heartbeat."""
        now = self.clock()
        if now < self._next_beat:
            return False
        self._next_beat = now + HEARTBEAT_SECONDS
        return True

    def rates(self) -> tuple[float, float]:
        """(cache hit rate of the last minute, generated tokens a second of the last two seconds)."""
        now = self.clock()
        while self._prompts and self._prompts[0][0] < now - HIT_RATE_SECONDS:
            self._prompts.popleft()
        while self._generated and self._generated[0][0] < now - THROUGHPUT_SECONDS:
            self._generated.popleft()
        prompt = sum(asked for _, asked, _ in self._prompts)
        cached = sum(reused for _, _, reused in self._prompts)
        tokens = sum(count for _, count in self._generated)
        # Measured from the first counted step, but over no less than half a second, so one step is no burst.
        span = max(0.5, now - self._generated[0][0]) if self._generated else THROUGHPUT_SECONDS
        return cached / prompt if prompt else 0.0, tokens / span

    def stats(
        self,
        *,
        running: int,
        queued: int,
        sessions: int,
        free: int,
        cached: int,
        locked: int,
        total: int,
        new_token_ratio: float,
        evicted: int,
        paused: bool = False,
        held: int = 0,
        half_filled: int = 0,
        compiling: int = 0,
    ) -> EngineStats:
        """The figures of this moment; counts in requests, sessions and slots. Of those in the tree ``cached`` are evictable,
        ``locked`` are not."""
        hit_rate, throughput = self.rates()
        used = total - free - cached
        return EngineStats(
            time=self.clock(),
            num_running_reqs=running,
            num_queue_reqs=queued,
            num_sessions=sessions,
            num_used_tokens=used,
            num_cached_tokens=cached,
            num_free_tokens=free,
            max_total_num_tokens=total,
            token_usage=used / total,
            cache_hit_rate=hit_rate,
            gen_throughput=throughput,
            new_token_ratio=new_token_ratio,
            num_retracted_reqs=self.retracted,
            forward_steps=self.forward_steps,
            prompt_tokens_total=self.prompt_total,
            cached_tokens_total=self.cached_total,
            generated_tokens_total=self.generated_total,
            evicted_tokens_total=evicted,
            num_paused_reqs=held,
            paused=paused,
            fork_rate=self.fork_rate(),
            num_half_filled_tokens=half_filled,
            num_locked_tokens=locked,
            num_grammar_queue_reqs=compiling,
        )
