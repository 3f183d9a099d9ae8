"""Squiggles in ``%%sgl`` cells: a run says the same, at the same place; what only a run can know stays silent."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import Any

import pytest
from corpus.case import Case, load
from corpus.cells import CELLS

import sgnb
from sgnb import panel_edit
from sgnb.backends.mock import MockBackend
from sgnb.edit_about import about
from sgnb.errors import SgnbError
from sgnb.runtime.run import run_cell

WRONG = [
    's += gen("x", max_tokens=-3)',
    's += sgl.gen("x", max_tokens="3")',
    's += gen("x", temperature=200, max_tokens=n)',
    's += gen("x", max_tokens=n, stop=3)',
    's += gen("x", stop=[1])',
    's += gen("é😀", top_p=0)',
    's += gen("x", n=0)',
    "s += gen(3)",
    's += gen("x", regex="(")',
    's += gen("x", json_schema={"properties": {"a": {"type": "strin"}}})',
    's += gen("x", json_schema="{")',
    's += gen("x", regex="a", json_schema="{}")',
    's += gen("x", dtype=int, regex="a", max_tokens=n)',
    's += gen("x", parse=True)',
    's += gen("x", choices=["a", "b"], n=2)',
    's += gen("x", 1, max_tokens=2)',
    's += gen("x", min_tokens=5, max_tokens=3)',
    's += gen("x", max_tokenz=n)',
    's += gen("x", extra_key="a")',
    's += select("x")',
    's += select("x", [])',
    's += select("x", choices=n, choices_methd="bogus")',
    's += select("x", choices=["a", "b"], choices_method="bogus")',
    's += select("x", choices=["a", "b"], temperature=1)',
    's += gen_int("x", dtype=str)',
    's += user("a", "b")',
    's += image("x")',
    's += separate_reasoning(gen("x", n=2))',
    'from sgnb import gen as g\ns += g("x", seed=-1)',
    'import sgnb as lm\ns += lm.gen("x", seed=-1)',
    'for q in "ab":\n    if q:\n        s += assistant(gen("x", seed=-1))',
    's += gen("a") + gen("b")\nx = s["c"]',
    's += gen("name")\ns += s["nmae"]',
    'x = s["name"]\ns += gen("name")',
    's.get_var("nope")',
    's += gen("x")\ns.txt()',
    's += gen("x")\ns.append("x")',
    's += gen("x")\ns.gen("x")',
    's += gen("x")\ns.x',
    "f = s.fork(2)\nf.txt",
    "f = s.fork(2)\nf[0].usr()",
    's += sgl.genn("x")',
    "f = s.fork(0)",
    "f = s.fork('2')",
    "s += 3",
    "s += None",
    's += gen("x").text',
    "s.set_var(3, 4)",
    'x = s + "a"',
    "for a in s: pass",
    'del s["x"]',
    "s.messages",
    's += user("a" + user("b"))',
    "return 3",
]
"""Each has one mistake."""

SILENT = [
    's += gen("x", max_tokens=n, temperature=t, stop=stops)',
    's += gen("x", **options)',
    "s += gen(*given)",
    's += gen("x", parse=True, dtype=kind)',
    's += gen("x", parse=flag)',
    's += gen("x", regex=a, json_schema=b)',
    's += gen("x", stop_regex=None)',
    's += gen("x", min_tokens=500)',
    's += gen("x", min_tokens=5, max_tokens=n)',
    's += select("x", choices=options)',
    "s += text(topic)",
    's += separate_reasoning(said, model_type="qwen3")',
    'def gen(name, max_tokenz=1): return name\ns += gen("x", max_tokenz=3)',
    'from elsewhere import gen\ns += gen("x", max_tokenz=3)',
    'import elsewhere as sgl\ns += sgl.gen("x", max_tokenz=3)',
    's += guidance.gen("x", max_tokenz=3)',
    's += client.gen("x", max_tokens=-3)',
    'try:\n    s += gen("x", max_tokens=-3)\nexcept Exception as error:\n    s += str(error)',
    'import contextlib\nwith contextlib.suppress(Exception):\n    s += gen("x", max_tokens=-3)',
    'try:\n    s["x"]\nexcept KeyError:\n    s += gen("x")',
    's += few_shot\nx = s["shown"]',
    'helper(s)\nx = s["shown"]',
    's += gen(f"x{n}")\ny = s["x1"]',
    'for k in "ab":\n    s += gen(k)\ny = s["a"]',
    'for i in range(2):\n    if i: y = s["x"]\n    s += gen("x")',
    'if "x" in s: y = s["x"]\ns += gen("z")',
    's["a"] = 1\nwith s.var_scope("b"):\n    s += "t"\ns.set_var("c", 2)\n[s["a"], s["b"], s["c"]]',
    's += gen() + gen()\n[s["gen_0"], s["gen_1"]]',
    's += separate_reasoning(gen("x"))\ns["x_reasoning_content"]',
    'def ask(q):\n    global s\n    s += gen(q)\nask("w")\ns["w"]',
    'def ask():\n    return s["later"]\ns += gen("later")\nask()',
    's += user("a") + assistant(gen("x"))\ns += (user if n else assistant)("b")',
    "s.kept = 1\ns.kept",
    "setattr(s, 'kept', 1)\ns.kept",
    's = {"x": 1}\ns["y"]',
    'f = s.fork(2)\nf = open("x")\nf.txt',
    'forks = s.fork(2)\nforks += gen("t")\nforks.join()\ns["t"]',
    "exec('s += gen(\"x\")')\ns['x']",
    "sgl.anything = 1\nsgl.anything",
    'with sgl.assistant():\n    sgl.gen("x")',
    "%%sgl?",
]


class Client:
    def gen(self, *args: object, **kwargs: object) -> str:
        return ""


def names() -> dict[str, Any]:
    given: dict[str, Any] = dict.fromkeys(
        ("n", "t", "stops", "options", "given", "kind", "flag", "a", "b", "topic"), 1
    )
    return {**given, "sgl": sgnb, "client": Client(), "guidance": Client(), "said": "", "helper": lambda s: None,
            "few_shot": sgnb.gen("shown")}  # fmt: skip


def marks_of(body: str, given: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    return panel_edit.check_source(body if body.startswith("%%") else f"%%sgl\n{body}", given or names())


@pytest.mark.parametrize("body", WRONG)
def test_a_run_says_what_the_squiggle_says(body: str) -> None:
    marks = marks_of(body)
    backend = MockBackend("a")
    with pytest.raises((SgnbError, AttributeError)) as raised:
        run = run_cell(body, cell_name="1", user_ns=names(), backend=backend, first_line=2)
        run.drive()
        run.state.sync()
    backend.shutdown()
    error = raised.value
    if not isinstance(error, SgnbError):
        assert [mark["message"] for mark in marks] == [str(error)]
        return
    place = error.position
    assert place is not None
    said = " ".join(filter(None, [error.message, error.hint]))
    found = [(mark["line"], mark["col"], mark["end_col"], mark["message"]) for mark in marks]
    assert found == [(place.line, place.col, place.end_col, said)]


@pytest.mark.parametrize("body", SILENT)
def test_what_only_a_run_can_know_is_silent(body: str) -> None:
    marks = [mark for mark in marks_of(body) if "is not known" not in mark["message"]]
    assert marks == []


class _AtTheTop(ast.NodeTransformer):
    """A function's body as a cell's: what it returns is an expression."""

    def visit_Return(self, node: ast.Return) -> ast.AST:
        return ast.Expr(node.value or ast.Constant(None))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    visit_Lambda = visit_ClassDef = visit_FunctionDef  # type: ignore[assignment]


def cell_of(case: Case) -> tuple[str, dict[str, Any]] | None:
    """The text of a program's body and the names it has; None for one that cannot be a cell."""
    func = case.program.func
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(func))).body[0]
    except (OSError, SyntaxError):
        return None
    if not isinstance(node, ast.FunctionDef) or any(isinstance(one, ast.Nonlocal) for one in ast.walk(node)):
        return None
    arguments = [one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)]
    values = {
        **func.__globals__,
        **dict.fromkeys(arguments),
        **inspect.getclosurevars(func).nonlocals,
        **case.kwargs,
    }
    values |= dict(zip(arguments[1:], case.args, strict=False))
    text = ast.unparse(ast.Module([_AtTheTop().visit(one) for one in node.body], []))
    return re.sub(rf"\b{arguments[0]}\b", "s", text), values


