"""The two files of a run folder: what the notebook asked for, and who runs there.

Written by the notebook (``spec.json``) and by the engine (``engine.json``), read by everybody who looks for an engine.
"""

from __future__ import annotations

from typing import Literal

from sgnb.config import EngineArgs
from sgnb.messages.parts import Wire


class EngineSpec(Wire, frozen=True, kw_only=True):
    """``spec.json``: what the notebook asks for; written before the engine is started, read by both its processes."""

    args: EngineArgs
    incarnation: str
    version: str
    owner_pid: int
    owner_start_time: int
    sockets: dict[str, str]
    """Paths, as in EngineRecord."""


class EngineRecord(Wire, frozen=True, kw_only=True):
    """``engine.json``: who runs here. Written by atomic rename, mode 0600."""

    name: str
    incarnation: str
    version: str
    pid: int
    start_time: int
    owner_pid: int
    owner_start_time: int
    scheduler_pid: int
    scheduler_start_time: int
    model: str
    sockets: dict[str, str]
    """``client`` (ROUTER), ``telemetry`` (PUB), ``scheduler`` (pair between the two processes)."""
    state: Literal["starting", "ready", "failed"]
    started: float
