"""A run's event log folded to what the program view shows: rows in source order, branches, one cost a generation.

Notebook process. Fed by ``widgets.program`` (live, on the publisher thread) and by ``widgets.static`` (once, at the
end); a fold belongs to one reader. Any prefix of the log gives a complete picture, so a late or second view is never
wrong. What a page is told of it stands in ``widgets.fold_messages``. No messages, no HTML, no comms, no clocks but the
log's own.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sgnb.config import MAX_SHOWN_CHARS
from sgnb.messages import PromptText
from sgnb.runtime import events as ev
from sgnb.widgets import words
from sgnb.widgets.pending import Progress, steps_after
from sgnb.widgets.program_rows import NOT_RUN, Cost, Lane, Row, Segment, error_lines

RATE_WINDOW = 1.0
"""Seconds over which the live token rate is taken."""


@dataclass(slots=True)
class Changes:
    """What changed since its reader last emptied it, by numbers."""

    rows: set[int] = field(default_factory=set)
    lanes: set[int] = field(default_factory=set)
    grown: set[int] = field(default_factory=set)
    """Rows with more text of a running generation and nothing else: their numbers may wait."""

    def clear(self) -> None:
        """All of it was read."""
        self.rows.clear()
        self.lanes.clear()
        self.grown.clear()


class ProgramFold:
    """Feed entries in order; read ``rows`` and ``lanes`` at any time, and ``changes`` since then. Not thread-safe."""

    def __init__(self, *, times: bool | None = None, cap: int = MAX_SHOWN_CHARS) -> None:
        self.times = not words.deterministic() if times is None else times
        self.rows: list[Row] = []
        self.lanes: list[Lane] = [Lane(0)]
        self.rows_of: dict[int, list[int]] = {}
        """Lane → places of its rows."""
        self.started: ev.RunStarted | None = None
        self.finished: ev.RunFinished | None = None
        self.status = "queued"
        self.tokens = 0
        self.next_seq = 0
        self._room = cap
        self._began = 0.0
        self._lane: dict[int, Lane] = {}
        self._branch: dict[int, str] = {}
        self._forks: dict[tuple[int, int], Row] = {}
        self._open: dict[int, Row] = {}
        self._fresh: dict[int, list[Segment]] = {}
        """State → its prompt texts that no generation has read yet."""
        self._row_with: dict[int, Row] = {}
        """Prompt text (its id) → the row that it stands in."""
        self._role: dict[int, str] = {}
        self._join_of: dict[int, Row] = {}
        """Lane of a branch → the join of it."""
        self.generations: dict[str, tuple[Row, Segment, Cost]] = {}
        """By request id, in the order they were queued."""
        self._gens_of: dict[int, Row] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._recent_tokens = 0
        self.changes = Changes()
        self._index: dict[int, int] = {}
        self._noted: set[str] = set()
        self._shown_errors: set[str] = set()
        self._line = 0
        self._grammars: dict[tuple[str, str], float | None] = {}
        """Seconds that compiling took, of each constraint that is ready before its generation: ``ev.GrammarReady``."""
        self._pending: tuple[object, list[dict[str, str]]] = (None, [])
        self.version = 0

    # ------------------------------------------------------------ feeding

    def feed(self, entries: Iterable[ev.Entry]) -> bool:
        """Take entries; True when there was one."""
        fed = False
        for entry in entries:
            fed = True
            self.next_seq = entry.seq + 1
            if not self._began:
                self._began = entry.time
            self._take(entry.event, entry.time)
        self.version += fed
        return fed

    def end_as(self, status: str) -> None:
        """Show ``status`` for a run whose log is still open (its engine does not answer any more)."""
        if self.finished is None:
            now = time.monotonic()
            self._end(ev.RunFinished(status, max(0.0, now - self._began)), now)
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
            case ev.StateOpened():
                self._open_state(event, now)
            case ev.RoleBegan(state=state, role=role):
                self._role[state] = role
                self._open.pop(state, None)
            case ev.RoleEnded(state=state):
                self._role.pop(state, None)
                self._open.pop(state, None)
            case ev.TextAppended(state=state, text=text, line=line):
                self._append_prompt(state, text, line)
            case ev.GenQueued():
                self._queue(event, now)
                self._count(self._lane_of(event.state), 1, now)
            case ev.GenHeld(rid=rid) if rid in self.generations:
                row, _, cost = self.generations[rid]
                cost.held = True
                self._touch(row)
            case ev.GenStarted(rid=rid) | ev.GenDelta(rid=rid) | ev.GenDone(rid=rid) | ev.GenFailed(rid=rid):
                if rid in self.generations:
                    self._progress(event, *self.generations[rid], now)
                    if isinstance(event, ev.GenDone | ev.GenFailed):
                        self._count(self.lanes[self.generations[rid][0].lane], -1, now)
            case ev.StateFailed(state=state, error=error):
                self._fail(self._open.get(state) or self._gens_of.get(state), error, again=False)
                self._lane_of(state).failed = self._lane_of(state).number > 0
            case ev.BranchesJoined():
                self._join(event)
            case ev.HostNote(text=text, line=line):
                self._note(text, line)
            case ev.GrammarReady(argument=argument, source=source, seconds=seconds):
                self._grammars[argument, source] = seconds if self.times else None
            case ev.RunFinished():
                self._end(event, now)

    def _open_state(self, event: ev.StateOpened, now: float) -> None:
        """A root state writes into the run's own lane, a branch into one of its own beside the others of its fork."""
        self._branch[event.state] = event.branch
        if event.parent is not None:
            self._fresh[event.state] = self._fresh.get(event.parent, []).copy()
        if not event.fork or event.parent is None:
            self._lane[event.state] = self.lanes[0]
            return
        above = self._lane_of(event.parent)
        key = (event.parent, event.fork)
        if key not in self._forks:
            self._open.pop(
                event.parent, None
            )  # what the parent appends from now on stands below its branches
            branch = self._branch.get(event.parent, "")
            self._forks[key] = self._add(Row(kind="fork", branch=branch, lane=above.number, began=now))
        fork = self._forks[key]
        lane = Lane(len(self.lanes), event.branch, above.number, self._index[id(fork)])
        self.lanes.append(lane)
        self._lane[event.state] = lane
        fork.arms.append(lane.number)
        fork.role = f"fork {words.count(len(fork.arms))}"
        self._role[event.state] = self._role.get(event.parent, "")
        self.changes.lanes.add(lane.number)
        self._touch(fork)

    def _join(self, event: ev.BranchesJoined) -> None:
        """What the parent appends from now on stands below its join."""
        self._open.pop(event.state, None)
        self._line = max(self._line, event.line)
        lane = self._lane_of(event.state)
        row = Row("join", self._branch.get(event.state, ""), event.line, "join", lane=lane.number)
        row.joined = [self._lane_of(state) for state in event.states]
        row.count = event.count
        row.began = next((self.rows[one.fork].began for one in row.joined if one.fork >= 0), 0.0)
        self._add(row)
        self._join_of.update({one.number: row for one in row.joined})

    def _count(self, lane: Lane, change: int, now: float) -> None:
        """A generation of this branch was queued (1) or has ended (-1): so of the branches it is inside of."""
        while True:
            lane.under_way += change
            lane.ended = now if change < 0 else lane.ended
            if lane.number in self._join_of:
                self._touch(self._join_of[lane.number])
            if lane.parent < 0:
                return
            lane = self.lanes[lane.parent]

    def _lane_of(self, state: int) -> Lane:
        return self._lane.get(state, self.lanes[0])

    def _append_prompt(self, state: int, text: str, line: int) -> None:
        if not text:
            return
        row = self._row_of(state, line)
        if not row.segments or row.segments[-1].model:
            row.segments.append(Segment(False))
            self._fresh.setdefault(state, []).append(row.segments[-1])
            self._row_with[id(row.segments[-1])] = row
        self._grow(row.segments[-1], text)
        self._touch(row)

    def _queue(self, event: ev.GenQueued, now: float) -> None:
        row = self._row_of(event.state, event.line)
        segment = Segment(True, event.name)
        lane = self._lane_of(event.state)
        before = next((c.name for c in reversed(lane.costs) if c.state in ("queued", "running")), "")
        cost = Cost(event.name, event.max_new_tokens, event.rid, options=event.options, shape=event.shape)
        cost.method, cost.asked = event.method, now
        cost.after = before if lane.number or before else ""
        cost.texts = self._fresh.pop(event.state, [])
        row.segments.append(segment)
        row.costs.append(cost)
        row.line = event.line or row.line
        lane.costs.append(cost)
        self.generations[event.rid] = (row, segment, cost)
        self._gens_of[event.state] = row
        self._touch(row)

    def _progress(self, event: ev.Event, row: Row, segment: Segment, cost: Cost, now: float) -> None:
        if event.__class__ is ev.GenDelta and cost.state == "running":
            self.changes.grown.add(self._index[id(row)])
        else:
            self._touch(row)
        match event:
            case ev.GenStarted(prompt=prompt_tokens, cached=cached, text=told):
                cost.state = "running"
                if prompt_tokens:
                    cost.prompt, cost.cached = prompt_tokens, cached
                self._read_prompt(cost, told)
            case ev.GenDelta(text=text, tokens=tokens, details=details):
                cost.state = "running"
                cost.tokens += tokens
                cost.first, cost.last = cost.first or now, now
                self.tokens += tokens
                self._recent.append((now, tokens))
                self._recent_tokens += tokens
                segment.add_tokens(details)
                self._grow(segment, text)
            case ev.GenDone(meta=meta, prompt=prompt):
                self._done(cost, meta)
                self._read_prompt(cost, prompt)
                cost.texts = []
                self._free_followers(row, cost)
                notes = meta.get("notes")
                for note in notes if isinstance(notes, list) else ():
                    if note not in self._noted:
                        self._noted.add(note)
                        self._note(f"{cost.name}: {note}", row.line)
            case ev.GenFailed() if cost.state == "queued" and cost.after:  # it never had its turn
                cost.state, cost.reason = "done", {"type": NOT_RUN}
            case ev.GenFailed(error=error):
                cost.end("failed", "error", now)
                self._fail(row, error)

    def _read_prompt(self, cost: Cost, told: object) -> None:
        """What the engine told of a prompt's tokens, for the rows whose texts they are."""
        if isinstance(told, PromptText):
            for known in cost.read(told):
                self._touch(self._row_with[id(known)])

    def _free_followers(self, row: Row, ended: Cost) -> None:
        """What waited for this generation is queued in its own right now."""
        for cost in self.lanes[row.lane].costs:
            if cost.after == ended.name and cost.state == "queued":
                cost.after = ""
                self._touch(self.generations[cost.rid][0])

    def _done(self, cost: Cost, meta: dict[str, Any]) -> None:
        begun = cost.state == "running"
        sampled = int(meta.get("completion_tokens", cost.tokens))
        self.tokens += sampled - cost.tokens
        cost.state, cost.tokens = "done", sampled
        if meta.get("prompt_tokens") is not None:
            cost.prompt, cost.cached = int(meta["prompt_tokens"]), int(meta.get("cached_tokens", 0))
        cost.miss = str(meta.get("miss") or "")
        cost.forced = int(meta.get("forced_tokens", 0) or 0)
        cost.first_step, cost.last_step = int(meta.get("first_step", -1)), int(meta.get("last_step", -1))
        latency = meta.get("e2e_latency")
        cost.seconds = float(latency) if isinstance(latency, int | float) else None
        reason = meta.get("finish_reason")
        cost.reason = dict(reason) if isinstance(reason, dict) else {"type": str(reason or "")}
        cost.reason["type"] = meta.get("finish") or cost.reason.get("type", "")
        if cost.reason["type"] == "length":
            cost.reason["length"] = cost.limit
        if cost.reason["type"] == "abort" and not begun and not sampled:
            cost.reason["type"] = NOT_RUN
        self._share(cost, str(meta.get("shared_with") or ""))
        winner = meta.get("choice")
        if isinstance(winner, int):
            cost.score(winner, meta.get("normalized_prompt_logprobs"))

    def _share(self, cost: Cost, rid: str) -> None:
        """It takes another one's result, as a pass allowed: the sums of the run count that one alone."""
        if rid not in self.generations:
            return
        row, _, leader = self.generations[rid]
        here = self.generations[cost.rid][0]
        branch = words.visible(self.lanes[row.lane].name)
        cost.shared = rid
        cost.shared_with = (
            f"branch {branch}" if branch and row.lane != here.lane else words.visible(leader.name)
        )
        cost.prompt, cost.cached = None, 0
        self.tokens -= cost.tokens

    def _end(self, event: ev.RunFinished, now: float) -> None:
        self.finished, self.status = event, event.status
        if event.error is not None and event.status == "failed":
            self._fail(None, event.error, again=False)
        for row in self.rows:
            for cost in row.costs:
                if cost.state in ("queued", "running"):
                    cost.end("done", "abort" if cost.state == "running" else NOT_RUN, now)
            self._touch(row)
        for lane in self.lanes:
            lane.under_way = 0
        self.changes.lanes.update(lane.number for lane in self.lanes)

    def _fail(self, row: Row | None, error: BaseException, *, again: bool = True) -> None:
        """Turn a row to failed. ``again`` False: not when some row shows this error already."""
        lines, line = error_lines(error)
        if not again and lines[0] in self._shown_errors:
            return
        self._shown_errors.add(lines[0])
        self._line = max(self._line, line)  # what stands above it has run, also what leaves no row
        if row is None:
            row = self._add(Row(kind="error", line=line))
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
            row.lane = self._lane_of(state).number
            self._open[state] = self._add(row)
        return row

    def _add(self, row: Row) -> Row:
        self._index[id(row)] = len(self.rows)
        self.rows_of.setdefault(row.lane, []).append(len(self.rows))
        self.rows.append(row)
        self._touch(row)
        return row

    def _grow(self, segment: Segment, text: str) -> None:
        if not text:
            return
        kept = text[: self._room]
        self._room -= len(kept)
        segment.hidden += len(text) - len(kept)
        segment.hidden_bytes += len(text[len(kept) :].encode("utf-8", "replace"))
        if kept:
            segment.parts.append(kept)

    def _touch(self, row: Row) -> None:
        self.changes.rows.add(self._index[id(row)])
        number = row.lane
        while number >= 0:  # a branch goes on while one inside it does
            self.changes.lanes.add(number)
            number = self.lanes[number].parent

    # ------------------------------------------------------------ reading

    def in_order(self, lane: int = 0) -> Iterator[Row]:
        """All rows as the source reads: those of a fork's branches, branch by branch, where the fork stands."""
        for number in self.rows_of.get(lane, ()):
            row = self.rows[number]
            yield row
            for arm in row.arms:
                yield from self.in_order(arm)

    def row_number(self, row: Row) -> int:
        """Its place in ``rows``."""
        return self._index[id(row)]

    def costs(self) -> list[Cost]:
        """What every generation costs, in the order they were queued."""
        return [cost for _, _, cost in self.generations.values()]

    def totals(self) -> tuple[int, int]:
        """Reused and all prompt tokens of the generations that began."""
        begun = [cost for cost in self.costs() if cost.prompt is not None]
        return sum(cost.cached for cost in begun), sum(cost.prompt or 0 for cost in begun)

    def seconds(self) -> float:
        """How long the run took, or runs by now."""
        if self.finished is not None:
            return self.finished.seconds
        return time.monotonic() - self._began if self._began else 0.0

    def word(self) -> str:
        """The state in the header."""
        waits = self.generations and all(cost.state == "queued" for _, _, cost in self.generations.values())
        if self.status == "running" and waits:
            return "Queued"
        known = {"queued": "Queued", "running": "Running", "finished": "Finished", "stopped": "Stopped"}
        return known.get(self.status, "Failed")

    def rate(self) -> int:
        """Tokens a second over the last second."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > RATE_WINDOW:
            self._recent_tokens -= self._recent.popleft()[1]
        if not self._recent:
            return 0
        span = max(0.1, min(RATE_WINDOW, now - self._began))
        return round(self._recent_tokens / span)

    def outer_arms(self) -> list[int]:
        """The branches of the newest fork that is not inside of a branch itself."""
        forks = (row for row in reversed(self.rows) if row.kind == "fork" and self.lanes[row.lane].fork < 0)
        return next((row.arms for row in forks), [])

    def pending(self) -> list[dict[str, str]]:
        """Steps of the program that have not begun; none once the run has finished (others are ``not run``)."""
        if self.started is None or self.started.graph is None or self.status == "finished":
            return []
        arms = self.outer_arms()
        waits = tuple(self.lanes[arm].name for arm in arms if not self.lanes[arm].over())
        key = (self._line, waits, len(self._grammars))
        if self._pending[0] != key:
            progress = Progress(self._line, waits, self._grammars)
            self._pending = (key, steps_after(self.started.graph, progress))
        return self._pending[1]
