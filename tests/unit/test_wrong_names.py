"""Names that states, branches, programs, runs and expressions have not; methods without their brackets."""

from __future__ import annotations

import asyncio

import pytest

import sgnb as sgl
import sgnb.compat.sglang as compat
from sgnb.backends.mock import MockBackend
from sgnb.errors import LimitError, ProgramError, ProgramTypeError, UnknownAttribute
from sgnb.lang.frontend.state_uses import STATE_METHODS
from sgnb.runtime.run import run_cell
from sgnb.runtime.wrong_names import GROUP_NAMES, PROGRAM_NAMES, RUN_NAMES

compat.uninstall()  # importing it has put it in


@pytest.fixture
def backend():
    mock = MockBackend({"x": "value"})
    yield mock
    mock.shutdown()


@sgl.function
def hello(s, name="you"):
    s += f"Hello {name}" + sgl.gen("x")


def test_the_names_that_errors_list_exist(backend):
    state = hello.run(backend=backend)
    run = hello.run_async(backend=backend)
    for owner, names in (
        (state, (*STATE_METHODS, "ret_value")),
        (state.fork(1), GROUP_NAMES),
        (hello, PROGRAM_NAMES),
        (run, RUN_NAMES),
    ):
        assert [name for name in names if not hasattr(type(owner), name) and name not in vars(owner)] == []
    run.result(30)


@pytest.mark.parametrize(
    ("ask", "said", "way_on"),
    [
        (lambda s: s.txt, "Did you mean 'text'?", "It has: text, messages"),
        (lambda s: s.x, "'x'", 's["x"] reads the variable.'),
        (lambda s: s.append("a"), "'append'", "s += …"),
        (lambda s: s.gen("y"), "'gen'", "s += gen(…)"),
        (lambda s: s.keys(), "'keys'", "s.names()"),
        (lambda s: s.stream(), "'stream'", "s.text_iter()"),
        (lambda s: s.run(), "'run'", "A program has that"),
        (lambda s: s.copy().text(), "copy() is a block", "with s.copy() as c:"),
        (lambda s: s.meta, "'meta'", "s.get_meta_info"),
        (lambda s: s.fork(2).append("a"), "'append'", "branches += …"),
        (lambda s: s.fork(2).text(), "'text'", "[b.text() for b in branches]"),
        (lambda s: s.fork(2).x, "'x'", '[b["x"] for b in branches]'),
        (lambda s: s.fork(2).joins(), "Did you mean 'join'?", "join"),
        (lambda s: hello.runn(), "Did you mean 'run'?", "run_async"),
        (lambda s: hello.text(), "'text'", "A run gives a state"),
        (lambda s: hello.run_async(backend=s.backend).text(), "'text'", "run.result().text(…)"),
        (lambda s: hello.run_async(backend=s.backend)["x"], "'x'", "run.result()['x']"),
        (lambda s: sgl.gen("y").strip(), "does not exist yet", 's["y"].strip'),
        (lambda s: sgl.user("y").content, "does not exist yet", 's["x"].content'),
    ],
)
def test_a_name_that_is_not_there_is_told_with_the_way_on(backend, ask, said, way_on):
    state = hello.run(backend=backend)
    state.sync()
    with pytest.raises(UnknownAttribute) as caught:
        ask(state)
    error = caught.value
    assert isinstance(error, AttributeError)
    assert said in error.message and way_on in error.hint
    assert error.position is not None and error.position.file == __file__


def test_who_only_asks_whether_a_name_is_there_is_told_so(backend):
    state = hello.run(backend=backend)
    assert (
        not hasattr(state, "shape")
        and not hasattr(state, "_repr_html_")
        and not hasattr(sgl.gen("x"), "colour")
    )
    with pytest.raises(AttributeError) as caught:
        state._nothing  # noqa: B018
    assert not isinstance(caught.value, UnknownAttribute)


def test_a_property_that_fails_keeps_its_own_error(backend, monkeypatch):
    """Python asks ``__getattr__`` too when a property raised an AttributeError."""

    def fails(_):
        raise AttributeError("the program's own")

    state = hello.run(backend=backend)
    monkeypatch.setattr(type(state), "ret_value", property(fails))
    with pytest.raises(AttributeError, match="the program's own"):
        state.ret_value  # noqa: B018


def test_a_module_name_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(AttributeError, match="Did you mean: 'select'"):
        sgl.selct  # noqa: B018
    assert not hasattr(sgl, "__wrapped__")


BARE = {
    "s.messages": "s.messages()",
    "s += f'{s.text}'": "s.text()",
    "s += s.text": "s.text()",
    "with s.user:\n    s += 'x'": "s.user()",
    "for m in s.messages: pass": "s.messages()",
    "if s.error: pass": "s.error()",
    "ok = s.error is None": "s.error()",
    "first = s.messages[0]": "s.messages()",
    "both = s.text + 'x'": "s.text()",
    "s.get_var": "s.get_var(…)",
    "b = s.fork(2)\nb += 'x'\nb.join": "b.join()",
}


