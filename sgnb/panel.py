"""Kernel side of the JupyterLab side panel: its comm, its buttons, its docked views, its editing help.

Notebook process. ``extension.load`` starts one ``PanelHub``; each panel that opens the comm target gets a ``PanelComm``,
which the kernel's one publisher serves (at most two states a second). Comm handlers run on a subshell thread while a
cell runs, or on the main thread between cells; they only queue work for one command thread, so a slow engine blocks
neither. Telemetry is subscribed only while a panel is seen. What a state says is ``panel_state``'s, what a cell's text
says ``panel_edit``'s. Nothing is printed.

Target ``sgnb.telemetry.v1``, opened by the page. Where sgnb is not loaded there is no such target and the kernel closes
the comm at once. ``load`` also opens a comm of target ``sgnb.announce.v1`` from the kernel, data ``{"version": 1}``: a
panel that waits attaches then.

Kernel → panel, JSON::

    {"kind": "state", "seq": 7,
     "engine": null | {"name": "main", "state": "starting|idle|running|stuck|died|stopped|failed",
                       "key": "…",                   (names the page's store of this engine)
                       "model": "…", "dtype": "bfloat16", "device": "cpu", "attention": "torch_native",
                       "slots": 65536,               (0 while unknown)
                       "since": 1718000000.0,        (epoch seconds: of its start, of its readiness, or of its end)
                       "owner": true,                (false: another notebook's engine, attached)
                       "paused": false, "policy": "lpm",
                       "error": "", "trouble": "",   (trouble: since when no step ended, and who does not answer)
                       "steps": [{"step": "weights", "done": 71000000, "total": 145000000, "seconds": 1.2}]},
     "stats": null | {"tokens_per_s": 109.0, "running": 1, "waiting": 0, "kv_used": 812, "kv_locked": 300,
                      "kv_total": 65536, "reused": 0.9},   (share 0..1 of the prompt tokens of the last 60 s)
     "requests": [{"rid": "c1.r7", "name": "15.0 tip", "words": "decode 88"}], "more": 2,
     "full": null | {"waiting": 14, "oldest": 6.2, "holder": "13 summary", "slots": 5210, "cell": "13", "rids": ["…"]},
     "lost": 0,                                      (requests that failed when the engine ended)
     "engines": [{"name": "main", "model": "…", "state": "idle"}], "log": ["…", "…"], "message": ""}
    {"kind": "log", "lines": ["…"]}                  (answer to the verb log)
    {"kind": "answer", "id": 3, "data": …}           (to check, about, language, knobs, report), or "error": "…"
    {"k": …, "key": …}                               what ``widgets.telemetry`` sends to docked views

A state is sent when something changed, at least every 4 s. ``message`` says what a button did, for 4 s. What of it the page
shows it says by ``"show"`` (``what``; also in the data of the comm's opening): ``"all"``; ``"figures"``, those of the status
bar: the engine is asked for them once a second, and no request is listed; ``"nothing"``: a state every 4 s of what is known.

Panel → kernel, JSON: ``{"verb": "ping"}`` every 5 s (after 15 s without one the panel is dropped), ``"ack"`` (as a ping),
``"launch"`` (``model``, ``args`` of EngineArgs), ``"stop"``, ``"restart"``, ``"flush"``, ``"abort_all"``,
``"abort"`` (``rids``, ``name``), ``"attach"`` (``name``), ``"set"`` (``knobs``: values by name, or their texts),
``"pause"``, ``"step"`` (``count``), ``"resume"``, ``"log"`` (``lines``, 200 unless given), ``"plain"`` (``view``: a
widget's id, of which the page could not load the script: its output becomes a table), ``"show"``. Questions carry an ``id``:
``"knobs"`` (the live ones: ``name, kind, value, unit, choices, low, high, legal, what``), ``"report"`` (``name, text``),
``"check"`` (``source`` of a cell: its mistakes), ``"about"`` (``source``, ``line``, ``col``: what the word there means),
``"language"`` (its names and their meaning), ``"graph"`` (``source`` of a cell: of the program in it, or null).
``{"k": …, "key": …}`` goes to the engine's feed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from sgnb import edit_about, knob_words, panel_edit
from sgnb.controls import Controls
from sgnb.errors import EngineError, SgnbError
from sgnb.knobs import find_knob
from sgnb.panel_comm import STATE_EVERY, PanelComm
from sgnb.panel_state import EngineWatch, report_text
from sgnb.widgets import output, words
from sgnb.widgets.comms import close_comm
from sgnb.widgets.engine_view import store_key
from sgnb.widgets.publisher import get_publisher
from sgnb.widgets.telemetry import EngineFeed, feed_of

TARGET = "sgnb.telemetry.v1"
ANNOUNCE = "sgnb.announce.v1"
MESSAGE_SECONDS = 4.0
MAX_LOG_LINES = 1000
STACKS_SECONDS = 3.0

logger = logging.getLogger("sgnb")


class PanelHub:
    """All panels of a kernel, the command thread and the telemetry they share."""

    def __init__(self, controls: Controls) -> None:
        self.controls = controls
        self._panels: list[PanelComm] = []
        self._lock = threading.Lock()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._manager: Any = None
        self._announce: Any = None
        self._watched: EngineWatch | None = None
        self._names: Mapping[str, Any] = {}
        self._message: tuple[float, str] = (0.0, "")
        self._unlisten = controls.listen(self.wake)

    def start(self, shell: Any) -> None:
        """Register the comm target and announce it; outside a kernel there is nothing to do."""
        if getattr(shell, "kernel", None) is None:
            return
        self._names = getattr(shell, "user_ns", {})
        import comm  # noqa: PLC0415  only kernels have it, and it must not load before ipykernel chose its classes

        self._manager = comm.get_comm_manager()
        self._manager.register_target(TARGET, self._on_open)
        self._announce = comm.create_comm(target_name=ANNOUNCE, data={"version": 1})

    def stop(self) -> None:
        """Close all comms, end the command thread."""
        self._unlisten()
        if self._manager is not None:
            self._manager.unregister_target(TARGET, self._on_open)
        for panel in list(self._panels):
            panel.close()
        if self._announce is not None:
            close_comm(self._announce)
        if self._worker is not None:
            self._commands.put(None)
            self._worker.join(2.0)
            self._worker = None

    # ------------------------------------------------------------ panels

    def _on_open(self, comm: Any, message: Mapping[str, Any]) -> None:
        with self._lock:
            if self._worker is None:
                self._worker = threading.Thread(target=self._work, name="sgnb panel", daemon=True)
                self._worker.start()
            data = message.get("content", {}).get("data") or {}
            client = data.get("client")
            same = [panel for panel in self._panels if client and panel.client == client]
            panel = PanelComm(self, comm, client)
            panel.show(data.get("show"))
            self._panels.append(panel)
        for old in same:  # the same page attaches again without having closed
            old.close()
        self.look()
        get_publisher().add(panel)

    def forget(self, panel: PanelComm) -> None:
        """A panel closed; the last one ends the subscription."""
        with self._lock:
            if panel in self._panels:
                self._panels.remove(panel)
            last = not self._panels
        if last:
            self.watch(None)
        self.look()

    def look(self) -> None:
        """See as much of the engine as the panel that shows most of it."""
        watch = self._watched
        if watch is not None:
            watch.look(self._wanted())

    def _wanted(self) -> str:
        shown = {panel.shown for panel in list(self._panels)}
        return next((what for what in STATE_EVERY if what in shown), "nothing")

    def wake(self) -> None:
        """Something changed: every panel gets a state soon."""
        for panel in list(self._panels):
            panel.wake()

    def say(self, text: str) -> None:
        """Show a sentence in the panels for four seconds."""
        self._message = (time.monotonic(), text)
        self.wake()

    # ------------------------------------------------------------ commands

    def submit(self, verb: str, data: Mapping[str, Any], panel: PanelComm) -> None:
        """Queue a button's work for the command thread."""
        self._commands.put(lambda: self._run(verb, data, panel))

    def _work(self) -> None:
        while (command := self._commands.get()) is not None:
            command()

    def _run(self, verb: str, data: Mapping[str, Any], panel: PanelComm) -> None:
        try:
            if verb in _QUESTIONS:
                answer = {"kind": "answer", "id": data.get("id"), "data": self._answer(verb, data)}
                panel.send(answer)
                return
            said = self._carry_out(verb, data, panel)
            if said:
                self.say(said)
        except SgnbError as error:
            self._failed(verb, data, panel, " ".join(filter(None, [error.message, error.hint])))
        except Exception as error:  # a button must say what went wrong, whatever it was
            logger.debug("panel command %s", verb, exc_info=True)
            self._failed(verb, data, panel, f"{verb} failed: {error}")
        self.wake()

    def _failed(self, verb: str, data: Mapping[str, Any], panel: PanelComm, why: str) -> None:
        if verb in _QUESTIONS:
            panel.send({"kind": "answer", "id": data.get("id"), "error": words.visible(why)})
        else:
            self.say(words.visible(why))

    def _carry_out(self, verb: str, data: Mapping[str, Any], panel: PanelComm) -> str:
        controls = self.controls
        simple: dict[str, Callable[[], str]] = {
            "stop": controls.stop,
            "restart": lambda: f"Restarting engine {controls.restart().name}.",
            "flush": controls.flush,
            "abort_all": controls.abort_all,
            "attach": lambda: f"Attached engine {controls.attach(str(data.get('name', ''))).name}.",
            "pause": controls.pause,
            "resume": controls.resume,
            "step": lambda: controls.step(data.get("count", 1)),
        }
        if verb in simple:
            return simple[verb]()
        if verb == "launch":
            args = data.get("args") or {}
            model = data.get("model") or None
            if model is None and not args:
                return f"Starting engine {controls.launch_again().name}."
            engine = controls.launch(
                None if model is None else str(model), **{str(k): v for k, v in args.items()}
            )
            return f"Starting engine {engine.name}."
        if verb == "abort":
            rids = [str(rid) for rid in data.get("rids") or ()][:4096]
            controls.require().abort(rids=rids)
            name = words.visible(str(data.get("name") or ""))
            return f"Aborted {name or _requests(len(rids))}."
        if verb == "set":
            return self._set(dict(data.get("knobs") or {}))
        if verb == "plain":
            output.show_plain(str(data.get("view") or ""))
            return ""
        if verb == "log":
            wanted = data.get("lines", 200)
            number = min(MAX_LOG_LINES, max(1, wanted)) if isinstance(wanted, int) else 200
            engine_now = controls.current()
            lines = engine_now.log(number) if engine_now is not None else []
            panel.send({"kind": "log", "lines": [words.visible(line) for line in lines]})
            return ""
        return f"Unknown command {words.visible(verb)!r}."

    def _set(self, given: dict[str, Any]) -> str:
        """Texts come from input fields and are read as after ``%sgl set``."""
        values = {
            str(name): find_knob(str(name), live=True).parse(value) if isinstance(value, str) else value
            for name, value in given.items()
        }
        said = self.controls.set_knobs(values)
        if [*values] == ["schedule_policy"]:
            return f"Policy is now {values['schedule_policy']}."
        return said

    def _answer(self, verb: str, data: Mapping[str, Any]) -> Any:
        if verb == "graph":
            return panel_edit.graph_of(str(data.get("source") or ""), self._names)
        if verb == "language":
            return panel_edit.language()
        engine = self.controls.require()
        if verb == "knobs":
            return knob_words.knob_rows(engine.knobs())
        try:
            stacks = str(engine.client.control("stacks", timeout=STACKS_SECONDS)["stacks"])
        except EngineError as error:  # it ended, or nothing of it answers
            stacks = error.message
        when = time.strftime("%Y-%m-%d-%H%M%S")
        return {
            "name": f"sgnb-report-{engine.name}-{when}.txt",
            "text": report_text(engine, self._watched, stacks=stacks),
        }

    def check(self, source: object) -> list[dict[str, Any]]:
        """The mistakes in a cell's text; on a comm's thread, which may be beside a running cell."""
        return panel_edit.check_source(source, dict(self._names)) if isinstance(source, str) else []

    def about(self, data: Mapping[str, Any]) -> dict[str, Any] | None:
        """What the word at a place of a cell means; on a comm's thread too."""
        source, line, col = data.get("source"), data.get("line"), data.get("col")
        if not isinstance(source, str) or not isinstance(line, int) or not isinstance(col, int):
            return None
        return edit_about.about(source, line, col, dict(self._names))

    # ------------------------------------------------------------ the state

    def state(self) -> dict[str, Any]:
        """What a panel shows now, without its number."""
        engine = self.controls.current()
        watch = self.watch(engine)
        said, text = self._message
        empty: dict[str, Any] = {
            "engine": None, "stats": None, "requests": [], "more": 0, "full": None, "lost": 0,
            "log": [],
        }  # fmt: skip
        return {
            "kind": "state",
            **(empty if watch is None else watch.state()),
            "engines": [
                {"name": record.name, "model": words.visible(record.model), "state": record.state}
                for record in self.controls.records()
            ],
            "message": text if time.monotonic() - said < MESSAGE_SECONDS else "",
        }

    def watch(self, engine: Any) -> EngineWatch | None:
        """Watch the current engine, and no other."""
        with self._lock:
            old = self._watched
            if old is not None and old.engine is engine:
                return old
            if engine is not None and not self._panels:
                engine = None
            self._watched = EngineWatch(engine, self.wake) if engine is not None else None
            made = self._watched
            if made is not None:
                made.look(self._wanted())
        if old is not None:
            old.close()
        return made

    def feed(self, key: str) -> EngineFeed | None:
        """The current engine's feed, if it is the one that ``key`` names; it may have ended, and its feed says when."""
        engine = self.controls.current()
        if engine is None or store_key(engine.name, engine.pid) != key:
            return None
        return feed_of(engine)


_QUESTIONS = frozenset({"knobs", "report", "language", "graph"})


def _requests(number: int) -> str:
    return f"{words.count(number)} request{'' if number == 1 else 's'}"
