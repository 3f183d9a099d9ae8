"""The graph view's words: what a pass did as a sentence, a generation's parameters, texts cut to one line.

Notebook process; called by ``lang.stages``. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sgnb.lang.block import CommitOp, ForkOp, GenOp, Op, SelectOp, SharedOp, TextOp
from sgnb.lang.position import line_of
from sgnb.sampling_params import SamplingParams

MAX_CHARS = 160


def did_words(name: str, before: Sequence[Sequence[Op]], after: Sequence[Sequence[Op]]) -> str:
    """What a pass did, as a sentence: its own where its operations tell, else how many operations there are now."""
    old, new = [op for ops in before for op in ops], [op for ops in after for op in ops]
    texts = [sum(type(op) is TextOp for op in ops) for ops in (old, new)]
    forks = [sum(type(op) is ForkOp for op in ops) for ops in (old, new)]
    if name == "fold_text":
        return f"{texts[0]} texts became {texts[1]}: neighbours of one state are one."
    if name == "prune_choices":
        gone = sum(type(op) is SelectOp for op in old) - sum(type(op) is SelectOp for op in new)
        return f"{_several(gone, 'choice')} with one option became text."
    if name == "merge_forks":
        return f"{forks[0]} forks became {forks[1]}: those of one state at one place are one."
    if name == "share_generations":
        shared = [op for op in new if type(op) is SharedOp]
        return f"{_several(len(shared), 'generation')} {'takes' if len(shared) == 1 else 'take'} the result of another one."
    if name == "hoist_prefix":
        saved = sum(len(op.text) for op in old if type(op) is TextOp) - sum(
            len(op.text) for op in new if type(op) is TextOp
        )
        return f"What the arms begin with is appended once: {_several(saved, 'character')} fewer."
    if name == "commit_prefixes":
        commits = sum(type(op) is CommitOp for op in new)
        return f"What stands before {_several(commits, 'fork')} is computed before its arms begin."
    if name == "group_generations":
        return _group_words(new)
    return f"{len(old)} operations became {len(new)}."


def _group_words(ops: Sequence[Op]) -> str:
    """``Three Generate finding (line 6) became one group of 3. …`` for the widest group."""
    best: list[GenOp] = []
    run: list[GenOp] = []
    for op in [*ops, None]:
        if type(op) is GenOp and (not run or op.name == run[0].name):
            run.append(op)
            continue
        best = run if len(run) > len(best) else best
        run = [op] if type(op) is GenOp else []
    if len(best) < 2:
        return "Texts of other states moved before generations."
    where = f" (line {op_line(best[0])})" if op_line(best[0]) else ""
    return (
        f"{len(best)} Generate {best[0].name}{where} became one group. One message starts them, and they join the same "
        "batch."
    )


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def params_words(params: SamplingParams) -> str:
    """``max 120, stop "\\n\\n"``: what of the parameters a reader asks first."""
    out = [f"max {params.max_new_tokens}"]
    if params.stop:
        out.append("stop " + ", ".join(msgspec.json.encode(stop).decode() for stop in params.stop))
    shapes = {"JSON schema": params.json_schema, "regex": params.regex, "EBNF grammar": params.ebnf}
    out += [word for word, value in shapes.items() if value is not None]
    if not params.greedy and params.temperature != 1:
        out.append(f"temperature {params.temperature:g}")
    return cut(", ".join(out))


def op_line(op: Op) -> int:
    """The line an operation was recorded at, 0 when it has none."""
    place = getattr(op, "place", None)
    return 0 if place is None else line_of(place)


def cut(text: str) -> str:
    """``text`` on one line, cut to ``MAX_CHARS``."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_CHARS else line[: MAX_CHARS - 1] + "…"