@pytest.mark.parametrize("text", BARE)
@pytest.mark.parametrize("as_cell", [True, False])
def test_a_method_without_its_brackets_is_refused_before_anything_runs(backend, tmp_path, text, as_cell):
    with pytest.raises(ProgramTypeError, match="without brackets") as caught:
        if as_cell:
            run_cell(f"s += 'first'\n{text}", cell_name="1", user_ns={}, backend=backend)
        else:
            _program(tmp_path, f"s += 'first'\n{text}").run(backend=backend)
    assert caught.value.hint == f"Call it: {BARE[text]}."
    assert caught.value.position.line == (2 if as_cell else 3) + text.count("\n") * text.startswith("b =")
    assert not any(block.instructions[1:] for block in backend.log)


def _program(folder, text):
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    path = folder / "program.py"
    path.write_text(f"def prog(s):\n{lines}", encoding="utf-8")
    names: dict = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    return sgl.function(names["prog"])


@pytest.mark.parametrize(
    "text",
    [
        "read = s.get_var\ns += sgl.gen('x')\nassert read('x') == 'value'",  # handed on
        "s += sgl.gen('x')\nassert list(map(s.get_var, ['x'])) == ['value']",
        "for s in s.fork(2):\n    s.text\n    s += 'x'",  # bound anew: nobody knows what it is
        "b = s.fork(2)\nb = [1]\nb.append",
        "s.kept = s.mark()\ns += 'x'\ns.rewind(s.kept)",  # what a program keeps there is its own business
        "class Box: pass\nbox = Box()\nbox.text = 1\nbox.text",
    ],
)
def test_what_may_be_meant_runs(backend, tmp_path, text):
    _program(tmp_path, text.replace("sgl.", "__import__('sgnb').")).run(backend=backend).sync()


def test_methods_of_branches_without_their_brackets_are_refused_where_they_stand(backend, tmp_path):
    for text in ("with b.user:\n    pass", "for m in b.messages: pass", "b.messages['x']"):
        program = _program(tmp_path, f"for b in s.fork(2):\n    {text.replace(chr(10), chr(10) + '    ')}")
        with pytest.raises(ProgramTypeError, match="without brackets"):
            program.run(backend=backend)


def test_a_role_without_its_brackets(backend):
    run = run_cell("with user:\n    s += 'x'", cell_name="1", user_ns={}, backend=backend)
    with pytest.raises(ProgramTypeError, match="lacks its brackets") as caught:
        run.drive(30)
    assert caught.value.hint == "Write `with user():`."


def test_attributes_are_no_variables_and_hide_no_method(backend):
    with pytest.raises(ProgramTypeError, match=r"`s.answer = …` appends nothing") as caught:
        run_cell("s.answer = gen('x')", cell_name="1", user_ns={}, backend=backend)
    assert caught.value.hint == 'Append under that name: s += gen("answer").'
    with pytest.raises(ProgramTypeError, match=r"`s.text = …` hides a method"):
        run_cell("s.text = 'x'", cell_name="1", user_ns={}, backend=backend)


@pytest.mark.parametrize("text", ['s = "Q: "', 's = f"Q: {1}"'])
def test_a_state_that_is_lost_to_a_text_is_told(backend, tmp_path, text):
    with pytest.raises(ProgramTypeError, match="`s` is the state; from here on it is a text"):
        run_cell(f"{text}\ns += gen('x')", cell_name="1", user_ns={}, backend=backend)
    for legal in ("s += sgl.gen('x')\n" + text, f"b = s.fork(1)[0]\n{text}\ns += sgl.gen('x')\nb += s"):
        _program(tmp_path, legal.replace("sgl.", "__import__('sgnb').")).run(backend=backend).sync()


@pytest.mark.parametrize(
    ("wrong", "kind", "said"),
    [
        (lambda s: s.var_scope(3), ProgramTypeError, "name is a text, not an int"),
        (lambda s: s.set_var(None, 1), ProgramTypeError, "name is a text, not a NoneType"),
        (lambda s: s.__iadd__("half \ud800"), ProgramError, "half a character, '\\ud800' at 5"),
        (lambda s: s.__iadd__(sgl.user("\udc80")), ProgramError, "half a character"),
        (lambda s: sgl.gen("\ud800"), ProgramError, "not valid Unicode"),
        (lambda s: hello.run(extra_key="\ud800", backend=s.backend), ProgramError, "not valid Unicode"),
    ],
)
def test_names_and_texts_that_no_engine_could_take_are_refused_where_they_stand(backend, wrong, kind, said):
    state = hello.run(backend=backend)
    state.sync()
    before = state.text()
    with pytest.raises(kind) as caught:
        wrong(state)
    assert said in caught.value.message and caught.value.position.file == __file__
    assert state.text() == before and state.names() == ["x"]


