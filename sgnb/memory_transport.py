"""Links in memory with the interface of ``transport``'s: one process holds all ends, so a test gives each its turn.

Any process; used where the loops of notebook, tokenizer and scheduler are stepped one by one. Frames are bytes here too, so
what cannot be encoded fails as on a socket. No token is asked for, nobody dies, nothing is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sgnb.transport import Wakeup


class MemoryLink:
    """One end of an in-memory pair, for tests: the interface of ZmqLink, no process, no auth."""

    def __init__(self) -> None:
        self._inbox: deque[bytes] = deque()
        self._wake = Wakeup()
        self._deliver: Callable[[bytes], None] | None = None
        self.monitor: Any = None

    def take(self, frame: bytes) -> None:
        """A frame arrives."""
        self._inbox.append(frame)
        self._wake.set()

    def send(self, frame: bytes) -> None:
        """Put the frame into the other end's inbox."""
        if self._deliver is not None:
            self._deliver(frame)

    def recv(self) -> bytes | None:
        """The next frame, or None."""
        if not self._inbox:
            self._wake.clear()
        return self._inbox.popleft() if self._inbox else None

    @property
    def pollable(self) -> Any:
        """The wake-up pipe."""
        return self._wake.fileno()

    def events(self) -> list[str]:
        """Nothing ever happens to memory."""
        return []

    def close(self, linger: int = 0) -> None:
        """Part from the other end."""
        self._deliver = None
        self._wake.close()


def memory_pair() -> tuple[MemoryLink, MemoryLink]:
    """Two ends; what one sends the other receives."""
    left, right = MemoryLink(), MemoryLink()
    left._deliver, right._deliver = right.take, left.take
    return left, right


class MemoryRouter:
    """A Router whose peers are MemoryLinks made by ``connect``."""

    def __init__(self) -> None:
        self._inbox: deque[tuple[bytes, bytes]] = deque()
        self._wake = Wakeup()
        self._peers: dict[bytes, MemoryLink] = {}

    def connect(self) -> MemoryLink:
        """A new peer's end."""
        name = f"m{len(self._peers)}".encode()

        def deliver(frame: bytes) -> None:
            self._inbox.append((name, frame))
            self._wake.set()

        link = self._peers[name] = MemoryLink()
        link._deliver = deliver
        return link

    def send(self, peer: bytes, frame: bytes) -> bool:
        """Put the frame into that peer's inbox; False when it was closed."""
        found = self._peers.get(peer)
        if found is None or found._deliver is None:
            return False
        found.take(frame)
        return True

    def recv(self) -> tuple[bytes, bytes] | None:
        """The next (peer, frame), or None."""
        if not self._inbox:
            self._wake.clear()
        return self._inbox.popleft() if self._inbox else None

    @property
    def pollable(self) -> Any:
        """The wake-up pipe."""
        return self._wake.fileno()

    def close(self, linger: int = 0) -> None:
        """Part from all peers."""
        for peer in self._peers.values():
            peer._deliver = None
        self._wake.close()
