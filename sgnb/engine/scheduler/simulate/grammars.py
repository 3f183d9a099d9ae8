"""Grammars of a simulation: a request waits as long as its grammar took, and ends where its grammar ended it.

Role: stands where ``GrammarManager`` does, with its interface; made by ``play``. No grammar is compiled and no token is
masked: what is drawn is known.
"""

from __future__ import annotations

import numpy as np

from sgnb.constraints import Constraint
from sgnb.engine.grammar.base import GrammarState, Mask
from sgnb.engine.scheduler.grammar_manager import GrammarManager
from sgnb.engine.scheduler.req import Req
from sgnb.engine.scheduler.simulate.script import Output
from sgnb.messages import ErrorInfo

_MASK: Mask = np.full(1, -1, dtype=np.int32)


class CountedGrammar(GrammarState):
    """A grammar that is done after so many tokens; None: never."""

    __slots__ = ("_left",)

    def __init__(self, tokens: int | None) -> None:
        self.mask, self.allowed, self.forced = _MASK, 2, 0
        self.may_end, self.error = False, None
        self._left = tokens
        self.done = tokens == 0

    def accept(self, token: int) -> None:
        """One token less."""
        if self._left is not None:
            self._left -= 1
            self.done = self._left <= 0


class SimulatedGrammars(GrammarManager):
    """See the module."""

    def __init__(self, outputs: list[Output]) -> None:
        super().__init__("simulated", 0)
        self._outputs = outputs
        self._ready: list[str] = []

    def compiled(self, rid: str) -> None:
        """The grammar of this request is there; it goes on at the next pass."""
        self._ready.append(rid)

    def add(self, req: Req, constraint: Constraint) -> ErrorInfo | None:
        """Give a request its grammar now, or queue it until ``compiled``."""
        output = self._outputs[req.seed]
        if output.waits:
            self.queue.append(req)
        else:
            self._count(req, output)
        return None

    def drop(self, req: Req) -> None:
        """It waits no more."""
        self.queue.remove(req)

    @property
    def has_news(self) -> bool:
        """A request need not wait any longer."""
        return bool(self._ready)

    def poll(self) -> list[tuple[Req, ErrorInfo | None]]:
        """Requests whose grammar is there now."""
        ready, self._ready = self._ready, []
        waiting = {req.rid: req for req in self.queue}
        out: list[tuple[Req, ErrorInfo | None]] = []
        for rid in ready:
            req = waiting.get(rid)
            if req is not None:
                self.queue.remove(req)
                self._count(req, self._outputs[req.seed])
                out.append((req, None))
        return out

    def _count(self, req: Req, output: Output) -> None:
        req.grammar = CountedGrammar(len(output.ids) if output.ends == "grammar" else None)
