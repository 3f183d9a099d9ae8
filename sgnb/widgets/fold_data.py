"""A program fold as plain data for the page: the header, and each row and branch with all its words.

Notebook process; called by ``widgets.fold_messages`` only. The page makes no words of its own for what a run did, so the
live and the static form cannot differ. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from sgnb.widgets import words
from sgnb.widgets.program_rows import Cost, Lane, Row, Segment

if TYPE_CHECKING:
    from sgnb.widgets.fold import ProgramFold

FIRST_CHARS = 80


def head(fold: ProgramFold) -> dict[str, Any]:
    """The header as plain data."""
    return {
        "state": fold.status,
        "word": fold.word(),
        "seconds": round(fold.seconds(), 3),
        "facts": facts(fold),
        "summary": summary(fold),
        "bound": bound(fold),
        "cell": fold.started.cell if fold.started else "",
    }


def row_data(fold: ProgramFold, row: Row) -> dict[str, Any]:
    """One row without its text."""
    out: dict[str, Any] = {
        "kind": row.kind,
        "role": words.visible(row.role),
        "branch": words.visible(row.branch),
        "line": row.line,
        "state": row.state,
        "lane": row.lane,
        "arms": row.arms,
        "error": row.error,
        "segs": [segment_data(segment) for segment in row.segments],
        "costs": [cost_data(fold, cost) for cost in row.costs],
    }
    if row.kind == "join":
        out["said"] = row.join_words(times=fold.times)
    if (tokens := row.prompt_tokens()) is not None:
        reuse, computed = prompt_words(*tokens)
        rid = next(s.prompt.rid for s in row.segments if s.prompt is not None)
        out["prompt"] = {"cached": tokens[0], "prompt": tokens[1], "rid": rid, "reuse": reuse}
        out["prompt"] |= {"computed": computed, "shared": is_shared(fold, row)}
    return out


def segment_data(segment: Segment) -> dict[str, Any]:
    """A text without its characters. ``reused``: UTF-16 units of a prompt text that were reused; absent: not known."""
    out = {"model": segment.model, "name": words.visible(segment.name), "hidden": segment.hidden}
    if segment.prompt is not None:
        out |= {"reused": segment.prompt.units, "count": segment.prompt.count, "rid": segment.prompt.rid}
    return out


def prompt_words(cached: int, prompt: int) -> list[str]:
    """``312 of 312 tokens reused``, ``0 computed``."""
    return [words.reuse_words(cached, prompt), f"{words.count(prompt - cached)} computed"]


def is_shared(fold: ProgramFold, row: Row) -> bool:
    """True for prompt text that stands before a fork with no generation between: no cost line of one branch tells it."""
    lane = fold.rows_of.get(row.lane, [])
    for place in range(bisect_right(lane, fold.row_number(row)), len(lane)):
        later = fold.rows[lane[place]]
        if later.costs:
            return False
        if later.kind == "fork":
            return True
    return False


def cost_data(fold: ProgramFold, cost: Cost) -> dict[str, Any]:
    """One generation's cost line."""
    out: dict[str, Any] = {
        "name": words.visible(cost.name),
        "rid": cost.rid,
        "state": cost.state,
        "cached": cost.cached,
        "prompt": cost.prompt,
        "reuse": cost.reuse(),
        "why": cost.why(),
        "took": cost.took() if fold.times else "",
        "step": cost.last_step,
        "parts": cost.parts(times=fold.times, stopped=fold.status == "stopped", chosen=False),
    }
    if cost.options:
        out["options"] = [[text, share, place == cost.winner] for place, text, share in cost.shown_options()]
        out["more"] = cost.more_options()
        out["method"] = cost.method
        if cost.scores:
            kept = [place for place, _, _ in cost.shown_options()]
            out["scores"] = [round(cost.scores[place], 3) for place in kept]
    return out


