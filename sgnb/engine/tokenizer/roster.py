"""Who has what: sessions of all clients, their requests in flight and queued, and what each client may still open.

Tokenizer process; the books of ``manager`` and ``queues``, on their one thread. Nothing is sent here and nothing is encoded.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from sgnb.engine.tokenizer.refusals import foreign, full, owns, refuse_child, refuse_request
from sgnb.engine.tokenizer.session import Session
from sgnb.messages import Decode, ErrorInfo, Select

_REMEMBERED = 4096


@dataclass(slots=True)
class Request:
    """What must be known of a request in flight, for its output."""

    client: int
    sid: str
    with_ids: bool = False
    """Its prompt and output ids go back to the client."""
    notes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Of a select: as they were written."""
    with_text: bool = False
    """Log-probabilities carry the text of their tokens."""
    fresh: Sequence[int] = ()
    """The end of its prompt: what its session had not sent to a request before."""
    told_prompt: bool = False
    """Its client has ``fresh``."""


class Roster:
    """``max_sessions`` and ``max_waiting`` are limits of each client: open sessions, and requests that wait or run."""

    def __init__(self, max_sessions: int, max_waiting: int) -> None:
        self.sessions: dict[str, Session] = {}
        self.requests: dict[str, Request] = {}
        """In flight."""
        self.queued: dict[str, str] = {}
        """Requests that wait in their session's queue, or are being encoded: rid → sid."""
        self.waiting: Counter[int] = Counter()
        """Requests of each client that have not ended."""
        self._open: Counter[int] = Counter()
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._refused: OrderedDict[str, ErrorInfo] = OrderedDict()
        """Sessions that could not be opened, so that their later ops name the first cause."""

    def counts(self) -> dict[str, int]:
        """Sessions, requests in flight, requests queued here."""
        return {"sessions": len(self.sessions), "running": len(self.requests), "queued": len(self.queued)}

    def of_client(self, client: int) -> list[Session]:
        """Its sessions, in the order they were opened."""
        return [session for session in self.sessions.values() if session.client == client]

    # ------------------------------------------------------------ sessions

    def usable(self, client: int, sid: str) -> Session | None:
        """A session that this client may still send ops to."""
        session = self.sessions.get(sid)
        return session if session is not None and session.client == client and not session.closing else None

    def refuse_session(self, client: int, sid: str) -> ErrorInfo | None:
        """Why this client cannot open a session of a name that is free; None if it can."""
        if not owns(client, sid):
            return foreign("session", sid, client)
        return self._full(client)

    def refuse_child(self, parent: Session, child: str, width: int) -> ErrorInfo | None:
        """Why a fork of ``width`` cannot open this child; None if it can."""
        known, depth = child in self.sessions, parent.depth + 1
        refused = refuse_child(parent.client, child, known=known, width=width, depth=depth)
        return refused or self._full(parent.client)

    def _full(self, client: int) -> ErrorInfo | None:
        count = self._open[client]
        return full(count, self._max_sessions) if count >= self._max_sessions else None

    def add(self, session: Session) -> None:
        """A session is open."""
        self._refused.pop(session.sid, None)
        self.sessions[session.sid] = session
        self._open[session.client] += 1

    def remove(self, session: Session) -> bool:
        """A session is closed; False if it was."""
        if self.sessions.pop(session.sid, None) is None:
            return False
        self._open[session.client] -= 1
        return True

    def remember(self, sid: str, error: ErrorInfo) -> None:
        """Why a session could not be opened."""
        self._refused[sid] = error
        if len(self._refused) > _REMEMBERED:
            self._refused.popitem(last=False)

    def recall(self, sid: str) -> ErrorInfo | None:
        """Why a session could not be opened, if that is known."""
        return self._refused.get(sid)

    def forget(self, sid: str) -> None:
        """Nobody will ask for the session again."""
        self._refused.pop(sid, None)

    # ------------------------------------------------------------ requests

    def refuse_request(self, client: int, op: Decode | Select, vocab_size: int) -> ErrorInfo | None:
        """Why this request cannot be taken, or None."""
        return refuse_request(
            client,
            op,
            known=self.known(op.rid),
            waiting=self.waiting[client],
            max_waiting=self._max_waiting,
            vocab_size=vocab_size,
        )

    def known(self, rid: str) -> bool:
        """A request of that name has not ended."""
        return rid in self.requests or rid in self.queued

    def launch(self, rid: str, request: Request) -> None:
        """A queued request is with the scheduler now."""
        del self.queued[rid]
        self.requests[rid] = request

    def end(self, rid: str) -> None:
        """A request in flight has ended."""
        self.waiting[self.requests.pop(rid).client] -= 1

    def drop_client(self, client: int) -> list[str]:
        """Forget all of a client: the requests it had in flight."""
        for session in self.of_client(client):
            del self.sessions[session.sid]
        rids = [rid for rid, request in self.requests.items() if request.client == client]
        for rid in rids:
            del self.requests[rid]
        self.queued = {rid: sid for rid, sid in self.queued.items() if sid in self.sessions}
        for counter in (self._open, self.waiting):
            counter.pop(client, None)
        return rids
