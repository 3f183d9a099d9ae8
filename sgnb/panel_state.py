"""What the side panel is told of the current engine: one record, made of the handle and its live events.

Notebook process. ``panel.PanelHub`` keeps one ``EngineWatch`` while a panel is attached; ``state`` runs on the publisher's
thread and never asks the engine anything, so a stuck engine stops no panel. What has to be asked (which requests live, the
knobs, the figures) is asked when the panel comes into view, on a thread of its own; while only the figures are shown they
are asked for once a second and no events are subscribed. No comm, no buttons.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from sgnb.controls import ALIVE
from sgnb.errors import SgnbError
from sgnb.messages import EngineStats, KnobEvent, TelemetryEvent
from sgnb.panel_requests import LiveRequests
from sgnb.widgets import words
from sgnb.widgets.engine_view import store_key

LOG_EVERY = 1.0
LOG_LINES = 20
"""As many lines of the log as a panel can be set to show."""
_SEED_SECONDS = 3.0
_FIGURES_EVERY = 1.0

logger = logging.getLogger("sgnb")


class EngineWatch:
    """One engine under the eyes of a panel. ``wake()`` is called when there may be something new."""

    def __init__(self, engine: Any, wake: Callable[[], None]) -> None:
        self.engine = engine
        self.requests = LiveRequests()
        self.knobs: dict[str, Any] = {}
        self._wake = wake
        self._log: tuple[float, list[str]] = (0.0, [])
        self._asked: Any = None
        """The figures as the engine told them when it was asked; those of events may be newer, or older."""
        self._lock = threading.RLock()
        self._looks = "nothing"
        self._end_look: list[Callable[[], None]] = []
        self._seeded = threading.Lock()
        self._end_state: Callable[[], None] = lambda: None
        if engine.state in ALIVE:
            self._end_state = engine.on_state(self._changed)

    def look(self, how: str) -> None:
        """Follow its events (``all``), ask it for its figures once a second (``figures``), or neither (``nothing``)."""
        with self._lock:
            if self._looks in (how, "closed") or self.engine.state not in ALIVE:
                return
            self._looks = how
            ends, self._end_look = self._end_look, []
            if how == "all":
                self.requests = LiveRequests()  # what happened unseen is not known
                self._seeded = threading.Lock()
                self._end_look = [self.engine.subscribe(self._event)]
                self._seed_once()
            elif how == "figures":
                self.requests = LiveRequests()
                ended = threading.Event()
                self._end_look = [ended.set]
                threading.Thread(
                    target=self._ask_figures, args=(ended,), name="sgnb panel figures", daemon=True
                ).start()
        for end in ends:
            end()

    def close(self) -> None:
        """Listen no more."""
        with self._lock:
            ends, self._end_look = [*self._end_look, self._end_state], []
            self._looks = "closed"
        for end in ends:
            end()

    # ------------------------------------------------------------ events

    def _event(self, event: TelemetryEvent) -> None:
        self.requests.take(event)
        if isinstance(event, KnobEvent):
            self.knobs.update(event.knobs, objective=event.objective)
        self._wake()

    def _changed(self, _state: str) -> None:
        if self._looks == "all":
            self._seed_once()
        self._wake()

    def _ask_figures(self, ended: threading.Event) -> None:
        while not ended.is_set() and self.engine.state in ALIVE:
            try:
                if self.engine.info is not None:
                    self._take_figures()
                    self._wake()
            except SgnbError as error:  # it ended, or is stuck: its state says so
                logger.debug("the status bar keeps its figures: %s", error.message)
            ended.wait(_FIGURES_EVERY)

    def _take_figures(self) -> None:
        self._asked = SimpleNamespace(**self.engine.ask("stats", timeout=_SEED_SECONDS))

    def _figures(self) -> Any:
        known = [one for one in (self.engine.last_stats, self._asked) if one is not None]
        return max(known, key=lambda one: one.time, default=None)

    def _seed_once(self) -> None:
        if self.engine.info is not None and self._seeded.acquire(blocking=False):
            threading.Thread(target=self._seed, name="sgnb panel seed", daemon=True).start()

    def _seed(self) -> None:
        requests = self.requests
        try:
            self._take_figures()
            self.knobs = {**self.engine.ask("knobs", timeout=_SEED_SECONDS), **self.knobs}
            requests.seed(self.engine.ask("requests", {"all_clients": True}, timeout=_SEED_SECONDS))
        except SgnbError as error:  # it ended, or is stuck: events tell the rest
            logger.debug("the panel begins without the past: %s", error.message)
        self._wake()

    # ------------------------------------------------------------ the record

    def state(self) -> dict[str, Any]:
        """``engine, stats, requests, more, full, lost, log`` of the message ``state``; see ``panel``."""
        engine = self.engine
        stats = self._figures()
        alive = engine.state in ALIVE
        client = client_number(engine)
        rows, more = self.requests.rows(client) if alive else ([], 0)
        return {
            "engine": self._about(stats),
            "stats": stats_of(stats),
            "requests": rows,
            "more": more,
            "full": self.requests.full(stats, client) if alive and not engine.trouble else None,
            "lost": 0 if alive else self._lost(stats),
            "log": self._tail(),
        }

    def _lost(self, stats: Any) -> int:
        if self._looks in ("all", "closed") or stats is None:
            return self.requests.number
        counted = stats.num_running_reqs + stats.num_queue_reqs + stats.num_grammar_queue_reqs
        return int(counted) if self._looks == "figures" else 0  # unseen figures may be old

    def _about(self, stats: Any) -> dict[str, Any]:
        engine = self.engine
        state = str(engine.state)
        info = engine.info
        return {
            "name": engine.name,
            "key": store_key(engine.name, engine.pid),
            "state": state,
            "trouble": words.visible(engine.trouble),
            "paused": bool(stats is not None and stats.paused),
            "policy": str(self.knobs.get("schedule_policy", "")),
            "model": words.visible(engine.model_name),
            "dtype": info.dtype if info else "",
            "device": info.device if info else "",
            "attention": info.attention_backend if info else "",
            "slots": info.max_total_tokens if info else 0,
            "since": engine.since,
            "owner": bool(engine.owner),
            "error": words.visible(str(engine.error)) if engine.error else "",
            "steps": [
                {"step": p.step, "done": p.done, "total": p.total, "seconds": round(p.seconds, 2)}
                for p in latest_steps(engine.progress)
            ],
        }

    def _tail(self) -> list[str]:
        now = time.monotonic()
        if now - self._log[0] >= LOG_EVERY:
            try:
                self._log = (now, [words.visible(line) for line in self.engine.log(LOG_LINES)])
            except (OSError, SgnbError):  # its folder is gone: the last lines stay
                self._log = (now, self._log[1])
        return self._log[1]


def client_number(engine: Any) -> int | None:
    """This kernel's number at the engine; None before it was told."""
    welcome = engine.client.welcome
    return welcome.client if welcome is not None else None


