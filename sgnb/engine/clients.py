"""The clients of one engine: who they are, what they have read, how long they may be silent.

Tokenizer process; used by its loop only. Every client has a number, a lease and a credit: the engine never waits for
one, it drops it. Pure of sockets: frames leave through a Router, time comes from a clock (tests turn it).
"""

from __future__ import annotations

import logging
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec

from sgnb.config import LEASE_SECONDS, MAX_UNACKED_BYTES, MAX_UNACKED_SECONDS
from sgnb.errors import LimitError
from sgnb.liveness import open_pidfd
from sgnb.messages import Dropped, ErrorInfo, Hello, Reply, ServerMessage
from sgnb.transport import Router, encode

log = logging.getLogger("sgnb.engine")
_SUSPENDED_SECONDS = 3.0
"""A tick this late means that this process stood still: nobody could have renewed a lease meanwhile."""
_REMEMBERED = 64
_LARGE_BYTES = 1 << 20
"""A frame above this is the answer to a question: a snapshot, a picture, a long prompt's log-probabilities."""


@dataclass(slots=True)
class Client:
    """One connection. Bytes count whole frames since its hello."""

    number: int
    peer: bytes
    pid: int
    name: str
    owner: bool
    pidfd: int | None
    seen: float
    sent: int = 0
    acked: int = 0
    marks: deque[tuple[int, float]] = field(default_factory=deque)
    """(bytes sent so far, when): how old the oldest byte not acknowledged is."""
    large: deque[tuple[int, int]] = field(default_factory=deque)
    """(bytes sent up to its end, size) of each large frame that is not acknowledged."""

    def note_sent(self, size: int, now: float) -> None:
        """Count a frame that left."""
        if not self.marks or now - self.marks[-1][1] > 0.25:
            self.marks.append((self.sent, now))
        self.sent += size
        if size > _LARGE_BYTES:
            self.large.append((self.sent, size))

    @property
    def unread(self) -> int:
        """Bytes that it is behind. One frame may be larger than all its credit: it is no fault not to have read it yet."""
        while self.large and self.large[0][0] <= self.acked:
            self.large.popleft()
        return self.sent - self.acked - max((size for _, size in self.large), default=0)

    def note_acked(self, total: int, now: float) -> None:
        """The client says how much it has read; this renews its lease too."""
        self.seen = now
        self.acked = max(self.acked, min(total, self.sent))
        while len(self.marks) > 1 and self.marks[1][0] <= self.acked:
            self.marks.popleft()
        if self.acked == self.sent:
            self.marks.clear()

    def fault(self, now: float) -> str:
        """Why it must be dropped, or an empty string."""
        if self.unread > MAX_UNACKED_BYTES:
            return f"it left {self.unread:,} bytes unread (limit {MAX_UNACKED_BYTES:,})"
        if self.marks and self.acked < self.sent and now - self.marks[0][1] > MAX_UNACKED_SECONDS:
            return f"it read nothing for {MAX_UNACKED_SECONDS:.0f} s"
        if now - self.seen > LEASE_SECONDS:
            return f"it was silent for {LEASE_SECONDS:.0f} s"
        return ""


class ClientTable:
    """All clients. ``gone(number)`` is called once for each that leaves, however it leaves."""

    def __init__(
        self, router: Router, incarnation: str, gone: Callable[[int], None], clock: Callable[[], float]
    ) -> None:
        self._router = router
        self._incarnation = incarnation
        self._gone = gone
        self._clock = clock
        self._by_peer: dict[bytes, Client] = {}
        self._by_number: dict[int, Client] = {}
        self._refused: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._last_number = 0
        self._last_tick = clock()

    def __len__(self) -> int:
        return len(self._by_peer)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_peer.values()))

    def now(self) -> float:
        """The clock."""
        return self._clock()

    def find(self, peer: bytes) -> Client | None:
        """The client behind a connection."""
        return self._by_peer.get(peer)

    def add(self, peer: bytes, hello: Hello) -> Client:
        """Number a new client. Raises ProcessLookupError when the process that says hello is gone already."""
        pidfd = open_pidfd(hello.pid, hello.start_time)
        self._last_number += 1
        self._refused.pop(peer, None)
        client = Client(
            number=self._last_number,
            peer=peer,
            pid=hello.pid,
            name=hello.client_name[:64],
            owner=hello.owner,
            pidfd=pidfd,
            seen=self._clock(),
        )
        self._by_peer[peer] = self._by_number[client.number] = client
        return client

    def send(self, number: int, message: ServerMessage) -> None:
        """Send to one client, with the incarnation set; a client that is gone or over its credit is dropped."""
        client = self._by_number.get(number)
        if client is None:
            return
        if getattr(message, "incarnation", None) == "":
            message = msgspec.structs.replace(message, incarnation=self._incarnation)
        try:
            frame = encode(message)
        except LimitError as error:
            if not isinstance(message, Reply) or message.error is not None:
                self.drop(client, f"an answer could not be sent: {error.message}")
                return
            info = ErrorInfo(kind="LimitError", code="limit", message=f"the answer: {error.message}")
            frame = encode(Reply(incarnation=self._incarnation, id=message.id, error=info))
        if not self._router.send(client.peer, frame):
            self.remove(client)
            return
        now = self._clock()
        client.note_sent(len(frame), now)
        if client.unread > MAX_UNACKED_BYTES:
            self.drop(client, client.fault(now))

    def send_all(self, message: ServerMessage) -> None:
        """Send to every client."""
        for client in self:
            self.send(client.number, message)

    def drop(self, client: Client, reason: str) -> None:
        """Tell a client that it is dropped, then forget it; later frames of it are answered alike."""
        log.warning("client %d (%s, pid %d) is dropped: %s", client.number, client.name, client.pid, reason)
        self.refuse(client.peer, reason)
        self.remove(client)

    def refuse(self, peer: bytes, reason: str = "") -> None:
        """Answer a connection that is no client (any more), at most once a second: a flood costs nothing."""
        now = self._clock()
        last_reason, last_time = self._refused.pop(peer, ("say hello first", -1.0))
        answer = bool(reason) or last_time < 0 or now - last_time >= 1.0
        self._refused[peer] = (reason or last_reason, now if answer else last_time)
        while len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)
        if answer:
            frame = encode(Dropped(incarnation=self._incarnation, reason=reason or last_reason))
            self._router.send(peer, frame)

    def remove(self, client: Client) -> None:
        """Forget a client; its requests are aborted and its sessions released by ``gone``."""
        if self._by_peer.pop(client.peer, None) is None:
            return
        del self._by_number[client.number]
        if client.pidfd is not None:
            os.close(client.pidfd)
            client.pidfd = None
        self._gone(client.number)

    def sweep(self) -> None:
        """Drop whoever is over its lease or credit. Call at least once a second while there are clients."""
        now = self._clock()
        if now - self._last_tick > _SUSPENDED_SECONDS:
            for client in self:
                client.seen = now
                client.marks = deque((sent, now) for sent, _ in client.marks)
        self._last_tick = now
        for client in self:
            reason = client.fault(now)
            if reason:
                self.drop(client, reason)
