"""Waiting for an engine that starts, as the magics do."""

from __future__ import annotations

import pytest

from sgnb.controls import await_ready
from sgnb.errors import EngineStartError


class Starting:
    """An engine whose states come one a look; each wait for it ends without it."""

    def __init__(self, *states: str) -> None:
        self._states = list(states)
        self.waits = 0
        self.progress: list[object] = []

    @property
    def state(self) -> str:
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def wait_ready(self, timeout: float) -> None:
        self.waits += 1
        raise EngineStartError(f"The engine did not start: The engine was not ready after {timeout:.0f} s.")


def test_an_engine_that_is_ready_right_behind_a_wait_has_started() -> None:
    """The wait was over, and before its state was looked at the welcome came."""
    engine = Starting("starting", "idle")
    await_ready(engine, lambda _: None, tick=0.01)  # type: ignore[arg-type]
    assert engine.waits == 1


def test_an_engine_that_failed_behind_a_wait_says_so() -> None:
    with pytest.raises(EngineStartError):
        await_ready(Starting("starting", "failed"), lambda _: None, tick=0.01)  # type: ignore[arg-type]
