"""The text of ``docs/passes.md``, made from the passes themselves; ``test_docs_passes.py`` holds the file to it.

    PYTHONPATH=. python tests/unit/passes_page.py > docs/passes.md

Each pass has a program here whose first block it changes. A registered pass without one is an error.
"""

from __future__ import annotations

import inspect
import io
import sys
import textwrap
from collections.abc import Callable, Sequence

import sgnb as sgl
from sgnb.lang.block import HostOp, Op
from sgnb.lang.passes import PASSES, Pass

NOWHERE = io.StringIO()
LONG = "The same long beginning of all arms, worth computing once and not once for each of the arms. "


def fold_text(s):
    s += "Question: "
    s += "why?"
    s += "\nAnswer:" + sgl.gen("answer")


def prune_choices(s):
    s += "Mood: " + sgl.select("mood", ["fine"]) + sgl.gen("why")


def merge_forks(s):
    s += "Go on."
    one, two = s.fork(1)[0], s.fork(1)[0]
    one += " One:" + sgl.gen("x")
    two += " Two:" + sgl.gen("x")
    return one["x"] + two["x"]


def share_generations(s):
    arms = s.fork(2)
    arms += "Same question, same answer:" + sgl.gen("x", temperature=0)
    arms.join()


def hoist_prefix(s):
    arms = s.fork(2)
    for i, arm in enumerate(arms):
        arm += LONG + f"Tip {i}:" + sgl.gen("tip")
    arms.join()


def commit_prefixes(s):
    s += LONG * 20
    print("meanwhile, code of the program's own", file=NOWHERE)
    s += "In a word:" + sgl.gen("word")


def group_generations(s):
    arms = s.fork(2)
    for i, arm in enumerate(arms):
        arm += f"Tip {i}:" + sgl.gen("tip", max_tokens=8)
    arms.join()


PROGRAMS: dict[str, Callable[..., object]] = {
    made.__name__: made
    for made in (
        fold_text, prune_choices, merge_forks, share_generations, hoist_prefix, commit_prefixes, group_generations,
    )
}  # fmt: skip
"""Pass → a program that it changes."""

HEAD = """# Passes

A program's operations are recorded until it has to wait; what was recorded is one block. Before a block leaves, these
passes rewrite it, in this order. A pass is legal only under its rule; every result is checked to mean the same, and is
thrown away if it does not. Nothing moves out of a block. `fn.run(passes=())` and `%%sgl -O0` switch them off, and
`fn.run(passes=["fold_text", "hoist_prefix"])` runs those that are named, in that order;
`sgnb.explain(fn)` and `%sgl explain NAME` show what each did to a program, or why nothing.

Below, each pass alone on the block of a small program: before, and after. `s0` is the program's state, `s1` and up are
branches.
"""


def around(step: Pass, program: Callable[..., object]) -> tuple[list[str], list[str]]:
    """The program's first block before and after one pass, one line an operation."""
    seen: list[tuple[list[Op], list[Op]]] = []

    def watch(ops: Sequence[Op]) -> list[Op]:
        after = step.run(ops)
        seen.append((list(ops), list(after)))
        return after

    sgl.function(program).trace(passes=[Pass(step.name, watch, step.rule, step.idle)])
    names: dict[str, str] = {}
    rids: dict[str, str] = {}
    before, after = seen[0]
    return [line(op, names, rids) for op in before], [line(op, names, rids) for op in after]


def line(op: Op, names: dict[str, str], rids: dict[str, str]) -> str:
    """One operation for people: its state, what it is, and its values."""

    def name(sid: str) -> str:
        return names.setdefault(sid, f"s{len(names)}")

    if type(op) is HostOp:
        return "host code"
    words = [f"{name(op.sid)} {type(op).__name__.removesuffix('Op').lower()}"]
    for key, value in zip(op._fields[1:], op[1:], strict=True):
        if key == "children":
            words += map(name, value)
        elif key in ("rid", "of", "source", "like") and isinstance(value, str) and value:
            words.append(rids.setdefault(value, f"#{len(rids) + 1}"))
        elif key == "text":
            words.append(repr(value if len(value) <= 60 else value[:40] + "…"))
        elif key == "name" or key == "options":
            words.append(str(value) if key == "name" else repr(list(value)))
        elif key == "role":
            words.append(value)
    return " ".join(words)


def page() -> str:
    """The whole page. Raises KeyError for a pass that has no program."""
    out = [HEAD]
    for number, step in enumerate(PASSES, 1):
        program = PROGRAMS[step.name]
        source = textwrap.dedent("\n".join(inspect.getsource(program).splitlines()[1:]))
        before, after = around(step, program)
        out += [f"## {number}. `{step.name}`", "", inspect.getdoc(sys.modules[step.run.__module__]) or "", ""]
        out += [f"The record of the pass says: *{step.rule}*. When it did nothing: *{step.idle}*.", ""]
        out += ["```python", source.strip(), "```", "", "```text", *before, "", "→", "", *after, "```", ""]
    return "\n".join(out)


if __name__ == "__main__":
    sys.stdout.write(page())
