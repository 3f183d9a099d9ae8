"""A fault at each call of the backend in turn, over the whole corpus: every run ends in time, with an error or a value."""

from __future__ import annotations

from collections import Counter

import pytest
from corpus.case import Case, load

from sgnb.backends.mock import MockBackend
from sgnb.errors import EngineDied, EngineError

CASES = load()
DEADLINE = 20.0
CALLS = ("new_sid", "new_rid", "template", "submit", "abort", "release")


class Faulty(MockBackend):
    """Its ``at``-th call of ``call`` fails; ``dies``: the engine ends there, so that all later ones fail too."""

    def __init__(self, script, call="", at=-1, *, dies=False):
        super().__init__(script)
        self.counts: Counter[str] = Counter()
        self.call, self.at, self.dies = call, at, dies

    def _count(self, call):
        self.counts[call] += 1
        if call == self.call and self.counts[call] - 1 == self.at:
            if self.dies:
                self.kill("injected")
            raise EngineDied("injected") if self.dies else EngineError("injected")

    def new_sid(self):
        self._count("new_sid")
        return super().new_sid()

    def new_rid(self):
        self._count("new_rid")
        return super().new_rid()

    def template(self):
        self._count("template")
        return super().template()

    def submit(self, block, sink):
        self._count("submit")
        super().submit(block, sink)

    def abort(self, rids=(), sids=()):
        self._count("abort")
        super().abort(rids, sids)

    def release(self, sids):
        self._count("release")
        super().release(sids)


def ends(case: Case, backend: Faulty) -> None:
    """Run it on the pool; whatever happens it is over in time, and so is every read."""
    try:
        run = case.program.run_async(*case.args, backend=backend, seed=1, **case.kwargs)
    except EngineError:
        return  # its first state could not be opened
    assert run.core.wait_plain(lambda: run.core.finished, DEADLINE), f"hangs: {backend.call} {backend.at}"
    assert run.status in ("finished", "failed")
    run.state.error()
    run.state.text_so_far()
    assert not run.core.slots and not run.core.pending and not run.core.held


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_at_each_backend_call_ends_in_time(case):
    clean = Faulty(case.script)
    ends(case, clean)
    clean.shutdown()
    for call in CALLS:
        count = clean.counts[call]
        for at in sorted({*range(min(count, 3)), count - 1} - {-1}):
            for dies in (False, True):
                backend = Faulty(case.script, call, at, dies=dies)
                ends(case, backend)
                backend.shutdown()
