"""The page's tasks from a trace of Chromium: by the clock, in CPU time, and what they did.

Made by ``bench_page.py`` around what it measures. A task's time by the clock holds the time that the page waited for a core;
its CPU time does not. No page, no server here.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import Any

CATEGORIES = [
    "devtools.timeline",
    "disabled-by-default-devtools.timeline",
    "toplevel",
    "blink.user_timing",
    "v8",
]
TASK = "RunTask"
KINDS = {
    "FunctionCall": "script",
    "FireAnimationFrame": "script",
    "TimerFire": "script",
    "EventDispatch": "script",
    "EvaluateScript": "script",
    "v8.callFunction": "script",
    "V8.GC": "garbage",
    "MinorGC": "garbage",
    "MajorGC": "garbage",
    "UpdateLayoutTree": "style",
    "Layout": "layout",
    "PrePaint": "paint",
    "Paint": "paint",
    "Layerize": "paint",
    "Commit": "paint",
    "IntersectionObserverController::computeIntersections": "observers",
}


def long_tasks(raw: bytes, least: float = 50.0) -> list[dict[str, Any]]:
    """Tasks of the page's main thread of at least ``least`` milliseconds by the clock, longest first: ``start``, ``ms``,
    ``cpu`` (milliseconds) and ``parts``, the CPU of each kind of work."""
    busiest = _main_thread(raw)
    found = []
    for index, event in enumerate(busiest):
        if event["name"] == TASK and event.get("dur", 0) >= least * 1000:
            end = event["ts"] + event["dur"]
            inside = []
            for other in busiest[index + 1 :]:
                if other["ts"] >= end:
                    break
                inside.append(other)
            task = {
                "start": event["ts"] / 1000,
                "ms": event["dur"] / 1000,
                "cpu": event.get("tdur", 0) / 1000,
            }
            found.append(task | {"parts": _parts(inside)})
    return sorted(found, key=lambda task: -task["ms"])


def _parts(events: list[dict[str, Any]]) -> dict[str, float]:
    """CPU milliseconds by kind of work, each event without those inside it."""
    out: Counter[str] = Counter()
    stack: list[dict[str, Any]] = []
    for event in events:
        while stack and event["ts"] >= stack[-1]["ts"] + stack[-1].get("dur", 0):
            stack.pop()
        own = event.get("tdur", 0) / 1000
        out[KINDS.get(event["name"], "other")] += own
        if stack:
            out[KINDS.get(stack[-1]["name"], "other")] -= own
        stack.append(event)
    return {kind: round(ms, 1) for kind, ms in out.most_common() if ms >= 0.5}


def total_cpu(raw: bytes) -> dict[str, float]:
    """CPU milliseconds of the page's main thread over the whole trace, by kind of work."""
    return _parts(_main_thread(raw))


def _main_thread(raw: bytes) -> list[dict[str, Any]]:
    """The events of the busiest main thread, in order, the outer before the inner."""
    events = json.loads(raw)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    lanes: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X" and names.get((event["pid"], event["tid"])) == "CrRendererMain":
            lanes[event["pid"], event["tid"]].append(event)
    busy = [(sum(e.get("tdur", 0) for e in lane if e["name"] == TASK), lane) for lane in lanes.values()]
    lane = max(busy, key=lambda one: one[0])[1] if busy else []
    return sorted(lane, key=lambda e: (e["ts"], -e.get("dur", 0)))
