"""``join("best")``: who wins, what the parent becomes, and what happens to the losers."""

from __future__ import annotations

import pytest

import sgnb as sgl
from sgnb.backends.base import Delta, TokenInfo
from sgnb.backends.mock import HANG, MockBackend
from sgnb.lang.instruction import Fork
from sgnb.runtime.program import eager_execution


@pytest.fixture
def backend():
    mock = MockBackend({"x": ["low", "high", "middle"], "score": ["1", "9", "5"], "after": "end"})
    yield mock
    mock.shutdown()


@sgl.function
def by_score(s, how):
    s += "Root. "
    arms = s.fork(3)
    for arm in arms:
        arm += "Idea: " + sgl.gen("x") + " Score: " + sgl.gen("score")
    arms.join("best", by=how)
    s += " Then " + sgl.gen("after")
    return [arm["x"] for arm in arms]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("how", ["score", lambda branch: float(branch["score"])])
def test_the_parent_goes_on_as_the_best_branch(backend, how, eager):
    if eager:
        with eager_execution():
            state = by_score.run(how, backend=backend)
    else:
        state = by_score.run(how, backend=backend)
    assert sorted(state.ret_value) == ["high", "low", "middle"]
    assert state["score"] == "9"
    assert state.text() == f"Root. Idea: {state['x']} Score: 9 Then end"
    assert backend.prompts[-1] == ("after", state.text().removesuffix("end"))
    assert state.get_meta_info("x")["completion_tokens"] == 1


def test_losers_are_released_at_once(backend):
    @sgl.function
    def prog(s):
        s += "Root. "
        arms = s.fork(3)
        for arm in arms:
            arm += sgl.gen("score")
        arms.join("best", by="score")
        opened = {sid for block in backend.log for op in block.instructions if isinstance(op, Fork)
                  for sid in op.children}  # fmt: skip
        s += sgl.gen("after")
        s.sync()
        return opened - set(backend.released), [arm.open for arm in arms]

    state = prog.run(backend=backend)
    left, still_open = state.ret_value
    assert left <= {state.sid} and still_open == [False] * 3


def test_a_parent_that_went_on_gets_the_winners_text(backend):
    @sgl.function
    def prog(s):
        s += "Root. "
        arms = s.fork(3)
        for arm in arms:
            arm += "A" + sgl.gen("score")
        s += "Meanwhile. "
        arms.join("best", by="score")
        return s["score"]

    state = prog.run(backend=backend)
    assert state.ret_value == "9" and state.text() == "Root. Meanwhile. A9"


class Scored(MockBackend):
    """Each generation's tokens have the log-probability that its number in the order of asking gives."""

    def submit(self, block, sink):
        def scored(events):
            out = []
            for event in events:
                if isinstance(event, Delta):
                    value = -float({"low": 3, "high": 1, "middle": 2}[event.text])
                    event = Delta(event.rid, event.text, tuple(TokenInfo(t.id, value) for t in event.tokens))
                out.append(event)
            sink(out)

        super().submit(block, scored)


def test_without_a_key_the_log_probability_decides():
    backend = Scored({"x": ["low", "high", "middle"]})

    @sgl.function
    def prog(s, logprobs):
        arms = s.fork(3)
        for arm in arms:
            arm += sgl.gen("x", return_logprob=logprobs)
        arms.join("best")
        return s["x"]

    assert prog.run(True, backend=backend).ret_value == "high"
    backend.shutdown()


@pytest.mark.parametrize(
    ("join", "message"),
    [
        ('arms.join("best")', "branch 0: join(\"best\") compares log-probabilities, and 'x' has none."),
        (
            'arms.join("best", by="z")',
            "branch 0: join(by='z') names a variable that this branch has not bound.",
        ),
        ('arms.join("best", by="x")', "branch 0: join(by=…) gave 'low', which is no number."),
        ('arms.join("gather_variable", by="x")', "join(by=…) has no meaning with mode='gather_variable'."),
        (
            'arms.join("concate_and_append", method="kv")',
            'No join(method="kv"): The state was empty when it was forked.',
        ),
        ('arms.join("concate_and_append", method="x")', "join(method='x') is unknown."),
    ],
)
def test_wrong_joins_have_a_place(join, message):
    backend = MockBackend({"x": ["low", "high"]})
    text = f"arms = s.fork(2)\nfor arm in arms:\n    arm += gen('x')\n{join}\n"
    from sgnb.runtime.run import run_cell

    with pytest.raises(sgl.ProgramError) as caught:
        run_cell(text, cell_name="1", user_ns={}, backend=backend).drive(20)
    assert caught.value.message == message
    assert caught.value.position.line == 4
    backend.shutdown()


def test_a_failed_branch_is_reported_with_its_own_line():
    backend = MockBackend({"x": ["fine", ValueError("broken")], "y": HANG})
    text = "arms = s.fork(2)\narms[0] += gen('x')\narms[1] += gen('x')\narms.join('best', by=lambda b: 1)\n"
    from sgnb.runtime.run import run_cell

    with pytest.raises(sgl.SgnbError) as caught:
        run_cell(text, cell_name="1", user_ns={}, backend=backend).drive(20)
    assert caught.value.message.startswith("branch 1: ") and caught.value.position.line == 3
    backend.shutdown()