def lane_data(fold: ProgramFold, lane: Lane) -> dict[str, Any]:
    """A branch's head: its name, its state in words, the values of its choices, and the first text that it made."""
    ended = fold.status if fold.finished is not None else ""
    state, said = lane.words(ended=ended, times=fold.times)
    if state == "done" and not ended and (inner := inner_words(fold, lane)):
        state, said = "running", inner
    return {
        "name": words.visible(lane.name),
        "fork": lane.fork,
        "state": state,
        "words": said,
        "values": lane.values() if state == "done" else [],
        "first": first_text(fold, lane),
    }


def first_text(fold: ProgramFold, lane: Lane) -> str:
    """The beginning of the first text of a branch that the model wrote, on one line; else of its own prompt."""
    prompt = ""
    for number in fold.rows_of.get(lane.number, ()):
        for segment in fold.rows[number].segments:
            text = segment.parts[0] if segment.parts else ""
            if segment.model and text.strip():
                line = " ".join(segment.text()[: 2 * FIRST_CHARS].split())
                return words.visible(line[:FIRST_CHARS])
            prompt = prompt or " ".join(text[: 2 * FIRST_CHARS].split())
    return words.visible(prompt[:FIRST_CHARS])


def facts(fold: ProgramFold) -> list[str]:
    """What stands behind state and time in the header."""
    if fold.status == "running":
        branches = branch_words(fold)
        out = [branches] if branches else []
        out += [f"{words.count(fold.tokens)} tok"] if fold.tokens else []
        return [*out, f"{words.count(rate)} tok/s"] if (rate := fold.rate()) else out
    if fold.status == "finished":
        costs = fold.costs()
        selects = sum(bool(cost.options) for cost in costs)
        counts = {"gen": len(costs) - selects, "select": selects}
        said = ", ".join(f"{words.count(number)} {what}" for what, number in counts.items() if number)
        return [said] if said else []
    return [f"{words.count(fold.tokens)} tok kept"] if fold.tokens else []


def branch_words(fold: ProgramFold) -> str:
    """``1 of 3 branches done``, of the newest outermost fork; nothing where there was none or all are done."""
    arms = fold.outer_arms()
    return _done_words(fold, arms) if len(arms) > 1 else ""


def inner_words(fold: ProgramFold, lane: Lane) -> str:
    """The same of the newest fork inside a branch that goes on; its own generations are over."""
    rows = (fold.rows[number] for number in reversed(fold.rows_of.get(lane.number, ())))
    arms = next((row.arms for row in rows if row.kind == "fork"), [])
    return _done_words(fold, arms) or next(filter(None, (inner_words(fold, fold.lanes[a]) for a in arms)), "")


def _done_words(fold: ProgramFold, arms: list[int]) -> str:
    done = sum(fold.lanes[arm].over() and not inner_words(fold, fold.lanes[arm]) for arm in arms)
    if done == len(arms):
        return ""
    return f"{words.count(done)} of {words.count(len(arms))} branch{'' if len(arms) == 1 else 'es'} done"


def summary(fold: ProgramFold) -> list[list[str]]:
    """The finished view's second line: pairs of a strong and a plain part."""
    costs = fold.costs()
    if fold.finished is None or not costs:
        return []
    cached, prompt = fold.totals()
    forced = sum(cost.forced for cost in costs if not cost.shared)
    out = []
    if prompt:  # else nothing of it was begun
        reused = f"{words.count(cached)} of {words.count(prompt)}"
        out.append([reused, f"prompt tokens reused, {words.share(cached, prompt)}"])
    said = f", {words.count(forced)} of them forced" if forced else ""
    out.append([words.count(fold.tokens), f"tok generated{said}"])
    if fold.times:
        split = words.split(fold.finished.times)
        out.append([words.duration(fold.finished.seconds) + (":" if split else ""), split])
    return out


def bound(fold: ProgramFold) -> list[str]:
    """What ``-o NAME`` bound: the name, and ``is a state with 3 variables``."""
    ended = fold.finished
    if ended is None or not ended.bound:
        return []
    number = len(ended.names)
    with_names = (
        f"with {words.count(number)} variable{'' if number == 1 else 's'}" if number else "without variables"
    )
    return [ended.bound, f"is a state {with_names}"]