def latest_steps(progress: Any) -> list[Any]:
    """The newest record of each start step, in their order."""
    newest: dict[str, Any] = {}
    for step in list(progress):
        newest[step.step] = step
    return list(newest.values())


def stats_of(stats: EngineStats | SimpleNamespace | None) -> dict[str, Any] | None:
    """The panel's five numbers from an EngineStats record, and the slots that nobody could be given."""
    if stats is None:
        return None
    return {
        "tokens_per_s": round(stats.gen_throughput, 1),
        "running": stats.num_running_reqs,
        "waiting": stats.num_queue_reqs + stats.num_grammar_queue_reqs,
        "kv_used": stats.num_used_tokens + stats.num_cached_tokens,
        "kv_locked": stats.num_used_tokens,
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


def report_text(engine: Any, watch: EngineWatch | None, *, stacks: str) -> str:
    """What someone who was not there needs to understand an engine's trouble: facts, figures, log, stacks. No text of
    prompts or outputs, no ids of tokens.
    """
    import platform  # noqa: PLC0415  used for a report alone
    import sys  # noqa: PLC0415

    from sgnb import __version__  # noqa: PLC0415

    facts: dict[str, Any] = {
        "sgnb": __version__,
        "Python": sys.version.split()[0],
        "system": platform.platform(),
        "engine": engine.name,
        "state": engine.state,
        "trouble": engine.trouble,
        "error": str(engine.error or ""),
        "model": engine.model_name,
        "arguments": engine.args,
        "knobs": watch.knobs if watch is not None else {},
        "figures": engine.last_stats,
        "requests": watch.requests.rows(client_number(engine)) if watch is not None else [],
    }
    lines = [f"{name}: {value}" for name, value in facts.items()]
    lines += ["", "Start:", *(f"  {p.step} {p.done}/{p.total} {p.seconds:.2f} s" for p in engine.progress)]
    lines += ["", "Log:", *engine.log(200), "", "Stacks:", stacks]
    return words.visible("\n".join(lines)) + "\n"
