"""``docs/passes.md`` shows what the passes do now: it is made from them, and each one has a program that it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from passes_page import PROGRAMS, around, page

from sgnb.lang.passes import PASSES

FILE = Path(__file__).parents[2] / "docs/passes.md"


def test_page_is_what_the_passes_say():
    assert FILE.read_text(encoding="utf-8") == page(), (
        "run: PYTHONPATH=. python tests/unit/passes_page.py > docs/passes.md"
    )


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_every_pass_changes_its_program(step):
    before, after = around(step, PROGRAMS[step.name])
    assert before != after
