"""What the side panel is told of the current engine: one record, made of the handle and its live events.

Notebook process. ``panel.PanelHub`` keeps one ``EngineWatch`` while a panel is attached; ``state`` runs on the publisher's
thread and never asks the engine anything, so a stuck engine stops no panel. What has to be asked (which requests live, the
knobs) is asked once per engine, on a thread of its own. No comm, no buttons.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
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

logger = logging.getLogger("sgnb")


class EngineWatch:
    """One engine under the eyes of a panel. ``wake()`` is called when there may be something new."""

    def __init__(self, engine: Any, wake: Callable[[], None]) -> None:
        self.engine = engine
        self.requests = LiveRequests()
        self.knobs: dict[str, Any] = {}
        self._wake = wake
        self._since: tuple[str, float] = ("", 0.0)
        self._log: tuple[float, list[str]] = (0.0, [])
        self._ends: list[Callable[[], None]] = []
        self._seeded = threading.Lock()
        if engine.state in ALIVE:
            self._ends = [engine.subscribe(self._event), engine.on_state(self._changed)]
            self._seed_once()

    def close(self) -> None:
        """Listen no more."""
        ends, self._ends = self._ends, []
        for end in ends:
            end()

    # ------------------------------------------------------------ events

    def _event(self, event: TelemetryEvent) -> None:
        self.requests.take(event)
        if isinstance(event, KnobEvent):
            self.knobs.update(event.knobs, objective=event.objective)
        self._wake()

    def _changed(self, _state: str) -> None:
        self._seed_once()
        self._wake()

    def _seed_once(self) -> None:
        if self.engine.info is not None and self._seeded.acquire(blocking=False):
            threading.Thread(target=self._seed, name="sgnb panel seed", daemon=True).start()

    def _seed(self) -> None:
        try:
            self.knobs = {**self.engine.ask("knobs", timeout=_SEED_SECONDS), **self.knobs}
            self.requests.seed(self.engine.ask("requests", {"all_clients": True}, timeout=_SEED_SECONDS))
        except SgnbError as error:  # it ended, or is stuck: events tell the rest
            logger.debug("the panel begins without the past: %s", error.message)
        self._wake()

    # ------------------------------------------------------------ the record

    def state(self) -> dict[str, Any]:
        """``engine, stats, requests, more, full, lost, log`` of the message ``state``; see ``panel``."""
        engine = self.engine
        stats = engine.last_stats
        alive = engine.state in ALIVE
        client = client_number(engine)
        rows, more = self.requests.rows(client) if alive else ([], 0)
        return {
            "engine": self._about(),
            "stats": stats_of(stats),
            "requests": rows,
            "more": more,
            "full": self.requests.full(stats, client) if alive and not engine.trouble else None,
            "lost": 0 if alive else self.requests.number,
            "log": self._tail(),
        }

    def _about(self) -> dict[str, Any]:
        engine = self.engine
        state = str(engine.state)
        # Working or resting is a matter of moments: what lasts is that it is there.
        lasting = "ready" if state in ("idle", "running", "stuck") else state
        if self._since[0] != lasting:
            self._since = (lasting, time.time())
        info = engine.info
        return {
            "name": engine.name,
            "key": store_key(engine.name, engine.pid),
            "state": state,
            "trouble": words.visible(engine.trouble),
            "paused": bool(engine.last_stats is not None and engine.last_stats.paused),
            "policy": str(self.knobs.get("schedule_policy", "")),
            "model": words.visible(engine.model_name),
            "dtype": info.dtype if info else "",
            "device": info.device if info else "",
            "attention": info.attention_backend if info else "",
            "slots": info.max_total_tokens if info else 0,
            "since": self._since[1],
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


def stats_of(stats: EngineStats | None) -> dict[str, Any] | None:
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
