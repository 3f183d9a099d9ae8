"""The static form of a finished run: one HTML table and the same lines as plain text, complete without a kernel.

Notebook process. Made once, at the end of a cell, from the run's event log; reads well on GitHub, in nbviewer and in a
diff. Only the tags in ``TAGS``; no style, class, script or svg; model text is escaped. No IPython here.
"""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Iterator

from sgnb import __version__
from sgnb.runtime.events import EventLog
from sgnb.widgets import words
from sgnb.widgets.fold import ProgramFold
from sgnb.widgets.fold_data import is_shared
from sgnb.widgets.program_rows import Cost, Row, Segment
from sgnb.widgets.tables import LEFT

TAGS = ("table", "tr", "th", "td", "b", "br", "code", "pre")
"""All that ``render_html`` may contain."""


def fold_log(log: EventLog, *, status: str | None = None, times: bool | None = None) -> ProgramFold:
    """Fold the whole log. ``status``: show this for a run whose log is still open."""
    fold = ProgramFold(times=times)
    fold.feed(log.since(0))
    if status:
        fold.end_as(status)
    return fold


def render_html(log: EventLog, *, status: str | None = None) -> str:
    """The table ``role | text | cost``, escaped, with a last row that says how it ended."""
    return html_of(fold_log(log, status=status))


def render_text(log: EventLog, *, status: str | None = None) -> str:
    """The same lines as plain text."""
    return text_of(fold_log(log, status=status))


def html_of(fold: ProgramFold) -> str:
    """HTML of a fold."""
    head = "".join(f"<th{LEFT}>{name}</th>" for name in ("role", "text", "cost"))
    out = ["<table>", f"<tr>{head}</tr>"]
    for row in shown_rows(fold):
        role = "<br>".join(html.escape(word) for word in _role_words(row))
        cost = "<br>".join(
            f"<b>{html.escape(name)}</b> {html.escape(line)}" if name else html.escape(line)
            for name, line in _costs(fold, row)
        )
        out.append(_html_row(role, _html_text(fold, row), cost))
    for step in skipped(fold):
        out.append(_html_row(html.escape(step["role"]), _break(step["text"]), html.escape(step["note"])))
    out.append(f'<tr><td colspan="3"{LEFT}>{html.escape(last_line(fold))}</td></tr>')
    return "\n".join([*out, "</table>"])


def _html_row(*cells: str) -> str:
    return "<tr>" + "".join(f"<td{LEFT}>{cell}</td>" for cell in cells) + "</tr>"


def text_of(fold: ProgramFold) -> str:
    """Plain text of a fold: role, text indented under it, cost lines, the last line."""
    out = [line for row in shown_rows(fold) for line in (*_begun(row), *_rest(fold, row))]
    for step in skipped(fold):
        out.append(f"{step['role'] or 'text'}:")
        out += [f"    {line}" for line in (*step["text"].splitlines(), f"[{step['note']}]")]
    return "\n".join([*out, last_line(fold)])


def text_so_far(fold: ProgramFold) -> str:
    """The beginning of ``text_of`` that will not change any more, and of the row behind it the text that has come.

    For a terminal, which cannot go back: what the branches of a fork say comes one branch after the other.
    """
    out: list[str] = []
    for row in shown_rows(fold):
        out += _begun(row)
        if not _is_over(fold, row):
            return "\n".join(out)
        out += _rest(fold, row)
    return "\n".join(out)


def _is_over(fold: ProgramFold, row: Row) -> bool:
    """Nothing more comes into this row, nor a row between it and the next that is shown."""
    if fold.finished is not None:
        return True
    if any(cost.state in ("queued", "running") for cost in row.costs):
        return False
    lane, number = fold.lanes[row.lane], fold.row_number(row)
    if number != fold.rows_of[lane.number][-1]:
        return _is_told(fold, row, number)
    while number == fold.rows_of[lane.number][-1]:  # its lane may go on, until its fork was left behind
        if lane.parent < 0:
            return False
        lane, number = fold.lanes[lane.parent], lane.fork
    return True


def _is_told(fold: ProgramFold, row: Row, number: int) -> bool:
    """Whether it is known what stands below a row behind which its lane goes on: prompt text before a fork has a cost line,
    which comes with the first request that reads it, if it comes."""
    if row.costs or row.kind != "turn":
        return True
    lane = fold.rows_of[row.lane]
    for later in (fold.rows[place] for place in lane[bisect_right(lane, number) :]):
        if later.costs:
            return True
        if later.kind == "fork":
            return row.prompt_tokens() is not None or _has_begun(fold, later)
    return False


def _has_begun(fold: ProgramFold, fork: Row) -> bool:
    """Whether a request of a fork's branches, or of theirs, was computed."""
    forks = {id(fork)}
    for lane in fold.lanes:
        if lane.fork < 0 or id(fold.rows[lane.fork]) not in forks:
            continue
        if any(cost.state != "queued" for cost in lane.costs):
            return True
        forks |= {
            id(fold.rows[place])
            for place in fold.rows_of.get(lane.number, ())
            if fold.rows[place].kind == "fork"
        }
    return False


