"""Completion in ``%%sgl`` cells: what is offered at the cursor ``|``, and what is not."""

from __future__ import annotations

import pytest

import sgnb
from sgnb import cell_cursor, completion, panel_edit
from sgnb.backends.mock import MockBackend
from sgnb.lang.choices import METHODS
from sgnb.runtime.core import Core
from sgnb.runtime.state import State

OPTIONS = ["-o", "--out", "--from", "--engine", "--background"]
ANSWERS = {"-o": list, "--from": lambda: ["tips"], "--engine": lambda: ["main", "second"]}
COMMANDS: dict[str, list[str]] = {"launch": ["--name", "--dtype"], "log": [], "view": ["tree", "graph"]}
VALUES = {("launch", "--dtype"): ["float32"], ("view", "graph"): lambda: ["qa"]}
FORKS = "forks = s.fork(3)\nfor f, angle in zip(forks, ANGLES):\n    f += gen('tip')\n    "


class Answer:
    """A type of the notebook's."""


def state_with(*names: str) -> State:
    state = State(Core(MockBackend()))
    for name in names:
        state[name] = 1
    return state


NAMESPACE = {"sgl": sgnb, "Answer": Answer, "mark": 1, "_hidden": 1, "tips": state_with("tip", "source")}


def offered(marked: str) -> tuple[list[str], bool]:
    """What may stand at the mark, and whether nothing else may."""
    at = marked.index("|")
    lines = marked[:at].split("\n")
    text = marked.replace("|", "", 1)
    place = (len(lines) - 1, text.split("\n")[len(lines) - 1], len(lines[-1]))
    found = completion.candidates(text, *place, COMMANDS, OPTIONS, VALUES, ANSWERS, NAMESPACE)
    fragment = completion.fragment_of(lines[-1])
    return [name for name in found.names if name.startswith(fragment)], found.whole


@pytest.mark.parametrize(
    ("marked", "names"),
    [
        ("%%sgl\ns += gen('a', max_t|", ["max_tokens="]),
        ("%%sgl\ns += gen(\n    'v',\n    max_t|", ["max_tokens="]),
        ("%%sgl\ns += user('😀é') + gen('a', max_t|", ["max_tokens="]),
        ("%%sgl\ns += gen('x', stop=cut(1), max_t|", ["max_tokens="]),
        ("%%sgl\ns += gen('x', max_tokens=2 + max_t|", []),
        ("%%sgl\ns += gen('x', stop=[max_t|", []),
        ("%%sgl\ns += select('a', choices_m|", ["choices_method="]),
        ("%%sgl\nwith us|", ["user", "user_begin", "user_end"]),
        ("\n%%sgl\ntopic = 1\ns += user(top|", ["topic"]),
        ("%%sgl\ndef ask(question):\n    inner = 3\n    return quest|", ["question"]),
        ("%%sgl\ndef ask(question):\n    inner = 3\n    return inn|", ["inner"]),
        ("%%sgl\nimport json as words\nwor|", ["words"]),
        ("%%sgl\nas|\ndef asked(x): pass", ["assistant", "assistant_begin", "assistant_end", "asked"]),
        ('%%sgl\ns += gen("finding")\ns += user(s["|', ["finding"]),
        ('%%sgl\ns += gen("finding")\ns += user(s[|', ['"finding"']),
        ('%%sgl\ns += gen("finding")\ns += user(f"about {s[\'fi|', ["finding"]),
        (f"%%sgl\n{FORKS}x = f['t|", ["tip"]),
        (f"%%sgl\n{FORKS}x = forks[0]['t|", ["tip"]),
        ("%%sgl\ns += gen('alpha')\nd = {}\nd['a|", []),
        ("%%sgl\ns.fo|", ["fork", "fork_at"]),
        (f"%%sgl\n{FORKS}f.us|", ["user"]),
        (f"%%sgl\n{FORKS}forks[1].us|", ["user"]),
        (f"%%sgl\n{FORKS}forks.|", ["join", "parent", "states"]),
        ("%%sgl\nsgl.ge|", ["gen", "gen_int", "gen_string", "get_default_backend", "get_server_info"]),
        ("%%sgl\nimport sgnb as lm\nlm.rad|", ["radix_tree"]),
        ("%%sgl\nx.sgl.ge|", []),
        ("%%sgl\ns += sgl.gen('x', max_t|", ["max_tokens="]),
        ("%%sgl\ns += gen('x', max_tokens=3, max_t|", []),
        ("%%sgl\ns += gen('x', mark, ma|", ["mark"]),
        ("%%sgl\ns += gen('x', ma|", ["max_tokens=", "mark"]),
        ("%%sgl\ns += gen('x', choices_method=|", [f'"{name}"' for name in METHODS]),
        ("%%sgl\ns += gen('x', dtype=|", ["int", "float", "str", "bool", "Answer"]),
        ("%%sgl\ns += gen('x', parse=T|", ["True"]),
        (f"%%sgl\n{FORKS}forks.join(mode=|", ['"gather_variable"', '"concate_and_append"', '"best"']),
        (f"%%sgl\n{FORKS}forks.join(me|", ["method="]),
        ("%%sgl --from tips\nx = s['|", ["tip", "source"]),
        ("%sgl l|", ["launch", "log"]),
        ("%sgl launch --|", ["--name", "--dtype"]),
        ("%sgl launch --dtype float32 --|", ["--name"]),
        ("%sgl launch --dtype |", ["float32"]),
        ("%sgl view |", ["tree", "graph"]),
        ("%sgl view tree |", []),
        ("%sgl view graph |", ["qa"]),
        ("%%sgl -o tips --|", ["--from", "--engine", "--background"]),
        ("%%sgl\ntopic = 'x'\ns += user(f'about {top|", ["topic"]),
        ("%%sgl\ntopic = 'x'\ns += user(f'about {{top|", []),
        ("%%sgl\ntopic = 'x'\ns += user('about top|", []),
        ("%%sgl\ntopic = 'x'\ns += user('''a\n'b' top|", []),
        ("%%sgl\ntopic = 'x'\n# top|", []),
        ("%%sgl\ntopic = 'it''s'  # it's\ntop|", ["topic"]),
        ("%%sgl --fr|", ["--from"]),
        ("%%sgl --from t|", ["tips"]),
        ("%%sgl --engine |", ["main", "second"]),
        ("%%sgl -o |", []),
        ("%%sgl|", []),
        ("gen('x', max_t|", []),
        ("x = 1\n%%sgl\nas|", []),
    ],
)  # fmt: skip
def test_what_is_offered_at_the_cursor(marked: str, names: list[str]) -> None:
    assert offered(marked)[0] == names


