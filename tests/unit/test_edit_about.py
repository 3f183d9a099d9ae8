"""Hover texts in ``%%sgl`` cells: what is said of the word at ``|``, and where it stands."""

from __future__ import annotations

from typing import Any

import pytest

import sgnb
from sgnb import inspection, panel_edit
from sgnb.backends.mock import MockBackend
from sgnb.edit_about import about
from sgnb.lang.arguments import GEN_NAMES
from sgnb.parameter_words import PARAMETERS, about_parameter
from sgnb.runtime.core import Core
from sgnb.runtime.state import State


def said(marked: str) -> tuple[str, str, str] | None:
    """The word, its signature and its text; None where nothing is said."""
    tips = State(Core(MockBackend()))
    tips["old"] = 1
    at = marked.index("|")
    head = marked[:at].split("\n")
    source = marked.replace("|", "", 1)
    names: dict[str, Any] = {"sgl": sgnb, "topic": "tea", "tips": tips}
    found = about(source, len(head), len(head[-1]), names)
    if found is None or found.get("unread"):
        return None
    return (
        source.split("\n")[found["line"] - 1][found["col"] : found["end_col"]],
        found["signature"],
        found["text"],
    )


@pytest.mark.parametrize(
    ("marked", "word", "signature", "text"),
    [
        ("%%sgl -o x --max-to|kens 3\ns += 'a'", "--max-tokens", "--max-tokens N", "default"),
        ("%%s|gl\ns += 'a'", "%%sgl", "%%sgl", "then a program"),
        ("%%sgl\ns += ge|n('x')", "gen", "gen(name, max_tokens,", "A generation that is bound"),
        ("%%sgl\ns += sgl.ge|n('x')", "gen", "gen(name, max_tokens,", "A generation that is bound"),
        ("%%sgl\nimport sgnb as lm\ns += lm.us|er('x')", "user", "user(", "A user turn"),
        ("%%sgl\ns += gen('x', max_to|kens=3)", "max_tokens", "gen(… max_tokens:", "Legal: a whole number in 0..2^31-1."),
        ("%%sgl\ns += gen_int('x', temp|erature=3)", "temperature", "gen(… temperature:", "a number in 0..100"),
        ("%%sgl\nforks = s.fork(si|ze=2)", "size", "fork(… size:", ""),
        ("%%sgl\nforks = s.fo|rk(2)", "fork", "fork(size:", "branches"),
        ("%%sgl\ns += user(to|pic)", "topic", "topic", "A name of the notebook: a str."),
        ("%%sgl\nt = 'é😀'\ns += user('é😀' + |t)", "t", "t", "Line 2: t = 'é😀'"),
        ("%%sgl\ns += gen('tip')\ns += user(s['t|ip'])", "'tip'", "s['tip']", "Line 2, by gen: s += gen('tip')"),
        ("%%sgl\ns += gen(f'x{1}')\ns['x|1']", "'x1'", "s['x1']", "Line 2, by gen"),
        ("%%sgl --from tips\ns += user(s['o|ld'])", "'old'", "s['old']", "A variable of tips"),
        ("%%sgl\nfor f in s.fork(2):\n    |f += 'a'", "f", "f: State", "Line 2: for f in s.fork(2):"),
        ("%%sgl\nforks = s.fork(2)\nforks|.join()", "forks", "forks: branches of a state", "Line 2"),
        ("%%sgl\n|s += 'a'", "s", "s: State", "The program's state"),
    ],
)  # fmt: skip
def test_a_word_is_explained(marked: str, word: str, signature: str, text: str) -> None:
    found = said(marked)
    assert found is not None
    assert found[0] == word and found[1].startswith(signature) and text in found[2]


@pytest.mark.parametrize(
    "marked",
    [
        "%%sgl\ns += user('a us|er')",
        "%%sgl\nclient.te|xt()",
        "%%sgl\nimport other as sgl\nsgl.ge|n('x')",
        "%%sgl\nd = {}\nd['t|ip']",
        "%%sgl\n# ge|n",
        "ge|n('x')",
    ],
)
def test_other_words_are_not(marked: str) -> None:
    assert said(marked) is None


def test_a_cell_that_cannot_be_parsed_says_so() -> None:
    assert about("%%sgl\ns += gen(", 2, 6, {}) == {"unread": True}


def test_every_parameter_has_its_sentence() -> None:
    assert PARAMETERS.keys() == {*GEN_NAMES}
    assert about_parameter("top_p").endswith("Legal: a number in (0, 1].") and about_parameter("kwargs") == ""
    for parameters in panel_edit.language()["parameters"].values():
        assert all(one["signature"] for one in parameters.values())


class Shell:
    """IPython's, as far as it inspects."""

    def object_inspect_mime(self, oname: str, detail_level: int = 0) -> dict[str, str]:
        if oname == "mine":
            return {"text/plain": "the notebook's"}
        raise KeyError(oname)


def test_shift_tab_knows_the_language_behind_the_notebook() -> None:
    shell = Shell()
    remove = inspection.install(shell)
    assert shell.object_inspect_mime("mine") == {"text/plain": "the notebook's"}
    for name in ("gen", "s.fork", "sgl.user"):
        assert shell.object_inspect_mime(name)["text/plain"].startswith("Signature: ")
    with pytest.raises(KeyError):
        shell.object_inspect_mime("bogus")
    remove()
    with pytest.raises(KeyError):
        shell.object_inspect_mime("gen")
