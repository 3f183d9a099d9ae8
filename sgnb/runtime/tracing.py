"""``fn.trace(...)``: what a program records, without an engine and without passes.

Notebook process; used by ``SglFunction.trace``. Generations answer with their own name in braces, choices with their first
option, missing arguments are their names in braces. So a branch on a generated value takes whatever way those texts lead
to; the trace says which generations the way depends on by showing where the run had to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sgnb.backends.base import Backend, Delta, Done, Sink, Started, TemplateInfo, TokenInfo
from sgnb.lang.instruction import (
    Block,
    Decode,
    Extend,
    Fork,
    IdsPart,
    Init,
    Instruction,
    Join,
    Select,
    TextPart,
)
from sgnb.lang.position import internal
from sgnb.runtime.state import State

internal(__name__)

TEMPLATE = TemplateInfo(roles=dict.fromkeys(("system", "user", "assistant"), ("", "")))


class Trace:
    """What was recorded: ``blocks`` in order (a new one begins where the program had to wait) and the ``state``."""

    def __init__(self, state: State, blocks: Sequence[Block]) -> None:
        self.state = state
        self.blocks = list(blocks)

    def lines(self) -> Iterator[str]:
        """One line an instruction; sessions are named s0, s1 … in the order of their opening."""
        names: dict[str, str] = {}

        def name(sid: str) -> str:
            return names.setdefault(sid, f"s{len(names)}")

        for number, block in enumerate(self.blocks):
            if number:
                yield "-- wait"
            for op in block.instructions:
                yield _line(op, name)

    def print_graph_dfs(self) -> None:
        """Print it (SGLang's name)."""
        print(self)

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _line(op: Instruction, name: Callable[[str], str]) -> str:
    if isinstance(op, Extend):
        parts = [
            repr(p.text) if isinstance(p, TextPart | IdsPart) else f"<{'' if p.begin else '/'}{p.role}>"
            for p in op.parts
        ]
        return f"{name(op.sid)} text {' '.join(parts)}"
    if isinstance(op, Decode):
        return f"{name(op.sid)} gen {op.name}"
    if isinstance(op, Select):
        return f"{name(op.sid)} select {op.name} of {len(op.options)}"
    if isinstance(op, Join):
        return f"{name(op.sid)} join {' '.join(map(name, op.branches))}"
    if isinstance(op, Fork):
        return f"{name(op.sid)} fork {' '.join(map(name, op.children))}"
    return f"{name(op.sid)} {'open' if isinstance(op, Init) else 'commit'}"


class Tracer(Backend):
    """Keeps blocks and answers at once, on the caller's thread."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self._count = 0

    def new_sid(self) -> str:
        """``t.1`` …"""
        self._count += 1
        return f"t.{self._count}"

    new_rid = new_sid

    def template(self) -> TemplateInfo:
        """Turns without texts: only their marks are shown."""
        return TEMPLATE

    @property
    def model_name(self) -> str:
        """No model."""
        return "trace"

    def submit(self, block: Block, sink: Sink) -> None:
        """Keep it and answer each generation with its name."""
        self.blocks.append(block)
        for op in block.instructions:
            if isinstance(op, Decode):
                text = f"{{{op.name}}}"
                sink([Started(op.rid), Delta(op.rid, text, (TokenInfo(0),))])
                sink([Done(op.rid, {"type": "eos", "matched": None}, {"completion_tokens": 1})])
            elif isinstance(op, Select):
                sink([Done(op.rid, {"type": "stop", "matched": None}, {"choice": 0, "scores": []})])

    def abort(self, rids: Sequence[str] = (), sids: Sequence[str] = ()) -> None:
        """Nothing is ever under way."""

    def release(self, sids: Sequence[str]) -> None:
        """There are no sessions."""


def placeholders(names: Sequence[str], args: tuple[Any, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Texts for the arguments that were not given."""
    return {name: f"{{{name}}}" for name in names[len(args) :] if name not in given}
