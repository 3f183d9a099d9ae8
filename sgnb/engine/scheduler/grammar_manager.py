"""The grammar queue: requests whose constraint is being compiled, and the compiled ones worth keeping.

Role: from a request's constraint to its ``GrammarState``, without ever stopping the loop. Scheduler process; ``Scheduler``
adds requests, polls each pass and takes back those that end meanwhile; threads of this module wait for the backend. Equal
constraints are compiled once, however many ask. What a mask does to a draw is the sampler's business.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable

from sgnb.constraints import Constraint
from sgnb.engine.grammar.base import (
    BACKENDS,
    CompiledGrammar,
    GrammarBackend,
    GrammarError,
    GrammarState,
    Vocabulary,
)
from sgnb.engine.scheduler.req import Req
from sgnb.messages import ErrorInfo, TokenTable

log = logging.getLogger(__name__)

CACHE_BYTES = 64 << 20
CACHE_ENTRIES = 256
THREADS = 2
"""Constraints that compile at once: a slow one does not keep the next waiting."""

Outcome = CompiledGrammar | ErrorInfo
Gate = Callable[[Constraint], ErrorInfo | None]
"""Refuses a constraint that could be compiled but not kept to the letter; asked before anything is compiled."""
Told = Callable[[Outcome], None]
"""Hears what came of a constraint."""


def _open_gate(constraint: Constraint) -> ErrorInfo | None:
    return None


class GrammarManager:
    """One engine's. ``wake`` is called from a thread when ``poll`` has news: it must make the loop turn."""

    def __init__(self, backend: str, vocab_size: int, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        self.gate: Gate = _open_gate
        self.queue: list[Req] = []
        """Requests that wait for their grammar."""
        self.compiled_total = 0
        self._name = backend
        self._vocab_size = vocab_size
        self._vocabulary: Vocabulary | None = None
        self._backend: GrammarBackend | None = None
        self._backend_lock = threading.Lock()
        self._cache: OrderedDict[Constraint, tuple[Outcome, int]] = OrderedDict()
        self._cached_bytes = 0
        self._waiting: dict[Constraint, list[Req]] = {}
        """Who waits for each that is wanted or being compiled."""
        self._told: dict[Constraint, list[Told]] = {}
        """Who asked for it ahead of any request, by ``prepare``."""
        self._wanted: dict[Constraint, None] = {}
        """What no thread has begun with, in the order of asking; it and its condition are all that threads share."""
        self._changed = threading.Condition()
        self._done: deque[tuple[Constraint, Outcome, bool]] = deque()
        self._threads: list[threading.Thread] = []

    def set_vocabulary(self, msg: TokenTable) -> None:
        """The tokens, once at start."""
        table = msg.table[: self._vocab_size]
        self._vocabulary = Vocabulary(table, self._vocab_size, frozenset(msg.special_ids), msg.eos_token_ids)

    # ------------------------------------------------------------ the loop's side

    def add(self, req: Req, constraint: Constraint) -> ErrorInfo | None:
        """Give a request its grammar now, or queue it until ``poll`` does. An error if it can have none."""
        known = self._known(constraint)
        if known is None:
            self.queue.append(req)
            self._want(constraint)
            self._waiting[constraint].append(req)
            return None
        return self._give(req, known)

    def prepare(self, constraint: Constraint, told: Told) -> None:
        """Compile it though no request waits for it yet; ``told`` is called now, or by ``poll``."""
        known = self._known(constraint)
        if known is None:
            self._told.setdefault(constraint, []).append(told)
            self._want(constraint)
        else:
            told(known)

    @property
    def ahead(self) -> int:
        """Constraints that are to be compiled, or are being, for ``prepare``."""
        return len(self._told)

    def _known(self, constraint: Constraint) -> Outcome | None:
        """What came of it, or why it is not begun with; None: that will be seen."""
        if self._name not in BACKENDS or self._vocabulary is None:
            return ErrorInfo(
                kind="RequestError",
                code="grammar",
                message=f"{constraint.kind} needs a grammar backend, and this engine has grammar_backend={self._name!r}",
                hint='Launch with grammar_backend="xgrammar".',
            )
        if constraint in self._cache:
            self._cache.move_to_end(constraint)
            return self._cache[constraint][0]
        return self.gate(constraint)

    def _want(self, constraint: Constraint) -> None:
        if constraint in self._waiting:
            return
        self._waiting[constraint] = []
        with self._changed:
            self._wanted[constraint] = None
            self._changed.notify()
        self._start()

    def drop(self, req: Req) -> None:
        """It ended: it waits no more. What is being compiled for it is kept all the same; what is not begun with is not,
        unless others want it."""
        self.queue.remove(req)
        assert req.constraint is not None, "only who has a constraint waits for a grammar"
        waiting = self._waiting[req.constraint]
        waiting.remove(req)
        if not waiting and req.constraint not in self._told:
            with self._changed:
                if req.constraint in self._wanted:
                    del self._wanted[req.constraint], self._waiting[req.constraint]

    @property
    def has_news(self) -> bool:
        """True when ``poll`` will give something or clean up."""
        return bool(self._done)

    def poll(self) -> list[tuple[Req, ErrorInfo | None]]:
        """Requests whose grammar is there (in ``req.grammar``), or which have to fail, in the order of compilation."""
        out: list[tuple[Req, ErrorInfo | None]] = []
        while self._done:
            constraint, outcome, lasting = self._done.popleft()
            self.compiled_total += 1
            if lasting:
                self._keep(constraint, outcome)
            for told in self._told.pop(constraint, []):
                told(outcome)
            for req in self._waiting.pop(constraint, []):
                self.queue.remove(req)
                out.append((req, self._give(req, outcome)))
        return out

    def _give(self, req: Req, outcome: Outcome) -> ErrorInfo | None:
        if isinstance(outcome, ErrorInfo):
            return outcome
        assert self._vocabulary is not None
        try:
            req.grammar = GrammarState(outcome, req.eos_ids, self._vocabulary.words)
        except Exception as error:  # one request's, whatever the library finds
            log.exception("a matcher could not be made")
            return ErrorInfo(kind="RequestError", code="grammar", message=f"its grammar failed: {error!r}")
        return req.grammar.error

    def _keep(self, constraint: Constraint, outcome: Outcome) -> None:
        size = len(constraint.text) + (outcome.size if isinstance(outcome, CompiledGrammar) else 0)
        self._cache[constraint] = (outcome, size)
        self._cached_bytes += size
        while self._cached_bytes > CACHE_BYTES or len(self._cache) > CACHE_ENTRIES:
            _, (_, freed) = self._cache.popitem(last=False)
            self._cached_bytes -= freed

    # ------------------------------------------------------------ the threads

    def _start(self) -> None:
        """One more thread while there is more to do than threads. They live as long as the process: a worker process is
        tied to the thread that started it."""
        if len(self._threads) < min(THREADS, len(self._waiting)):
            thread = threading.Thread(target=self._work, name="sgnb-grammar", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._wanted:
                    self._changed.wait()
                constraint = next(iter(self._wanted))
                del self._wanted[constraint]
            self._done.append((constraint, *self._compile(constraint)))
            self.wake()

    def _compile(self, constraint: Constraint) -> tuple[Outcome, bool]:
        try:
            with self._backend_lock:
                if self._backend is None:
                    assert self._vocabulary is not None
                    self._backend = BACKENDS[self._name](self._vocabulary)
            return self._backend.compile(constraint), True
        except GrammarError as error:
            return error.info, error.lasting
        except Exception as error:  # a fault of the backend fails its requests, never the engine
            log.exception("compiling a %s failed", constraint.kind)
            message = f"compiling the {constraint.kind} failed: {error!r}"
            return ErrorInfo(kind="RequestError", code="grammar", message=message), False

    def close(self) -> None:
        """End the backend's processes. Idempotent."""
        if self._backend is not None:
            self._backend.close()
