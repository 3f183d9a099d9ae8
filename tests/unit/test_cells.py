"""Mistakes in cells and calls: one message with line, column, caret and the fix, before anything is queued."""

from __future__ import annotations

import time

import pytest

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.errors import LimitError, ProgramError, ProgramTypeError, SgnbError
from sgnb.lang.instruction import Fork
from sgnb.runtime.events import GenDone, HostNote
from sgnb.runtime.run import run_cell

MISTAKES = {
    # text: (line, column of the caret, words of the message, words of the hint)
    "": (None, None, "The cell is empty", "Write a program"),
    "# only this\n": (None, None, "only comments", "Write"),
    "s += (": (2, 5, "never closed", ""),
    "s += gen('x'": (2, 8, "never closed", ""),
    "for": (2, 3, "Invalid syntax", ""),
    "return 1": (2, 0, "outside function", "last expression"),
    "def f():\n    await g()": (3, 4, "outside async function", "async def"),
    "yield 1": (2, 0, "cannot yield", "list"),
    "from math import *": (2, 0, "import *", "Name what you import"),
    "s += genn('x')": (2, 5, "`genn` is not known", "Did you mean `gen`"),
    "s += usr('x')": (2, 5, "`usr` is not known", "Did you mean `user`"),
    "s += user(f'{tpic}')": (2, 13, "`tpic` is not known", "Did you mean `topic`"),
    "s += gen('x', regx='[0-9]+')": (2, 14, "no argument 'regx'", "Legal arguments: name, max_tokens"),
    "s += gen('x', max_token=3)": (2, 14, "Did you mean 'max_tokens'", "Legal"),
    "s += gen('x', regex='[0-9+')": (2, 20, "unterminated character set at position 0", ""),
    "s += gen('x', regex='(?=a)b')": (2, 20, "a look-ahead at position 0 cannot be enforced", "Use classes"),
    "s += gen('x', ebnf='r')": (2, 19, "ebnf has no rule named root", "Begin with"),
    "s += gen('x', json_schema={'type': 'strin'})": (2, 26, "/type is 'strin'", 'Did you mean "string"? Legal'),
    "s += gen('x', stop_regex='a')": (2, 14, "gen(stop_regex=…) comes in a later version", "Remove it"),
    "select('x', choices=['a'])": (2, 0, "has no effect here", "Append it"),
    "s += gen_int('x', max_token=3)": (2, 18, "Did you mean 'max_tokens'", "Legal"),
    "gen('x')": (2, 0, "no effect", "s += gen('x')"),
    "with user():\n    with assistant():\n        gen('x')": (3, 9, "assistant turn begins inside a user turn", "End"),
    "with s.user():\n    s += assistant('x')": (3, 9, "inside a user turn", "End"),
    "s += select('x', [])": (2, 17, "select has no options", "at least one"),
    "s += select('x', choices=['a', 'b', 'a'])": (2, 25, "options 0 and 2 are the same", "Remove"),
    "s += gen('x', choices=['a', ''])": (2, 22, "option 1 is empty", "Give it a text"),
    "s += gen('x', choices='ab')": (2, 22, "a list of texts", "Write ['ab'"),
    "s += select('x', ['a', 1])": (2, 17, "option 1 is an int", "str(...)"),
    "s += select('x', ['a'], choices_method='best')": (2, 39, "'best' is no choices method", "Methods"),
    "s += user_begin('x')": (2, 5, "takes no arguments", ""),
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_is_refused_before_anything_is_queued(text):
    line, col, message, hint = MISTAKES[text]
    backend = MockBackend()
    with pytest.raises(ProgramError) as caught:
        run_cell(text, cell_name="1", user_ns={"topic": "cats"}, backend=backend, first_line=2)
    error = caught.value
    assert backend.log == []
    assert message in error.message and hint in error.hint, str(error)
    if line is not None:
        assert (error.position.line, error.position.col) == (line, col), str(error)
        assert error.position.in_cell
        place, source, caret, *_ = error.lines()
        assert place.startswith(f"Line {line}, column {col + 1}: ")
        assert source[4:] == text.splitlines()[line - 2] and caret.index("^") == 4 + col


RUNTIME = {
    "s += None": (0, "None cannot be appended", "forget to return"),
    "s += 5": (0, "type int cannot be appended", "str(...)"),
    "s += user_end()": (0, "user_end() without user_begin()", "with s.user()"),
    "s += user_begin()\ns += assistant('x')": (0, "turns cannot be nested", "End the user turn"),
    "s += f'{gen(\"x\")}'": (5, "cannot stand inside an f-string", "+"),
    "s.fork(0)": (0, "1 to 1024 branches, not 0", ""),
    "s += gen('x', n=int(65))": (5, "n must be in 1..64", ""),
    "s += select('x', list())": (5, "select has no options", "at least one"),
    "s['nothing']": (0, "no variable 'nothing'", "none yet"),
    "with s.user('text'):\n    pass": (0, "takes no text", "into the block"),
    "s += gen('x', temperature=float(-1))": (5, "temperature must be a number in 0..100, not -1.0", ""),
    "s += gen('x', max_tokens=str('many'))": (5, "max_tokens must be", ""),
    "s += gen('x', stop=str())": (5, "a stop string is empty", "Remove"),
    "s += gen('x', stop=int(5))": (5, "takes a list", ""),
    "s += gen(int(5))": (5, "gen's name must be a str", ""),
    "s += gen('x', **{'regx': 1})": (5, "no argument 'regx'", "Legal"),
    "s += text(int(5))": (5, "text() takes a str", ""),
}  # fmt: skip


@pytest.mark.parametrize("text", RUNTIME)
def test_mistake_found_when_it_runs_has_its_place(text):
    col, message, hint = RUNTIME[text]
    backend = MockBackend()
    run = run_cell(text, cell_name="1", user_ns={}, backend=backend, first_line=2)
    with pytest.raises(SgnbError) as caught:
        run.drive()
    error = caught.value
    assert message in error.message and hint in error.hint, str(error)
    line = 3 if "user_begin" in text else 2
    assert error.position.line == line
    # Python 3.12 counts inside f-strings, 3.13 places the entry of a manager at the manager.
    assert error.position.col in {col, {"s += f": 7, "with s": 5}.get(text[:6], col)}
    assert run.status == "failed"
    backend.shutdown()


@pytest.mark.dsl
def test_B073_unknown_argument_is_a_type_error_with_the_legal_names():
    with pytest.raises(TypeError, match=r"Did you mean 'regex'[\s\S]*max_tokens"):
        sgl.gen("x", regx="[0-9]+")
    with pytest.raises(ProgramError, match="later version"):
        sgl.gen("x", stop_regex="[0-9]+")
    assert sgl.gen("x", n=1, frequency_penalty=0.5).params == (("frequency_penalty", 0.5),)


def test_arguments_are_copied():
    stops = ["a"]
    expr = sgl.gen("x", stop=stops)
    stops.append("b")
    assert dict(expr.params)["stop"] == ("a",)
    with pytest.raises(AttributeError):
        expr.name = "y"


def test_expressions_join_with_text_on_either_side():
    expr = "a" + sgl.gen("x") + "b" + sgl.user("c" + sgl.gen("y"))
    assert repr(expr) == "'a' + gen('x') + 'b' + user_begin() + 'c' + gen('y') + user_end()"
    with pytest.raises(ProgramTypeError):
        sgl.gen("x") + 5


def test_with_outside_a_program():
    with pytest.raises(ProgramError, match="outside a program"), sgl.user():
        pass


def test_gen_in_a_block_outside_a_program_and_use_rules():
    expr = sgl.gen("x")  # an expression is a value: it may be kept and appended later
    backend = MockBackend("v")

    @sgl.function
    def prog(s):
        with sgl.assistant():
            kept = [sgl.gen("used")]
            one = sgl.gen("one")
            (walrus := sgl.gen("two"))
        s += expr
        return type(kept[0]).__name__, str(one), type(walrus).__name__

    state = prog.run(backend=backend)
    assert state.ret_value == ("Gen", "v", "Gen") and state.text().count("v") == 2
    backend.shutdown()


def test_later_run_arguments_are_refused():
    backend = MockBackend()

    @sgl.function
    def prog(s, seed=0):
        s += f"{seed}"

    assert prog.run(seed=5, backend=backend).text() == "5"  # the program's own parameter wins
    assert prog.run(frequency_penalty=0, n=1, backend=backend).text() == "0"
    with pytest.raises(ProgramError, match="later version"):
        prog.run(stop_regex="a", backend=backend)
    with pytest.raises(LimitError, match=r"run\(\): temperature"):
        prog.run(temperature=-1, backend=backend)
    with pytest.raises(TypeError, match="Did you mean 'temperature'"):
        prog.run(tempreature=1, backend=backend)


def test_bind_and_programs_without_parameters():
    @sgl.function(num_api_spec_tokens=4)
    def prog(s, a, b=2):
        s += f"{a}{b}"

    bound = prog.bind(a=1)
    assert bound.num_api_spec_tokens == 4  # D9
    assert bound.run(backend=MockBackend()).text() == "12"
    with pytest.raises(ProgramError, match="no argument 'c'"):
        prog.bind(c=1)
    with pytest.raises(ProgramError, match="no parameter"):
        sgl.function(lambda: None)
    with pytest.raises(ProgramError, match="needs a Python function"):
        sgl.function(5)


def test_names_are_the_runs_own():
    backend = MockBackend("v")
    ns = {"x": 1, "keep": [1]}
    run = run_cell("x = x + 1\nnew = x\nkeep.append(2)\ndel x", cell_name="1", user_ns=ns, backend=backend)
    run.drive()
    assert ns == {"x": 1, "keep": [1, 2]}


def test_shadowed_names_are_told():
    backend = MockBackend("v")
    run = run_cell("s += gen('x')", cell_name="1", user_ns={"gen": 5, "s": 7, "user": 1}, backend=backend)
    run.drive()
    told = [e.event.text for e in run.log.since(0) if isinstance(e.event, HostNote)]
    assert len(told) == 2 and "`gen`" in told[0] and "`s`" in told[1]


@pytest.mark.magic
def test_B158_braces_are_taken_literally():
    backend = MockBackend("v")
    text = (
        'd = {"a": 1}\nt = {k: v for k, v in d.items()}\ns += \'{"json": {"a": [1]}} {name}\' + gen("x")\nt'
    )
    run = run_cell(text, cell_name="1", user_ns={}, backend=backend)
    run.drive()
    assert run.state.text() == '{"json": {"a": [1]}} {name}v' and run.value == {"a": 1}
    backend.shutdown()


@pytest.mark.parametrize("cut", range(0, 120, 3))
def test_F42_a_mutated_cell_never_raises_an_internal_error(cut):
    """Cut a valid cell anywhere: a ProgramError or a run, nothing else."""
    text = 'topic = "x"\nwith user():\n    s += f"Tips {topic}?"\nwith assistant():\n    y = gen("y", stop=["a"])\nlen(y)'
    backend = MockBackend("v")
    for mutated in (text[:cut], text[cut:], text[:cut] + text[cut + 1 :], text[:cut] + "(" + text[cut:]):
        try:
            run = run_cell(mutated, cell_name="1", user_ns={}, backend=backend, first_line=2)
        except (ProgramError, LimitError) as error:
            assert error.message
            continue
        try:
            run.drive()
        except (SgnbError, NameError, TypeError, AttributeError, ValueError) as error:
            assert "_sg_" not in str(error)
        assert run.done
    backend.shutdown()


def test_branches_of_a_cell_end_whether_a_name_holds_them_or_not():
    """A cell returns when every state of its run has ended, and its reader sees all of them."""
    backend = MockBackend({"a": "one", "c": "two"}, delay=0.002)
    text = 'for i, b in enumerate(s.fork(3)):\n    b += f"Q{i}: " + gen("a")\n    b += " " + gen("c")'
    run = run_cell(text, cell_name="5", user_ns={}, backend=backend)
    run.drive()
    ends = [entry.event for entry in run.log.since(0) if isinstance(entry.event, GenDone)]
    assert [end.meta["finish_reason"]["type"] for end in ends] == ["stop"] * 6
    sids = next(op.children for block in backend.log for op in block.instructions if isinstance(op, Fork))
    until = time.monotonic() + 20
    while not set(sids) <= set(backend.released):
        assert time.monotonic() < until, backend.released
        time.sleep(0.01)
    backend.shutdown()