def _begun(row: Row) -> list[str]:
    """A row's role, and its text so far."""
    body = "".join(_shown(segment) for segment in _texts(row))
    return [
        f"{' / '.join(_role_words(row)) or 'text'}:",
        *([f"    {line}" for line in body.split("\n")] if body else []),
    ]


def _rest(fold: ProgramFold, row: Row) -> list[str]:
    """What stands below a row's text once it is over."""
    return [
        *([f"    {row.join_words(times=fold.times)}"] if row.kind == "join" else []),
        *(f"    {words.visible(cost.name)} {choice_words(cost)}" for cost in row.costs if choice_words(cost)),
        *(f"    {line}" for line in (*row.error, *_hidden(row))),
        *(f"    [{name}: {line}]" if name else f"    [{line}]" for name, line in _costs(fold, row)),
    ]


def shown_rows(fold: ProgramFold) -> list[Row]:
    """The rows in source order; a fork has none of its own, its branches' rows name them."""
    return [row for row in fold.in_order() if row.kind != "fork"]


def choice_words(cost: Cost) -> str:
    """``= high (0.91), medium 0.08, low 0.01`` of a choice that was made: the winner first."""
    if not cost.chosen:
        return ""
    others = [
        f"{text} {share}" if share else text
        for place, text, share in cost.shown_options()
        if place != cost.winner
    ]
    return ", ".join([cost.chosen, *others, *filter(None, [cost.more_options()])])


def skipped(fold: ProgramFold) -> list[dict[str, str]]:
    """The steps a stopped or failed run did not reach, each noted ``not run``."""
    if fold.finished is None or fold.status == "finished":
        return []
    return [{**step, "note": "not run"} for step in fold.pending()]


def last_line(fold: ProgramFold) -> str:
    """``Finished in 0.80 s · 2 399 of 2 674 prompt tokens reused, 90 % · 165 tok generated · model · sgnb version``."""
    word = fold.word()
    took = f" in {words.duration(fold.seconds())}" if fold.times and fold.finished else ""
    out = [word + took]
    cached, prompt = fold.totals()
    if prompt:
        out.append(
            f"{words.count(cached)} of {words.count(prompt)} prompt tokens reused, {words.share(cached, prompt)}"
        )
    if fold.tokens:
        fate = {"Finished": " generated", "Running": "", "Queued": ""}.get(word, " kept")
        out.append(f"{words.count(fold.tokens)} tok{fate}")
    if fold.started and fold.started.model:
        out.append(words.visible(fold.started.model))
    return words.DOT.join([*out, f"sgnb {__version__}"])


def _role_words(row: Row) -> list[str]:
    branch = [f"branch {words.visible(row.branch)}"] if row.branch else []
    return [
        *branch,
        *([words.visible(row.role)] if row.role else ["select"] if _is_select(row) else []),
        *([row.kind] if row.kind in ("note", "error") else []),
    ]


def _is_select(row: Row) -> bool:
    """It holds choices and no text before them: a terminal has printed what it is called before more is known."""
    return bool(row.costs) and row.segments[0].model and all(cost.options for cost in row.costs)


def _texts(row: Row) -> Iterator[Segment]:
    """What stands in it, without the winners of choices: a line below names them."""
    costs = iter(row.costs)
    for segment in row.segments:
        if not segment.model or not next(costs).options:
            yield segment


def _html_text(fold: ProgramFold, row: Row) -> str:
    if row.kind == "join":
        return html.escape(row.join_words(times=fold.times))
    body = "".join(_break(_shown(segment)) for segment in _texts(row))
    lines = [html.escape(line) for line in _hidden(row)]
    error = f"<pre>{html.escape(chr(10).join(row.error))}</pre>" if row.error else ""
    lines += [
        f"<b>{html.escape(words.visible(cost.name))}</b> {html.escape(choice_words(cost))}"
        for cost in row.costs
        if choice_words(cost)
    ]
    return "<br>".join(filter(None, [body, *lines])) + error


def _break(text: str) -> str:
    """Escaped text with its line ends and runs of spaces kept."""
    return (
        html.escape(text).replace("\n", "<br>").replace("  ", "\u00a0 ").replace("\t", "\u00a0\u00a0\u00a0 ")
    )


def _shown(segment: Segment) -> str:
    return words.visible(segment.text())


def _hidden(row: Row) -> list[str]:
    return [
        f"{words.count(s.hidden)} more characters are not shown"
        + (f"; {s.name} holds them." if s.name else ".")
        for s in row.segments
        if s.hidden
    ]


def _costs(fold: ProgramFold, row: Row) -> list[tuple[str, str]]:
    stopped = fold.status == "stopped"
    tokens = row.prompt_tokens()
    if tokens is not None and is_shared(fold, row):
        return [("", words.reuse_words(*tokens))]
    return [
        (
            words.visible(cost.name),
            words.DOT.join(
                [
                    *filter(None, [cost.reuse()]),
                    *cost.parts(times=fold.times, stopped=stopped, chosen=False),
                ]
            ),
        )
        for cost in row.costs
    ]
