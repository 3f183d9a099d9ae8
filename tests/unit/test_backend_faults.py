"""A fault at each call of the backend in turn, over the whole corpus: every run ends in time, with an error or a value."""

from __future__ import annotations

from collections import Counter

import pytest
from corpus.case import Case, load
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.backends.base import Backend
from sgnb.backends.mock import MockBackend
from sgnb.errors import EngineDied, EngineError

CASES = load()
DEADLINE = 20.0
CALLS = (
    "new_sid", "new_rid", "template", "submit", "abort", "release", "model_name", "spare_tokens", "note_join",
    "refuse_kv_join", "text_of",
)  # fmt: skip


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

    @property
    def model_name(self):
        self._count("model_name")
        return super().model_name

    def spare_tokens(self):
        self._count("spare_tokens")
        return 100_000

    def note_join(self, branches):
        self._count("note_join")

    def refuse_kv_join(self):
        self._count("refuse_kv_join")
        return super().refuse_kv_join()

    def text_of(self, ids):
        self._count("text_of")
        return super().text_of(ids)


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


def test_every_call_of_the_interface_is_covered():
    """``carrier`` is who answers, ``shutdown`` ends it on purpose."""
    names = {name for name in vars(Backend) if not name.startswith("_")}
    assert names - {"carrier", "shutdown"} == set(CALLS)


class Broken(WholeEngine):
    """An engine whose connection is gone for one kind of question."""

    broken = ""

    def text_of(self, ids):
        if self.broken == "text_of":
            raise EngineDied("injected")
        return super().text_of(ids)

    def refuse_kv_join(self):
        if self.broken == "refuse_kv_join":
            raise EngineDied("injected")
        return ""


@pytest.mark.parametrize("call", ["text_of", "refuse_kv_join"])
def test_a_question_that_fails_is_an_error_there_and_the_state_goes_on(call):
    engine = Broken()

    @sgl.function
    def prog(s):
        s += "A beginning. " + sgl.gen("x", max_tokens=6, ignore_eos=True)
        branches = s.fork(2)
        branches += "A branch. " + sgl.gen("y", max_tokens=3, ignore_eos=True)
        return branches

    state = prog.run(backend=engine)
    branches = state.ret_value
    state.sync()
    engine.broken = call
    with pytest.raises(EngineDied, match="injected"):
        if call == "text_of":
            state.fork_at("x", 2)
        else:
            branches.join("concate_and_append", method="kv")
    engine.broken = ""
    branches.join("concate_and_append", method="kv")
    state.fork_at("x", 2).sync()
    state += " On. " + sgl.gen("z", max_tokens=2, ignore_eos=True)
    assert state["z"] and state.get_meta_info("z")["joined_kv"] == "approximate"
    engine.shutdown()
