"""A run's event log folded to what the program view shows: rows in source order, one cost a generation, a header.

Notebook process. Fed by ``widgets.program`` (live, on the publisher thread) and by ``widgets.static`` (once, at the
end); a fold belongs to one reader. Any prefix of the log gives a complete picture, so a late or second view is never
wrong. Only plain data leaves here (``snapshot``, ``delta``): no HTML, no comms, no clocks but the log's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sgnb.config import MAX_SHOWN_CHARS
from sgnb.errors import SgnbError
from sgnb.runtime import events as ev
from sgnb.widgets import words
from sgnb.widgets.pending import steps_after

RATE_WINDOW = 1.0
"""Seconds over which the live token rate is taken."""


@dataclass(slots=True)
class Segment:
    """A stretch of prompt text (``model`` False) or of one generation; ``hidden`` characters are over the cap."""

    model: bool
    name: str = ""
    parts: list[str] = field(default_factory=list)
    sent: int = 0
    hidden: int = 0

    def text(self) -> str:
        """All of it."""
        if len(self.parts) > 1:
            self.parts[:] = ["".join(self.parts)]
            self.sent = min(self.sent, 1)
        return self.parts[0] if self.parts else ""


@dataclass(slots=True)
class Cost:
    """What one generation costs. Counts in tokens, time in seconds; ``state`` in queued, running, done, failed."""

    name: str
    limit: int
    state: str = "queued"
    prompt: int | None = None
    cached: int = 0
    tokens: int = 0
    seconds: float | None = None
    reason: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    """Of a choice."""
    chosen: str = ""
    """The winner with its share of the options' probability."""

    def parts(self, *, times: bool, stopped: bool) -> list[str]:
        """The cost line's words after the bar, without the variable's name."""
        if self.state == "queued":
            return ["queued"]
        if self.options and self.state == "running":
            return [f"scoring {words.count(len(self.options))} choices"]
        if self.state == "running":
            return [f"{words.count(self.tokens)} of ≤{words.THIN}{words.count(self.limit)} tok"]
        out = [self.chosen or f"{words.count(self.tokens)} tok"]
        if times and self.seconds is not None:
            out.append(words.duration(self.seconds))
        return out if self.chosen else [*out, words.stop_words(self.reason, stopped=stopped)]

    def reuse(self) -> str:
        """``20 of 31 tokens reused``, or nothing while it is not known."""
        return "" if self.prompt is None else words.reuse_words(self.cached, self.prompt)


@dataclass(slots=True)
class Row:
    """One turn, one stretch outside of turns, a note or an error. ``state`` in ok, failed; ``kind`` in turn, note,
    error.
    """

    role: str = ""
    branch: str = ""
    line: int = 0
    kind: str = "turn"
    state: str = "ok"
    segments: list[Segment] = field(default_factory=list)
    costs: list[Cost] = field(default_factory=list)
    error: list[str] = field(default_factory=list)


