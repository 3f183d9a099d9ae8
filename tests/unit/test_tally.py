"""Counts over a sliding window."""

from __future__ import annotations

import pytest

from sgnb.backends.tally import Tally


def test_a_tally_forgets_what_is_older_than_its_window():
    now = [0.0]
    tally = Tally(10.0, lambda: now[0])
    tally.note(4)
    now[0] = 9.0
    tally.note()
    assert tally.rate() == pytest.approx(0.5)
    now[0] = 10.5
    assert tally.rate() == pytest.approx(0.1)
    now[0] = 30.0
    assert tally.rate() == 0.0
