"""Tracing: what SGLang's tracer shows of a program, sgnb's shows too, in the same order.

The shapes are those of SGLang's own tracing tests: questions with examples, a choice, roles, forks, a bound argument and the
prefix that a batch shares. What its removed ``compile`` did is what a run does here.
"""

from __future__ import annotations

import pytest
from fake_model import Answers, peer_backend
from sglang_peer import load_peer, peer_module

import sgnb
from sgnb.backends.mock import MockBackend


@pytest.fixture
def peer():
    return load_peer()


def peer_steps(tracer):
    """The tracer's nodes as (kind, what), neighbouring text joined, turns' own texts left out by the template."""
    ir = peer_module("lang.ir")
    steps = []
    for node in tracer.flatten_nodes():
        if isinstance(node, ir.SglConstantText | ir.SglArgument | ir.SglVariable):
            text = node.value if isinstance(node, ir.SglConstantText) else f"{{{node.name}}}"
            if steps and steps[-1][0] == "text":
                steps[-1] = ("text", steps[-1][1] + text)
            elif text:
                steps.append(("text", text))
        elif isinstance(node, ir.SglGen):
            steps.append(("gen", node.name))
        elif isinstance(node, ir.SglSelect):
            steps.append(("select", node.name))
    return steps


def own_steps(trace, sid="s0"):
    steps = []
    for line in trace.lines():
        name, _, rest = line.partition(" ")
        kind, _, what = rest.partition(" ")
        if name != sid or kind not in ("text", "gen", "select"):
            continue
        if kind == "text":
            words = _literals(what)
            if steps and steps[-1][0] == "text":
                steps[-1] = ("text", steps[-1][1] + "".join(words))
            elif words:
                steps.append(("text", "".join(words)))
        else:
            steps.append((kind, what.split(" ")[0]))
    return steps


def _literals(line):
    """The quoted texts of a traced line; turn marks have none in a trace."""
    import ast
    import re

    return [ast.literal_eval(text) for text in re.findall(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", line)]


def few_shot(sgl):
    @sgl.function
    def few_shot(s, question):
        s += "Questions with answers.\n"
        s += "Q: What is the capital of Spain?\nA: Madrid\n"
        s += "Q: " + question + "\n"
        s += "A:" + sgl.gen("answer", stop="\n")

    return few_shot


def choice(sgl):
    @sgl.function
    def choice(s):
        s += "The capital of Spain is "
        s += sgl.select("capital", ["Madrid. ", "Lisbon. "])
        s += "It is" + sgl.gen("description", stop=".")

    return choice


def turns(sgl):
    @sgl.function
    def turns(s):
        s += sgl.user("Who are you?")
        s += sgl.assistant(sgl.gen("one"))
        s += sgl.user("Who made you?")
        s += sgl.assistant(sgl.gen("two"))

    return turns


def forked(sgl):
    @sgl.function
    def forked(s):
        s += "Three tips: eat, move, sleep.\n"
        forks = s.fork(3)
        for i in range(3):
            forks[i] += f"Tip {i}:\n"
            forks[i] += sgl.gen("tip")
        s += "One:" + forks[0]["tip"] + "\nTwo:" + forks[1]["tip"]
        s += "In short" + sgl.gen("summary")

    return forked


def plain_backend():
    """SGLang's tracer puts the template's texts into the nodes; this template has none, as sgnb's trace."""
    backend = peer_backend(Answers())
    template = peer_module("lang.chat_template").ChatTemplate
    backend.chat_template = template("none", None, dict.fromkeys(("system", "user", "assistant"), ("", "")))
    return backend


@pytest.mark.parametrize("build", [few_shot, choice, turns, forked], ids=lambda build: build.__name__)
def test_trace_shows_the_same_steps(peer, build):
    theirs = peer_steps(build(peer).trace(backend=plain_backend()))
    assert own_steps(build(sgnb).trace()) == theirs


def test_a_bound_argument_is_traced(peer):
    theirs = peer_steps(few_shot(peer).bind(question="2 + 2?").trace(backend=plain_backend()))
    assert own_steps(few_shot(sgnb).bind(question="2 + 2?").trace()) == theirs
    assert theirs[0][1].endswith("Q: 2 + 2?\nA:")


def test_arms_of_a_fork_are_traced():
    trace = forked(sgnb).trace()
    assert own_steps(trace, "s2") == [("text", "Tip 1:\n"), ("gen", "tip")]


def test_an_argument_inside_an_f_string(peer):
    """SGLang refuses it with a TypeError; here it is traced by its name."""

    def build(sgl):
        @sgl.function
        def prog(s, question):
            s += f"I ask: {question}"

        return prog

    with pytest.raises(TypeError):
        build(peer).trace(backend=plain_backend())
    assert own_steps(build(sgnb).trace()) == [("text", "I ask: {question}")]


def test_programs_that_call_programs_run_as_they_are():
    """SGLang had ``compile()`` for these; it is gone there too. ``run`` and ``run_batch`` do it."""

    @sgnb.function
    def expand(s, tip):
        s += "Expand: " + tip + "\n" + sgnb.gen("detail")

    @sgnb.function
    def tips(s, topic):
        s += "Two tips for " + topic + ".\n1." + sgnb.gen("one") + "\n2." + sgnb.gen("two")
        branches = [expand(tip=s["one"]), expand(tip=s["two"])]
        s += "".join("\n" + branch["detail"] for branch in branches)

    script = {"one": "walk", "two": "sleep", "detail": "more"}
    backend = MockBackend(script)
    want = "Two tips for {}.\n1.walk\n2.sleep\nmore\nmore"
    assert tips.run(topic="health", backend=backend).text() == want.format("health")
    states = tips.run_batch([{"topic": "a"}, {"topic": "b"}], backend=backend, temperature=0)
    assert [state.text() for state in states] == [want.format("a"), want.format("b")]
    assert not hasattr(tips, "compile")
    backend.shutdown()


def test_the_prefix_of_a_batch_is_shared_without_a_warm_up(peer):
    """SGLang sends the constant beginning once before a batch; here equal beginnings meet in the engine's tree."""
    interpreter = peer_module("lang.tracer")
    prefix = interpreter.extract_prefix_by_tracing(few_shot(peer), plain_backend())
    backend = MockBackend("Madrid")
    few_shot(sgnb).run_batch([{"question": "a"}, {"question": "b"}], backend=backend)
    assert len(backend.prompts) == 2 and all(prompt.startswith(prefix) for _, prompt in backend.prompts)
    backend.shutdown()