class ProgramFold:
    """Feed entries in order; read ``rows``, ``head()``, ``snapshot()`` or ``delta()`` at any time. Not thread-safe."""

    def __init__(self, *, times: bool | None = None, cap: int = MAX_SHOWN_CHARS) -> None:
        self.times = not words.deterministic() if times is None else times
        self.rows: list[Row] = []
        self.started: ev.RunStarted | None = None
        self.finished: ev.RunFinished | None = None
        self.status = "queued"
        self.tokens = 0
        self.next_seq = 0
        self._room = cap
        self._began = 0.0
        self._ended = 0.0
        self._branch: dict[int, str] = {}
        self._open: dict[int, Row] = {}
        self._role: dict[int, str] = {}
        self._gens: dict[str, tuple[Row, Segment, Cost]] = {}
        self._gens_of: dict[int, Row] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._dirty: set[int] = set()
        self._index: dict[int, int] = {}
        self._noted: set[str] = set()
        self._shown_errors: set[str] = set()
        self._line = 0
        self._pending: tuple[int, list[dict[str, str]]] = (-1, [])
        self._sent_pending: list[dict[str, str]] = []
        self.version = 0
        self._sent_version = -1

    # ------------------------------------------------------------ feeding

    def feed(self, entries: Iterable[ev.Entry]) -> bool:
        """Take entries; True when there was one."""
        fed = False
        for entry in entries:
            fed = True
            self.next_seq = entry.seq + 1
            if not self._began:
                self._began = entry.time
            self._ended = entry.time
            self._take(entry.event, entry.time)
        self.version += fed
        return fed

    def end_as(self, status: str) -> None:
        """Show ``status`` for a run whose log is still open (its engine does not answer any more)."""
        if self.finished is None:
            self._end(ev.RunFinished(status, max(0.0, time.monotonic() - self._began)))
            self.version += 1

    def bump(self) -> None:
        """Make the next delta differ: something beside the log changed (the header)."""
        self.version += 1

    def _take(self, event: ev.Event, now: float) -> None:
        match event:
            case ev.RunStarted():
                self.started, self.status = event, "running"
                if event.eager_reason:
                    self._note(f"Runs without a graph: {event.eager_reason}")
            case ev.StateOpened(state=state, branch=branch):
                self._branch[state] = branch
            case ev.RoleBegan(state=state, role=role):
                self._role[state] = role
                self._open.pop(state, None)
            case ev.RoleEnded(state=state):
                self._role.pop(state, None)
                self._open.pop(state, None)
            case ev.TextAppended(state=state, text=text, line=line):
                self._append_prompt(state, text, line)
            case ev.GenQueued():
                self._queue(event)
            case ev.GenStarted(rid=rid) | ev.GenDelta(rid=rid) | ev.GenDone(rid=rid) | ev.GenFailed(rid=rid):
                if rid in self._gens:
                    self._progress(event, *self._gens[rid], now)
            case ev.StateFailed(state=state, error=error):
                self._fail(self._open.get(state) or self._gens_of.get(state), error, again=False)
            case ev.HostNote(text=text, line=line):
                self._note(text, line)
            case ev.RunFinished():
                self._end(event)

    def _append_prompt(self, state: int, text: str, line: int) -> None:
        if not text:
            return
        row = self._row_of(state, line)
        if not row.segments or row.segments[-1].model:
            row.segments.append(Segment(False))
        self._grow(row, row.segments[-1], text)

    def _queue(self, event: ev.GenQueued) -> None:
        row = self._row_of(event.state, event.line)
        segment = Segment(True, event.name)
        cost = Cost(event.name, event.max_new_tokens, options=event.options)
        row.segments.append(segment)
        row.costs.append(cost)
        row.line = event.line or row.line
        self._gens[event.rid] = (row, segment, cost)
        self._gens_of[event.state] = row
        self._touch(row)

    def _progress(self, event: ev.Event, row: Row, segment: Segment, cost: Cost, now: float) -> None:
        match event:
            case ev.GenStarted():
                cost.state = "running"
            case ev.GenDelta(text=text, tokens=tokens):
                cost.state = "running"
                cost.tokens += tokens
                self.tokens += tokens
                self._recent.append((now, tokens))
                self._grow(row, segment, text)
            case ev.GenDone(meta=meta):
                self._done(cost, meta)
                notes = meta.get("notes")
                for note in notes if isinstance(notes, list) else ():
                    if note not in self._noted:
                        self._noted.add(note)
                        self._note(f"{cost.name}: {note}", row.line)
            case ev.GenFailed(error=error):
                cost.state, cost.reason = "failed", {"type": "error"}
                self._fail(row, error)
        self._touch(row)

    def _done(self, cost: Cost, meta: dict[str, Any]) -> None:
        sampled = int(meta.get("completion_tokens", cost.tokens))
        self.tokens += sampled - cost.tokens
        cost.state, cost.tokens = "done", sampled
        if meta.get("prompt_tokens") is not None:
            cost.prompt, cost.cached = int(meta["prompt_tokens"]), int(meta.get("cached_tokens", 0))
        latency = meta.get("e2e_latency")
        cost.seconds = float(latency) if isinstance(latency, int | float) else None
        reason = meta.get("finish_reason")
        cost.reason = dict(reason) if isinstance(reason, dict) else {"type": str(reason or "")}
        cost.reason["type"] = meta.get("finish") or cost.reason.get("type", "")
        if cost.reason["type"] == "length":
            cost.reason["length"] = cost.limit
        winner = meta.get("choice")
        if isinstance(winner, int) and 0 <= winner < len(cost.options):
            cost.chosen = words.chosen_words(cost.options, winner, meta.get("normalized_prompt_logprobs"))

    def _end(self, event: ev.RunFinished) -> None:
        self.finished, self.status = event, event.status
        if event.error is not None and event.status == "failed":
            self._fail(None, event.error, again=False)
        for row in self.rows:
            for cost in row.costs:
                if cost.state in ("queued", "running"):
                    cost.state, cost.reason = "done", {"type": "abort"}
            self._touch(row)

    def _fail(self, row: Row | None, error: BaseException, *, again: bool = True) -> None:
        """Turn a row to failed. ``again`` False: not when some row shows this error already."""
        lines = error.lines() if isinstance(error, SgnbError) else [f"{type(error).__name__}: {error}"]
        lines = [words.visible(line) for line in lines]
        if not again and lines[0] in self._shown_errors:
            return
        self._shown_errors.add(lines[0])
        if row is None:
            row = self._add(Row(kind="error"))
        row.state = "failed"
        if row.error[: len(lines)] != lines:
            row.error += lines
        self._touch(row)

    def _note(self, text: str, line: int = 0) -> None:
        row = self._add(Row(kind="note", line=line))
        row.segments.append(Segment(False, parts=[words.visible(text)]))

    def _row_of(self, state: int, line: int) -> Row:
        self._line = max(self._line, line)
        row = self._open.get(state)
        if row is None:
            row = Row(self._role.get(state, ""), self._branch.get(state, ""), line)
            self._open[state] = self._add(row)
        return row

    def _add(self, row: Row) -> Row:
        self._index[id(row)] = len(self.rows)
        self.rows.append(row)
        self._touch(row)
        return row

    def _grow(self, row: Row, segment: Segment, text: str) -> None:
        if not text:
            return
        kept = text[: self._room]
        self._room -= len(kept)
        segment.hidden += len(text) - len(kept)
        if kept:
            segment.parts.append(kept)
        self._touch(row)

    def _touch(self, row: Row) -> None:
        self._dirty.add(self._index[id(row)])

    # ------------------------------------------------------------ reading

    def totals(self) -> tuple[int, int]:
        """Reused and all prompt tokens of the finished generations."""
        done = [cost for row in self.rows for cost in row.costs if cost.prompt is not None]
        return sum(cost.cached for cost in done), sum(cost.prompt or 0 for cost in done)

    def seconds(self) -> float:
        """How long the run took, or runs by now."""
        if self.finished is not None:
            return self.finished.seconds
        return time.monotonic() - self._began if self._began else 0.0

    def word(self) -> str:
        """The state in the header."""
        if (
            self.status == "running"
            and self._gens
            and not any(cost.state != "queued" for _, _, cost in self._gens.values())
        ):
            return "Queued"
        known = {"queued": "Queued", "running": "Running", "finished": "Finished", "stopped": "Stopped"}
        return known.get(self.status, "Failed")

    def rate(self) -> int:
        """Tokens a second over the last second."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > RATE_WINDOW:
            self._recent.popleft()
        if not self._recent:
            return 0
        span = max(0.1, min(RATE_WINDOW, now - self._began))
        return round(sum(tokens for _, tokens in self._recent) / span)

    def facts(self) -> list[str]:
        """What stands behind state and time in the header."""
        if self.status == "running":
            out = [f"{words.count(self.tokens)} tok"] if self.tokens else []
            return [*out, f"{words.count(rate)} tok/s"] if (rate := self.rate()) else out
        if self.status == "finished":
            selects = sum(bool(cost.options) for _, _, cost in self._gens.values())
            counts = {"gen": len(self._gens) - selects, "select": selects}
            said = ", ".join(f"{words.count(number)} {what}" for what, number in counts.items() if number)
            return [said] if said else []
        return [f"{words.count(self.tokens)} tok kept"] if self.tokens else []

    def summary(self) -> list[list[str]]:
        """The finished view's second line: pairs of a strong and a plain part."""
        if self.finished is None or not self._gens:
            return []
        cached, prompt = self.totals()
        out = [
            [
                f"{words.count(cached)} of {words.count(prompt)}",
                f"prompt tokens reused, {words.share(cached, prompt)}",
            ],
            [words.count(self.tokens), "tok generated"],
        ]
        if self.times:
            split = words.split(self.finished.times)
            out.append([words.duration(self.finished.seconds) + (":" if split else ""), split])
        return out

    def pending(self) -> list[dict[str, str]]:
        """Steps of the program that have not begun; none once the run has finished (others are ``not run``)."""
        if self.started is None or self.started.graph is None or self.status == "finished":
            return []
        if self._pending[0] != self._line:
            self._pending = (self._line, steps_after(self.started.graph, self._line))
        return self._pending[1]

    def head(self) -> dict[str, Any]:
        """The header as plain data."""
        return {
            "state": self.status,
            "word": self.word(),
            "seconds": round(self.seconds(), 3),
            "facts": self.facts(),
            "summary": self.summary(),
            "cell": self.started.cell if self.started else "",
        }

    def news(self) -> bool:
        """True when something changed since the last ``snapshot`` or ``delta``."""
        return self.version != self._sent_version

    def snapshot(self) -> dict[str, Any]:
        """Everything, for a view that knows nothing. Marks all as sent."""
        rows = []
        for row in self.rows:
            data = self._row_data(row)
            for shown, segment in zip(data["segs"], row.segments, strict=True):
                shown["text"] = segment.text()
                segment.sent = len(segment.parts)
            rows.append(data)
        self._dirty.clear()
        self._sent_version = self.version
        self._sent_pending = self.pending()
        return {
            "k": "snapshot",
            "seq": self.version,
            "head": self.head(),
            "rows": rows,
            "pending": self._sent_pending,
        }

    def delta(self) -> dict[str, Any]:
        """What changed since the last ``snapshot`` or ``delta``, all of it; ``from`` names the version it applies to."""
        rows, texts = [], []
        for index in sorted(self._dirty):
            row = self.rows[index]
            rows.append([index, self._row_data(row)])
            for number, segment in enumerate(row.segments):
                if segment.sent < len(segment.parts):
                    texts.append([index, number, "".join(segment.parts[segment.sent :])])
                    segment.sent = len(segment.parts)
        base, self._sent_version = self._sent_version, self.version
        self._dirty.clear()
        out = {
            "k": "delta",
            "from": base,
            "seq": self.version,
            "head": self.head(),
            "rows": rows,
            "text": texts,
        }
        if self.pending() != self._sent_pending:
            out["pending"] = self._sent_pending = self.pending()
        return out

    def _row_data(self, row: Row) -> dict[str, Any]:
        stopped = self.status == "stopped"
        return {
            "kind": row.kind,
            "role": row.role,
            "branch": row.branch,
            "line": row.line,
            "state": row.state,
            "error": row.error,
            "segs": [{"model": s.model, "name": s.name, "hidden": s.hidden} for s in row.segments],
            "costs": [
                {
                    "name": words.visible(cost.name),
                    "state": cost.state,
                    "cached": cost.cached,
                    "prompt": cost.prompt,
                    "reuse": cost.reuse(),
                    "parts": cost.parts(times=self.times, stopped=stopped),
                }
                for cost in row.costs
            ],
        }
