"""Grammars of a cell's later generations are compiled while its first ones run.

Notebook process; called by ``cell``. A thread of its own asks the engine once the first generation is queued, and logs each
answer (``GrammarReady``), so that the program view can say which grammars are ready. Nothing depends on it: a request whose
grammar is not ready waits for it as ever. No view and no compiler here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from sgnb.constraints import Constraint
from sgnb.errors import SgnbError
from sgnb.lang.frontend.constants import constraints_ahead
from sgnb.lang.ir import Graph
from sgnb.runtime.events import EventLog, GenQueued, GrammarReady, RunStarted
from sgnb.widgets.telemetry import FeedEngine

PATIENCE = 30.0
"""Seconds that an answer is waited for: two slow constraints may be before it."""


def compile_ahead(
    log: EventLog, names: Mapping[str, Any], engine: Callable[[], FeedEngine | None]
) -> threading.Thread | None:
    """Begin, if the program of ``log`` has constraints to compile; ``engine()`` is asked for once a generation is queued."""
    started = next((entry.event for entry in log.since(0) if isinstance(entry.event, RunStarted)), None)
    if started is None or not isinstance(started.graph, Graph):
        return None
    wanted = constraints_ahead(started.graph, names)
    if not wanted:
        return None
    thread = threading.Thread(
        target=_compile, args=(log, wanted, engine), name="sgnb grammars ahead", daemon=True
    )
    thread.start()
    return thread


def _compile(
    log: EventLog, wanted: Mapping[tuple[str, str], Constraint], engine: Callable[[], FeedEngine | None]
) -> None:
    if not any(isinstance(entry.event, GenQueued) for entry in log.follow()):
        return
    carrier = engine()
    for (argument, source), constraint in wanted.items():
        if carrier is None or log.closed:
            return
        try:
            asked = {"kind": constraint.kind, "text": constraint.text}
            found = carrier.ask("compile_grammar", asked, PATIENCE)
        except SgnbError:
            continue  # its generation will say what is wrong
        log.append(GrammarReady(argument, source, float(found["seconds"])))
