"""The catalogue of errors: each has a place, one sentence and a way on; the page shows what is raised."""

from __future__ import annotations

import re

import pytest
from error_catalogue import CATALOGUE, PAGE, error_of, page

from sgnb.errors import WIDEST, SgnbError, SourcePosition

CASES = [(name, case) for cases in CATALOGUE.values() for name, case in cases.items()]


def test_there_are_at_least_40_and_each_has_its_own_name():
    assert len(CASES) >= 40 and len({name for name, _ in CASES}) == len(CASES)


@pytest.mark.parametrize(("name", "case"), CASES)
def test_each_has_a_place_one_sentence_and_a_way_on(name, case):
    error = error_of(case)
    assert "\n" not in error.message and not re.search(r"[a-z]\.\s+[A-Z]", error.message.split(": ")[0])
    way_on = error.hint or re.search(r"must be|at most|reads|later version|takes", error.message)
    assert way_on, f"{name}: {error.message!r} says nothing of how to go on"
    assert error.position is not None and error.position.in_cell, name
    assert error.position.text == case.whole.splitlines()[error.position.line - 1]
    assert "^" in error.lines()[2]


@pytest.mark.parametrize("before", [0, 30, 99, 400])
@pytest.mark.parametrize("after", [0, 7, 200])
def test_of_a_long_line_the_part_around_the_place_is_shown(before, after):
    text = "        " + "a" * before + "HERE" + "b" * after
    at = 8 + before
    _, shown, carets = SgnbError("No.", position=SourcePosition("f", 1, at, at + 4, text)).lines()
    assert len(shown) <= 4 + WIDEST
    assert shown[carets.index("^") : carets.rindex("^") + 1] == "HERE"
    if len(text) <= WIDEST:
        assert shown == f"    {text}"


def test_the_page_shows_what_is_raised():
    written = PAGE.read_text(encoding="utf-8")
    assert written == page(), "docs/errors.md is old: python tests/unit/error_catalogue.py writes it"
