"""Kernel side of the JupyterLab side panel: what it shows and what its buttons do.

Notebook process. ``magics.load`` starts one ``PanelHub``; each panel that opens the comm target gets a ``PanelComm``,
which the kernel's one publisher serves (at most two states a second). Comm handlers run on a subshell thread while a
cell runs, or on the main thread between cells; they only queue work for one command thread, so a slow engine blocks
neither. Telemetry is subscribed only while a panel is attached. Nothing is printed.

Target ``sgnb.telemetry.v1``, opened by the page. Where sgnb is not loaded there is no such target and the kernel closes
the comm at once. ``load`` also opens a comm of target ``sgnb.announce.v1`` from the kernel, data ``{"version": 1}``: a
panel that waits attaches then.

Kernel → panel, JSON::

    {"kind": "state", "seq": 7,
     "engine": null | {"name": "main", "state": "starting|idle|running|died|stopped|failed",
                       "model": "…", "dtype": "bfloat16", "device": "cpu", "attention": "torch_native",
                       "slots": 65536,               (0 while unknown)
                       "since": 1718000000.0,        (epoch seconds of the last change of state)
                       "owner": true,                (false: another notebook's engine, attached)
                       "error": "", "trouble": "",
                       "steps": [{"step": "weights", "done": 71000000, "total": 145000000, "seconds": 1.2}]},
     "stats": null | {"tokens_per_s": 109.0, "running": 1, "waiting": 0, "kv_used": 812, "kv_total": 65536,
                      "reused": 0.9},                (share 0..1 of the prompt tokens of the last 60 s)
     "engines": ["main"], "log": ["…", "…"], "message": ""}
    {"kind": "log", "lines": ["…"]}                  (answer to the verb log)

A state is sent when something changed, at least every 4 s. ``message`` says what a button did, for 4 s; else, while
no step of the engine ends, ``engine.trouble``: since when, and who does not answer.

Panel → kernel, JSON: ``{"verb": "ping"}`` every 5 s (after 15 s without one the panel is dropped), ``"ack"`` (as a ping),
``"launch"`` (``model``, ``args`` of EngineArgs), ``"stop"``, ``"restart"``, ``"flush"``, ``"abort_all"``,
``"attach"`` (``name``), ``"set"`` (``knobs``: values by name), ``"pause"``, ``"step"`` (``count``), ``"resume"``,
``"log"`` (``lines``, 200 unless given), ``"knobs"``: answered by ``{"kind": "knobs", "rows": [...]}``, one for each live
knob: ``name, kind, value, unit, choices, low, high, legal, what``.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from sgnb import knob_words
from sgnb.controls import ALIVE, Controls
from sgnb.errors import SgnbError
from sgnb.widgets import words
from sgnb.widgets.comms import answer_on_any_shell
from sgnb.widgets.publisher import get_publisher

TARGET = "sgnb.telemetry.v1"
ANNOUNCE = "sgnb.announce.v1"
STATE_EVERY = 0.5
KEEPALIVE = 4.0
DROP_AFTER = 15.0
MESSAGE_SECONDS = 4.0
LOG_EVERY = 1.0
MAX_LOG_LINES = 1000

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
        self._watched: Any = None
        self._unwatch: list[Callable[[], None]] = []
        self._since: tuple[object, str, float] = (None, "", 0.0)
        self._log: tuple[float, list[str]] = (0.0, [])
        self._message: tuple[float, str] = (0.0, "")
        self._unlisten = controls.listen(self.wake)

    def start(self, shell: Any) -> None:
        """Register the comm target and announce it; outside a kernel there is nothing to do."""
        if getattr(shell, "kernel", None) is None:
            return
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
            self._announce.close()
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
            client = (message.get("content", {}).get("data") or {}).get("client")
            same = [panel for panel in self._panels if client and panel.client == client]
            panel = PanelComm(self, comm, client)
            self._panels.append(panel)
        for old in same:  # the same page attaches again without having closed
            old.close()
        get_publisher().add(panel)

    def forget(self, panel: PanelComm) -> None:
        """A panel closed; the last one ends the subscription."""
        with self._lock:
            if panel in self._panels:
                self._panels.remove(panel)
            last = not self._panels
        if last:
            self._watch(None)

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
            said = self._carry_out(verb, data, panel)
            if said:
                self.say(said)
        except SgnbError as error:
            self.say(words.visible(" ".join(filter(None, [error.message, error.hint]))))
        except Exception as error:  # a button must say what went wrong, whatever it was
            logger.debug("panel command %s", verb, exc_info=True)
            self.say(words.visible(f"{verb} failed: {error}"))
        self.wake()

    def _carry_out(self, verb: str, data: Mapping[str, Any], panel: PanelComm) -> str:
        controls = self.controls
        if verb == "launch":
            args = data.get("args") or {}
            model = data.get("model") or None
            engine = controls.launch(
                None if model is None else str(model), **{str(k): v for k, v in args.items()}
            )
            return f"Starting engine {engine.name}."
        if verb == "stop":
            return controls.stop()
        if verb == "restart":
            return f"Restarting engine {controls.restart().name}."
        if verb == "flush":
            return controls.flush()
        if verb == "abort_all":
            return controls.abort_all()
        if verb == "attach":
            return f"Attached engine {controls.attach(str(data.get('name', ''))).name}."
        if verb in ("pause", "resume"):
            return controls.pause() if verb == "pause" else controls.resume()
        if verb == "step":
            return controls.step(data.get("count", 1))
        if verb == "set":
            return controls.set_knobs(dict(data.get("knobs") or {}))
        if verb == "knobs":
            panel.send({"kind": "knobs", "rows": knob_words.knob_rows(controls.require().knobs())})
            return ""
        if verb == "log":
            wanted = data.get("lines", 200)
            number = min(MAX_LOG_LINES, max(1, wanted)) if isinstance(wanted, int) else 200
            engine_now = controls.current()
            lines = engine_now.log(number) if engine_now is not None else []
            panel.send({"kind": "log", "lines": [words.visible(line) for line in lines]})
            return ""
        return f"Unknown command {words.visible(verb)!r}."

    # ------------------------------------------------------------ the state

    def state(self) -> dict[str, Any]:
        """What a panel shows now, without its number."""
        engine = self.controls.current()
        self._watch(engine)
        said, text = self._message
        trouble = words.visible(engine.trouble) if engine is not None else ""
        return {
            "kind": "state",
            "engine": None if engine is None else self._engine(engine),
            "stats": None if engine is None else stats_of(engine.last_stats),
            "engines": [record.name for record in self.controls.records()],
            "log": [] if engine is None else self._tail(engine),
            "message": text if time.monotonic() - said < MESSAGE_SECONDS else trouble,
        }

    def _engine(self, engine: Any) -> dict[str, Any]:
        state = str(engine.state)
        if self._since[:2] != (engine, state):
            self._since = (engine, state, time.time())
        info = engine.info
        return {
            "name": engine.name,
            "state": "running" if state == "stuck" else state,
            "trouble": words.visible(engine.trouble),
            "model": words.visible(engine.model_name),
            "dtype": info.dtype if info else "",
            "device": info.device if info else "",
            "attention": info.attention_backend if info else "",
            "slots": info.max_total_tokens if info else 0,
            "since": self._since[2],
            "owner": bool(engine.owner),
            "error": words.visible(str(engine.error)) if engine.error else "",
            "steps": [
                {"step": p.step, "done": p.done, "total": p.total, "seconds": round(p.seconds, 2)}
                for p in latest_steps(engine.progress)
            ],
        }

    def _tail(self, engine: Any) -> list[str]:
        now = time.monotonic()
        if now - self._log[0] >= LOG_EVERY:
            try:
                self._log = (now, [words.visible(line) for line in engine.log(2)])
            except (OSError, SgnbError):  # its folder is gone: the last lines stay
                self._log = (now, self._log[1])
        return self._log[1]

    def _watch(self, engine: Any) -> None:
        """Subscribe to the current engine, and to no other."""
        with self._lock:
            if engine is self._watched or (engine is not None and not self._panels):
                return
            ends, self._unwatch, self._watched = self._unwatch, [], engine
        for end in ends:
            end()
        if engine is not None and engine.state in ALIVE:
            self._unwatch = [
                engine.subscribe(lambda _event: self.wake()),
                engine.on_state(lambda *_: self.wake()),
            ]


class PanelComm:
    """One attached panel: a source of the publisher."""

    def __init__(self, hub: PanelHub, comm: Any, client: str | None) -> None:
        self.client = client
        self.due: float | None = 0.0
        self._hub = hub
        self._comm = comm
        self._seq = 0
        self._heard = time.monotonic()
        self._sent_at = 0.0
        self._last: dict[str, Any] = {}
        self._outbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        comm.on_msg(self._on_message)
        comm.on_close(lambda _message: self.close(tell=False))

    def wake(self) -> None:
        """There may be a new state; too early ones wait for their time."""
        if not self._outbox.empty() or time.monotonic() - self._sent_at >= STATE_EVERY:
            get_publisher().wake(self)

    def send(self, data: dict[str, Any]) -> None:
        """Send something beside states, in the publisher's turn."""
        self._outbox.put(data)
        get_publisher().wake(self)

    def close(self, *, tell: bool = True) -> None:
        """Stop serving this panel."""
        get_publisher().remove(self)
        self._hub.forget(self)
        if tell:
            self._comm.close()

    def publish(self) -> bool:
        """Publisher's thread: at most one message."""
        now = time.monotonic()
        if now - self._heard > DROP_AFTER:  # an earlier page load, or a page that is asleep: it attaches anew
            self.close()
            return False
        if not self._outbox.empty():
            self._send(self._outbox.get())
            return True
        self.due = now + STATE_EVERY
        if now - self._sent_at < STATE_EVERY:
            self.due = self._sent_at + STATE_EVERY
            return False
        state = self._hub.state()
        if state == self._last and now - self._sent_at < KEEPALIVE:
            return False
        self._last, self._sent_at = state, now
        self._seq += 1
        self._send({**state, "seq": self._seq})
        return True

    def _send(self, data: dict[str, Any]) -> None:
        self._comm.send(data)
        answer_on_any_shell(self._comm)

    def _on_message(self, message: Mapping[str, Any]) -> None:
        self._heard = time.monotonic()
        data = message.get("content", {}).get("data")
        verb = data.get("verb") if isinstance(data, dict) else None
        if not isinstance(verb, str) or verb in ("ping", "ack"):
            return
        self._hub.submit(verb, data, self)