def test_programs_that_run_have_no_squiggle() -> None:
    cells = {case.name: cell for case in load() if (cell := cell_of(case)) is not None}
    assert len(cells) > 100
    wrong = {name: marks for name, (text, given) in cells.items() if (marks := marks_of(text, given))}
    refused = {"failures.wrong_append", "failures.wrong_argument", "branches.no_options"}
    assert wrong.keys() == refused, wrong
    for text, given in CELLS.values():
        assert marks_of(text, {**given, "sgl": sgnb}) == []


def test_the_notebooks_values_are_looked_at_not_run() -> None:
    class Lazy(dict[str, object]):
        def keys(self) -> Any:
            raise AssertionError("code of the notebook ran")

        values = items = __iter__ = keys

    body = 's += str(data) + gen("x")\ns["y"]'
    loop: list[object] = [1]
    loop.append(loop)
    for data, number in (
        ({"a": ["b", (1, None)]}, 1),
        (Lazy(a=1), 0),
        (loop, 0),
        ([[0] * 999] * 999, 0),
        (gen_in_list(), 0),
    ):
        assert len(marks_of(body, {"data": data})) == number


def gen_in_list() -> list[object]:
    return [sgnb.gen("y")]


def test_all_mistakes_of_a_cell_are_shown() -> None:
    marks = marks_of('s += gen("x", max_tokens=-3, stop=3, regx=1)\ns += gen("y", stop=3) + bogus\ns.txt()')
    assert [(mark["line"], mark["severity"]) for mark in marks] == [
        (2, "error"), (2, "error"), (2, "error"), (3, "error"), (3, "warning"), (4, "warning"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "blamed", "words"),
    [
        ("%%sgl -o x --tempratur 1", "--tempratur 1", "Did you mean --temperature?"),
        ("%%sgl --bogus", "--bogus", "unrecognized arguments: --bogus"),
        ("%%sgl --temperature hot -o x", "--temperature hot", "invalid float value: 'hot'"),
        ("%%sgl --top-p 7", "--top-p 7", "a number in (0, 1]"),
        ("  %%sgl -o 7up", "-o 7up", "takes a variable name"),
    ],
)
def test_the_wrong_word_of_the_magic_is_marked(line: str, blamed: str, words: str) -> None:
    (mark,) = panel_edit.check_source(f'{line}\ns += "a"', names())
    assert line[mark["col"] : mark["end_col"]] == blamed and words in mark["message"]


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("x = 1\n%%sgl\ns += 'a'", 2),
        ("# a comment\n%%sgl\ns += 'a'", 2),
        ("\n\nx = (1,\n2)\n%%sgl -o x\ns += 'a'", 5),
        ("x = '''\n%%sgl\n'''", 0),
        ("%%bash\n%%sgl", 0),
        ("\n  %%sgl\ns += 'a'", 0),
    ],
)
def test_a_magic_below_something_else_is_marked(source: str, line: int) -> None:
    marks = panel_edit.check_source(source, {})
    assert [mark["line"] for mark in marks] == ([line] if line else [])
    assert all(mark["message"].startswith("Line magic function `%%sgl` not found.") for mark in marks)


def test_a_cell_that_goes_on_with_no_state_is_marked() -> None:
    (mark,) = marks_of("%%sgl --from tips\ns += 'a'", {"tips": 3})
    assert (mark["col"], mark["end_col"], mark["severity"]) == (13, 17, "warning")
    assert mark["message"].startswith("--from takes the name of a state; 'tips' is an int.")


def test_any_text_is_read_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Python warns of ``"gen"(3)`` when it is compiled: a text that is being typed must not print into the notebook."""
    whole = '%%sgl -o x\ns += "gen"(3) + f"{s["a"]}"\nx = [1]["bad"]\nmatch x:\n    case [1, *_]: s += gen("é😀")\n%%sgl\n'
    for cut in range(len(whole)):
        for text in (
            whole[:cut],
            whole[cut:],
            whole[:cut] + "(" + whole[cut:],
            "x\n" + whole[:cut] + "  *" + whole[cut:],
        ):
            panel_edit.check_source(text, names())
            about(text, text.count("\n") + 1, 3, names())
    shown = capsys.readouterr()
    assert not shown.out and not shown.err
