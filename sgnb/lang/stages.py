"""What each pass makes of a program, as nodes and instructions: the data of the graph view.

Notebook process; called by ``runtime.explain`` with recorded blocks, so that loops are unrolled and arms are real. Runs the
passes again, pass by pass, on operations that are never sent. Pure: no widget words but those of a node, no I/O.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from sgnb.lang import ir
from sgnb.lang.block import (
    ChosenOp,
    CommitOp,
    ForkOp,
    GenOp,
    HostOp,
    IdsOp,
    InitOp,
    JoinOp,
    MarkOp,
    Op,
    SelectOp,
    SharedOp,
    TextOp,
)
from sgnb.lang.instruction import Commit, Decode, Extend, Fork, Init, Instruction, Join, MarkPart
from sgnb.lang.lower import lower
from sgnb.lang.passes import REFUSED, Pass
from sgnb.lang.passes.validate import same
from sgnb.lang.stage_words import cut, did_words, op_line, params_words

MAX_NODES = 1500
"""A stage of more nodes is cut; the number of all is told."""
MAX_INSTRUCTIONS = 2000


class Node(NamedTuple):
    """A box of the graph. ``key``: equal in two stages for the same thing; ``text``: its arguments; ``lanes``: sessions."""

    key: str
    op: str
    name: str
    text: str
    line: int
    lanes: tuple[int, ...]
    rids: tuple[str, ...] = ()
    arms: tuple[int, ...] = ()
    chars: int = 0


class _Names:
    """Sessions as small numbers, by the order in which they open; the same over all stages."""

    def __init__(self, blocks: Sequence[Sequence[Op]]) -> None:
        self.number: dict[str, int] = {}
        self.name: list[str] = []
        self.parent: list[int] = []
        for op in (op for ops in blocks for op in ops if type(op) is not HostOp):
            self._meet(op.sid, "s" if not self.number else f"s{len(self.number)}", -1)
            if type(op) is ForkOp:
                above = self.number[op.sid]
                for child in op.children:
                    self._meet(child, "", above)

    def _meet(self, sid: str, name: str, parent: int) -> None:
        if sid in self.number:
            return
        arm = sum(one == parent for one in self.parent) if parent >= 0 else 0
        prefix = (
            self.name[parent].removeprefix("arm ") + "." if parent > 0 and self.parent[parent] >= 0 else ""
        )
        self.number[sid] = len(self.name)
        self.name.append(name or f"arm {prefix}{arm}")
        self.parent.append(parent)


def stages_of(
    blocks: Sequence[Sequence[Op]], passes: Sequence[Pass], graph: ir.Graph | None, *, times: bool = True
) -> dict[str, Any]:
    """``lanes``, ``stages`` (nodes before the first pass and after each), ``instructions`` of each, and ``passes``."""
    names = _Names(blocks)
    fixed = _between(_fixed_nodes(graph), blocks) if blocks else _static_nodes(graph)
    current = [list(ops) for ops in blocks]
    stages = [_nodes(current, names, fixed)]
    lines = [_instructions(current, names)]
    records = [_record("parse", 0.0, stages[0], stages[0], "", "", changed=True, times=False)]
    for step in passes:
        began = time.perf_counter()
        after = [step.run(ops) for ops in current]
        spent = time.perf_counter() - began
        changed = after != current
        legal = not changed or all(same(a, b) for a, b in zip(current, after, strict=True))
        before = current
        current = after if legal else current
        nodes = _nodes(current, names, fixed)
        lines.append(_instructions(current, names))
        idle = step.idle if legal else REFUSED
        did = did_words(step.name, before, current) if changed and legal else ""
        why = f"{step.rule[0].upper()}{step.rule[1:]}. The output is the same, token for token."
        records.append(
            _record(
                step.name,
                spent,
                stages[-1],
                nodes,
                idle,
                did,
                changed=changed and legal,
                times=times,
                why=why,
            )
        )
        stages.append(nodes)
    began = time.perf_counter()
    count = sum(len(lower("", ops).instructions) for ops in current)
    spent = time.perf_counter() - began
    last = _record("lower", spent, stages[-1], stages[-1], "", "", changed=True, times=times)
    last["note"] = f"{len(stages[-1])} nodes to {count} instruction{'' if count == 1 else 's'}"
    last["did"] = "Adjacent text and turn marks of one state became one Extend; nothing else moved."
    last["why"] = "A run of text is tokenised as one string however it was written."
    return {
        "lanes": [[name, parent] for name, parent in zip(names.name, names.parent, strict=True)],
        "stages": [[list(node) for node in nodes[:MAX_NODES]] for nodes in stages],
        "instructions": [some[:MAX_INSTRUCTIONS] for some in lines],
        "passes": [*records, last],
    }


def _record(
    name: str,
    spent: float,
    before: list[Node],
    after: list[Node],
    idle: str,
    did: str,
    *,
    changed: bool,
    times: bool,
    why: str = "",
) -> dict[str, Any]:
    size = f"{len(after)} nodes" if len(before) == len(after) else f"{len(before)} to {len(after)} nodes"
    return {
        "name": name,
        "seconds": round(spent, 6) if times else None,
        "before": len(before),
        "after": len(after),
        "changed": changed,
        "note": size if changed else f"no change: {idle}",
        "did": did,
        "why": why if changed else "",
    }


# ---------------------------------------------------------------- nodes


def _fixed_nodes(graph: ir.Graph | None) -> list[Node]:
    """What stands between the recorded operations: Python code, reads, joins, calls, the end. In source order."""
    out = []
    for node in () if graph is None else graph.walk():
        key = f"{type(node).__name__}@{node.span.line}:{node.span.col}"
        line = node.span.line
        if isinstance(node, ir.Host | ir.HostCall):
            out.append(Node(key, "Host", "", cut(node.source), line, (0,)))
        elif isinstance(node, ir.Join):
            out.append(Node(key, "Join", "", node.mode.strip("\"'") or node.group, line, (0,)))
        elif isinstance(node, ir.Call):
            out.append(Node(key, "Call", node.callee, node.kind, line, (0,)))
        elif isinstance(node, ir.Return):
            out.append(Node(key, "Return", "", cut(node.source), line, (0,)))
    return out


def _between(fixed: Sequence[Node], blocks: Sequence[Sequence[Op]]) -> list[Node]:
    """Those of lines that recorded nothing, one a line: what was recorded is shown as what it was."""
    told = {op_line(op) for ops in blocks for op in ops}
    out: dict[tuple[str, int], Node] = {}
    for node in fixed:
        if node.op != "Host" or node.line not in told:
            out[("Host" if node.op == "Host" else node.key, node.line)] = node
    return list(out.values())


def _static_nodes(graph: ir.Graph | None) -> list[Node]:
    """The whole text as nodes, for a program that could not be recorded: the appends too, all in one column."""
    fixed = {node.key: node for node in _fixed_nodes(graph)}
    out: list[Node] = []
    for node in () if graph is None else graph.walk():
        line = node.span.line
        key = f"{type(node).__name__}@{line}:{node.span.col}"
        if key in fixed:
            out.append(fixed[key])
        elif isinstance(node, ir.Fork):
            out.append(Node(key, "Fork", "", f"{node.group}, {cut(node.size)} arms", line, (0,)))
        elif isinstance(node, ir.Append):
            out += _static_parts(node, key)
    return out


def _static_parts(node: ir.Append, key: str) -> list[Node]:
    out: list[Node] = []
    text = ""
    for number, part in enumerate(node.parts):
        line = part.span.line
        if isinstance(part, ir.GenPart | ir.SelectPart):
            if text:
                out.append(Node(f"{key} {number} text", "Text", "", cut(text), line, (0,)))
                text = ""
            gen = isinstance(part, ir.GenPart)
            args = (
                ", ".join(f"{k}={v}" for k, v in part.params)
                if isinstance(part, ir.GenPart)
                else "|".join(part.options)
            )
            out.append(
                Node(
                    f"{key} {number}",
                    "Generate" if gen else "Select",
                    part.name or "",
                    cut(args),
                    line,
                    (0,),
                )
            )
        elif isinstance(part, ir.BeginPart):
            text += f"{part.role} "
        elif isinstance(part, ir.TextPart):
            text += part.text
        elif isinstance(part, ir.HolePart):
            text += "{" + part.source + "}"
    if text:
        out.append(Node(f"{key} text", "Text", "", cut(text), node.span.line, (0,)))
    return out


def _nodes(blocks: Sequence[Sequence[Op]], names: _Names, fixed: Sequence[Node]) -> list[Node]:
    out: list[Node] = []
    waiting = list(fixed)
    if not blocks:
        return waiting
    for ops in blocks:
        last: dict[int, int] = {}
        """Lane → where its newest node stands, if that is text which may still take a turn mark."""
        for op in ops:
            if type(op) is HostOp:
                continue  # where the block ended, not what it does
            lane = names.number[op.sid]
            line = op_line(op)
            if lane == 0 and type(op) is not InitOp:
                while waiting and 0 < waiting[0].line < line:
                    out.append(waiting.pop(0))
            _take(out, op, lane, line, names, last)
    return _told_apart(out + waiting)


def _told_apart(nodes: list[Node]) -> list[Node]:
    """Each key once: a line that ran again, or what a pass took from a text, has the same place.

    The last one keeps the key: what a pass puts before a node, as a hoisted beginning, is what is new.
    """
    seen: dict[str, int] = {}
    for at in range(len(nodes) - 1, -1, -1):
        key = nodes[at].key
        seen[key] = number = seen.get(key, 0) + 1
        if number > 1:
            nodes[at] = nodes[at]._replace(key=f"{key} #{number}")
    return nodes


def _take(out: list[Node], op: Op, lane: int, line: int, names: _Names, last: dict[int, int]) -> None:
    """Add one operation: as a node of its own, or to the node it belongs to."""
    at = last.get(lane)
    if type(op) is MarkOp:
        word = op.role if op.begin else "end of turn"
        if at is not None:
            out[at] = out[at]._replace(text=cut(f"{out[at].text} {word}".strip()))
        else:
            last[lane] = len(out)
            out.append(Node(f"mark {lane} {op.role} {op.begin} {line}", "Text", "", word, line, (lane,)))
        return
    if type(op) is TextOp:
        if at is not None and not out[at].chars and out[at].op == "Text":  # a turn's beginning, so far
            text = f"{out[at].text} {op.text}"
            key = f"text {lane} {_place(op)}"
            out[at] = out[at]._replace(key=key, text=cut(text), chars=len(op.text))
            return
        last[lane] = len(out)
        out.append(
            Node(f"text {lane} {_place(op)}", "Text", "", cut(op.text), line, (lane,), chars=len(op.text))
        )
        return
    last.pop(lane, None)
    if type(op) is GenOp:
        node = Node(f"gen {op.rid}", "Generate", op.name, params_words(op.params), line, (lane,), (op.rid,))
        above = out[-1] if out else None
        if above is not None and _grouped(above, node):
            rids = (*above.rids, op.rid)
            out[-1] = above._replace(key=f"gen {' '.join(rids)}", lanes=(*above.lanes, lane), rids=rids)
        else:
            out.append(node)
    elif type(op) is SelectOp:
        out.append(
            Node(f"select {op.rid}", "Select", op.name, cut("|".join(op.options)), line, (lane,), (op.rid,))
        )
    elif type(op) is ForkOp:
        arms = tuple(names.number[child] for child in op.children if child in names.number)
        text = f"{len(arms)} arm{'' if len(arms) == 1 else 's'}"
        out.append(Node(f"fork {lane} {_place(op)}", "Fork", "", text, line, (lane,), (), arms))
    elif type(op) is JoinOp:
        text = f"{len(op.branches)} arm{'' if len(op.branches) == 1 else 's'} by KV"
        out.append(Node(f"join {lane} {_place(op)}", "Join", "", text, line, (lane,)))
    elif type(op) is CommitOp:
        out.append(Node(f"commit {lane} {line}", "Commit", "", "compute what is pending now", line, (lane,)))
    elif type(op) is SharedOp:
        text = "takes the result of the first"
        out.append(Node(f"shared {op.rid}", "Share", op.name, text, line, (lane,), (op.rid,)))
    elif type(op) is ChosenOp:
        text = f"{cut(op.text)} (the only choice)"
        out.append(Node(f"chosen {op.rid}", "Text", "", text, line, (lane,), (op.rid,), chars=len(op.text)))
    elif type(op) is IdsOp:
        out.append(Node(f"ids {lane} {_place(op)}", "Tokens", "", f"{len(op.ids)} ids", line, (lane,)))


def _grouped(above: Node, node: Node) -> bool:
    """True where two generations stand side by side with equal parameters, in different sessions."""
    alike = (above.op, above.name, above.text, above.line) == (node.op, node.name, node.text, node.line)
    return alike and node.lanes[0] not in above.lanes


def _place(op: Op) -> str:
    place = getattr(op, "place", None)
    return "" if place is None else f"{place.lasti} {place.code.co_firstlineno}"


# ---------------------------------------------------------------- instructions


def _instructions(blocks: Sequence[Sequence[Op]], names: _Names) -> list[list[str]]:
    """``[op, name, state, arguments]`` of each; a block's end is an empty one."""
    out: list[list[str]] = []
    for number, ops in enumerate(blocks):
        if number:
            out.append(["", "", "", "the next message"])
        for made in lower("", ops).instructions:
            out.append(_instruction(made, names))
    return out


def _instruction(made: Instruction, names: _Names) -> list[str]:
    lane = names.name[names.number[made.sid]]
    if isinstance(made, Extend):
        text = " ".join(
            (p.role if p.begin else "end of turn") if isinstance(p, MarkPart) else p.text for p in made.parts
        )
        return ["Extend", "", lane, cut(text)]
    if isinstance(made, Decode):
        return ["Decode", made.name, lane, params_words(made.params)]
    if isinstance(made, Fork):
        children = [names.name[names.number[child]] for child in made.children]
        return ["Fork", "", lane, cut(", ".join(children))]
    if isinstance(made, Join):
        branches = [names.name[names.number[one]] for one in made.branches if one in names.number]
        return ["Join", "", lane, cut(", ".join(branches))]
    if isinstance(made, Init):
        return ["Init", "", lane, ""]
    if isinstance(made, Commit):
        return ["Commit", "", lane, ""]
    return ["Select", made.name, lane, cut("|".join(made.options))]