def latest_steps(progress: Any) -> list[Any]:
    """The newest record of each start step, in their order."""
    newest: dict[str, Any] = {}
    for step in list(progress):
        newest[step.step] = step
    return list(newest.values())


def stats_of(stats: Any) -> dict[str, Any] | None:
    """The panel's five numbers from an EngineStats record."""
    if stats is None:
        return None
    return {
        "tokens_per_s": round(stats.gen_throughput, 1),
        "running": stats.num_running_reqs,
        "waiting": stats.num_queue_reqs,
        "kv_used": stats.num_used_tokens + stats.num_cached_tokens,
        "kv_total": stats.max_total_num_tokens,
        "reused": stats.cache_hit_rate,
    }


def five_numbers(stats: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The same five as words, from ``Engine.stats()``; ``–`` for what it does not say."""
    used = int(stats.get("num_used_tokens", 0)) + int(stats.get("num_cached_tokens", 0))
    whole = int(stats.get("max_total_num_tokens", 0))
    return [
        ("Tokens/s", words.count(round(float(stats.get("gen_throughput", 0.0))))),
        ("Running", words.count(int(stats.get("num_running_reqs", 0)))),
        ("Waiting", words.count(int(stats.get("num_queue_reqs", 0)))),
        ("KV used", f"{words.count(used)} of {words.count(whole)} slots"),
        ("Reused", words.share(round(1000 * float(stats.get("cache_hit_rate", 0.0))), 1000)),
    ]