def test_parameters_stand_alone_before_a_word_is_begun() -> None:
    names, whole = offered("%%sgl\nmine = 1\ns += gen('a', |")
    assert whole and names[0] == "max_tokens=" and "mine" in names and "mark" not in names
    assert offered("%%sgl\ns += gen(|")[0][0] == "name="
    names, whole = offered("%%sgl\ns += gen('a', m|")
    assert whole and "mark" in names, "the notebook's names are wanted too"


def test_where_no_word_is_begun_python_is_left_out() -> None:
    for text in ("%%sgl\nmine = 1\ns += |", "%%sgl\nmine = 1\nwith |", "%%sgl\nmine = 1\ns += user(|"):
        names, whole = offered(text)
        assert whole and names[0] == "gen" and {"mine", "s", "tips"} <= set(names) and "_hidden" not in names
    assert not offered("%%sgl\nwith us|")[1]


def test_each_name_says_what_it_is() -> None:
    kinds = {
        "max_tokens=": "param",
        "--out": "param",
        "gen": "function",
        "fork": "function",
        '"tip"': "instance",
    }
    assert {name: completion.kind_of(name) for name in kinds} == kinds


def test_only_what_a_program_may_call_of_its_state_is_offered() -> None:
    names, whole = offered("%%sgl\ns.|")
    assert whole and set(names) <= {*panel_edit.language()["methods"]}
    assert not {"settle", "inherit", "enter_run", "open_slots"} & set(names)


def test_states_are_told_by_the_text() -> None:
    text = (
        "a, b = s.fork(2)\nmany = s.fork(n)\nfirst = many[0]\nfor i, f in enumerate(many):\n    pass\n"
        "y = [g.text() for g in many]\nz = other()\nlater = s.fork_at('x', 2)"
    )
    states, groups = cell_cursor.states_in(panel_edit.statements_of(text))
    assert states == {"s", "a", "b", "first", "f", "g", "later"} and groups == {"many"}


def test_any_text_has_a_place() -> None:
    for text in ("'", '"""', "f'{", "f'{a!r:>{w}}'", "\\", "'\\", "}])", "f'}}", "x = '\n[", "rb'\\'"):
        for end in range(len(text) + 1):
            place = cell_cursor.place_of(text[:end])
            assert place.kind in ("code", "string", "comment")
            cell_cursor.open_call(place.code)
