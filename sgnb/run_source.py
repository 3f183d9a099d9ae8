"""What a program view's page may ask about its run: a token, a fork from it, another view of the same engine.

Notebook process; made by ``cell`` and ``views``, called by ``widgets.program`` on a thread of its own, never on a comm's,
since answers may wait for the engine. No folding, no drawing.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Any

from sgnb import views
from sgnb.backends.engine import Engine
from sgnb.errors import SgnbError
from sgnb.lang.position import internal
from sgnb.runtime.core import Core
from sgnb.runtime.events import GenQueued
from sgnb.runtime.explain import not_taken
from sgnb.runtime.run import Run
from sgnb.runtime.state import State
from sgnb.widgets import words
from sgnb.widgets.engine_view import EngineView, store_key
from sgnb.widgets.program import ProgramView
from sgnb.widgets.telemetry import FeedEngine

internal(__name__)

PATIENCE = 3.0
"""Seconds that a token's slot is waited for: an engine may be in a long step."""
FORK_NAME = "fork"
"""States made by *Fork from here* are called ``fork_1``, ``fork_2``, …"""


class RunSource:
    """A run, as its view asks about it. ``names``: the notebook's, where a fork is bound."""

    def __init__(self, core: Core, names: MutableMapping[str, Any] | None = None) -> None:
        self.core = core
        self._names = names
        self._kept: dict[str, EngineView] = {}

    def engine(self) -> FeedEngine | None:
        """The engine that carries the run, or None: another backend, or not started yet."""
        carrier = getattr(self.core.backend, "_inner", self.core.backend)
        carrier = getattr(carrier, "carrier", None) if carrier is not None else None
        return carrier if hasattr(carrier, "subscribe_frames") else None

    def facts(self) -> dict[str, Any]:
        """What the page's header needs: the engine's name and store, and whether there is a graph to show."""
        engine = self.engine()
        if engine is None:
            return {"graph": True}
        store = store_key(
            engine.name, getattr(engine, "pid", 0)
        )  # the views' and the panel's: one playhead, one selection
        return {"engine": engine.name, "store": store, "graph": True}

    def answer(self, content: Mapping[str, Any], details: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer to one question; ``details``: the token it is about, in numbers. Raises SgnbError."""
        kind = content.get("k")
        if kind == "token":
            if details is None:
                raise SgnbError("This token's details are not known; run with %%sgl --logprobs 5.")
            return self._token(details)
        if kind == "fork":
            return self._fork(str(content.get("rid", "")), content.get("tokens"))
        return self._open(str(content.get("kind", "")))

    # ------------------------------------------------------------ tokens

    def _token(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """The same with the texts of its rivals and of the best token that the grammar excluded, and where its KV is."""
        out = {key: value for key, value in details.items() if key != "more"} | self._place(details)
        info = getattr(self.engine(), "info", None)
        out["vocabulary"] = getattr(info, "vocab_size", 0)
        if "top" not in details:  # of a prompt
            return out
        out["top"] = [[p, token, self._text(token)] for p, token in details["top"]]
        if details["ruled_out"] >= 0:
            out["ruled_out_text"] = self._text(details["ruled_out"])
            out["ruled_out_logprob"] = next(
                (p for p, token in details["top"] if token == details["ruled_out"]), None
            )
        return out

    def _place(self, details: Mapping[str, Any]) -> dict[str, Any]:
        """The slot and the node that hold a token's KV now, and its id; no slot where the engine has let it go."""
        engine = self.engine()
        if engine is None or details["position"] < 0:
            return {"slot": -1}
        asked = {name: details[name] for name in ("rid", "position", "more")}
        try:
            found = engine.ask("place", asked, PATIENCE)
        except SgnbError:
            return {"slot": -1}
        return {"slot": found["slot"], "node": found["node"], "id": found["id"], "by": found.get("by", "")}

    def _text(self, token: int) -> str:
        """A token's text; empty where it is not a whole character, and where the backend has none to tell."""
        try:
            return self.core.backend.text_of([token])[0]
        except SgnbError:
            return ""

    # ------------------------------------------------------------ forks

    def _fork(self, rid: str, tokens: Any) -> dict[str, Any]:
        """A state that begins after ``tokens`` tokens of a generation, bound to a new name of the notebook."""
        queued = next(
            (
                e.event
                for e in self.core.log.since(0)
                if isinstance(e.event, GenQueued) and e.event.rid == rid
            ),
            None,
        )
        state = None if queued is None else self.core.states.get(queued.state)
        if queued is None or state is None:
            raise SgnbError("The state of this text is gone; keep it with -o NAME, or run the cell again.")
        if not isinstance(tokens, int) or self._names is None:
            raise SgnbError("There is no notebook to bind a fork in.")
        made = state.fork_at(queued.name, tokens)
        number = next(n for n in range(1, 1 << 30) if f"{FORK_NAME}_{n}" not in self._names)
        name = f"{FORK_NAME}_{number}"
        self._names[name] = made
        return {
            "name": name,
            "words": f"{name} begins after token {words.count(tokens)}. Go on with %%sgl --from {name}",
        }

    # ------------------------------------------------------------ other views

    def _open(self, kind: str) -> dict[str, Any]:
        """Make another view; the page shows it below this one."""
        view = self._kept.get(kind)
        if view is None:
            view = self._kept[kind] = self._make(kind)
        return {"model_id": view.open().model_id}

    def _make(self, kind: str) -> EngineView:
        if kind == "graph":
            return views.run_graph(self.core)
        engine = self.engine()
        if kind not in views.KINDS or not isinstance(engine, Engine):
            raise SgnbError("There is no engine behind this run.")
        return views.view(kind, engine=engine)

    def close(self) -> None:
        """Free the views that were opened."""
        for view in self._kept.values():
            view.close()
        self._kept.clear()
        self.core.kept_states = None


def program(run: State | Run) -> ProgramView:
    """The program view of a run, or of the run a state belongs to: of one that goes on, live."""
    if not isinstance(run, State | Run):
        raise not_taken("program", run, "a state or a run")
    core = run.core
    if not len(core.log):
        raise SgnbError("This run has nothing to show yet.")
    return ProgramView(core.log, on_stop=core.cancel, source=RunSource(core))