def test_comparing_what_is_not_there_yet_is_refused():
    with pytest.raises(ProgramTypeError, match="cannot be compared"):
        _ = sgl.gen("x") == "yes"
    assert sgl.gen("x") != sgl.gen("y") and sgl.user("a") != sgl.user("b")
    same = sgl.text("a")
    assert same == sgl.text("a")
    assert len({sgl.text("a"), sgl.text("a"), sgl.text("b")}) == 2


def test_states_are_not_added_to_and_lose_no_variables(backend):
    state = hello.run(backend=backend)
    with pytest.raises(ProgramTypeError, match="cannot be added to"):
        _ = state + "text"
    with pytest.raises(ProgramTypeError, match="Branches cannot be added to"):
        _ = state.fork(2) + "text"
    with pytest.raises(ProgramTypeError, match="nothing can be appended to it"):
        copied = state.copy()
        copied += "text"
    with pytest.raises(ProgramTypeError, match="CopyScope") as caught:
        state += state.copy()
    assert "with s.copy() as c:" in caught.value.hint
    with pytest.raises(ProgramTypeError, match="cannot be taken out of a state"):
        del state["x"]
    with pytest.raises(ProgramError, match="cannot be taken out of its group"):
        del state.fork(2)[0]


def test_a_program_streams(backend):
    assert "".join(hello.stream("me", backend=backend)) == "Hello mevalue"


def test_joins_name_the_argument_they_do_not_know(backend):
    @sgl.function
    def prog(s, **how):
        b = s.fork(2)
        b += sgl.gen("x")
        b.join("best", **how)

    with pytest.raises(TypeError, match=r"Group\.join\(\) got an unexpected keyword argument 'key'"):
        prog.run(key="x", backend=backend)
    with pytest.raises(ProgramTypeError, match="a variable's name or a function"):
        prog.run(by=3, backend=backend)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ({"backend": "main"}, ProgramTypeError, "A backend is an engine, not a str"),
        ({"passes": "fold_text"}, ProgramTypeError, "takes a list of passes"),
        ({"passes": ["fold_texts"]}, ProgramTypeError, "Did you mean 'fold_text'?"),
    ],
)
def test_wrong_arguments_of_a_run_are_refused_at_the_call(backend, how, kind, said):
    with pytest.raises(kind) as caught:
        hello.run(**{"backend": backend, **how})
    assert said in caught.value.message and caught.value.position.file == __file__
    assert not backend.log


def test_passes_can_be_given_by_name(backend):
    @sgl.function
    def prog(s):
        s += "a"
        s += "b"
        s += sgl.gen("x")

    def texts(passes):
        before = len(backend.log)
        prog.run(backend=backend, passes=passes).sync()
        return [op for block in backend.log[before:] for op in block.instructions if hasattr(op, "parts")]

    assert len(texts(["fold_text"])) <= len(texts(()))
    assert [len(op.parts) for op in texts(["fold_text"])] == [1]


def test_what_is_no_backend_is_no_default(backend):
    with pytest.raises(ProgramTypeError, match="A backend is an engine"):
        sgl.set_default_backend("main")
    sgl.set_default_backend(compat.RuntimeView(backend))
    try:
        assert hello.run()["x"] == "value"
    finally:
        sgl.set_default_backend(None)


@pytest.mark.parametrize(
    ("threads", "kind"), [("many", ProgramTypeError), (2.5, ProgramTypeError), (0, LimitError)]
)
def test_a_batch_refuses_a_number_of_threads_that_is_none(backend, threads, kind):
    with pytest.raises(kind, match="num_threads"):
        hello.run_batch([("a",)], num_threads=threads, backend=backend)


@pytest.mark.parametrize("ask", [sgl.explain, sgl.explain_data, sgl.graph, sgl.program])
def test_what_shows_programs_says_what_it_takes(ask):
    with pytest.raises(ProgramTypeError, match=r"\(\) takes a (program|state)") as caught:
        ask(len)
    assert "@sgl.function" in caught.value.hint


def test_a_file_that_cannot_be_written_is_named_and_nothing_is_left_beside_it(backend, tmp_path):
    state = hello.run(backend=backend)
    for path in (tmp_path / "folder", tmp_path / "missing" / "state.json"):
        (tmp_path / "folder").mkdir(exist_ok=True)
        with pytest.raises(OSError, match=path.name) as caught:
            state.save(path)
        assert caught.value.filename == str(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_thoughts_need_something_generated():
    with pytest.raises(ProgramError, match="has no gen in it"):
        sgl.separate_reasoning("text")


def test_eager_programs_are_told_too(backend):
    @sgl.function
    async def prog(s):
        await asyncio.sleep(0)
        s.answer()

    with pytest.raises(UnknownAttribute, match="'answer'"):
        prog.run(backend=backend)
