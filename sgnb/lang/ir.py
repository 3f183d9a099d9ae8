"""The static graph of a program: what the text says will happen, with every node at its place.

Notebook process; made by ``lang.frontend.graph``, shown and checked, never executed. Frozen nodes, source spans, a stable
text form, and the graph as plain data for the view. Opaque Python is a ``Host`` node: the graph never guesses.
(msgspec structs: the kernel imports this file at ``%load_ext``, and dataclasses take longer to make.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sgnb.lang.position import Span

# ---------------------------------------------------------------- parts of an append


class TextPart(msgspec.Struct, frozen=True):
    """Constant text."""

    span: Span
    text: str


class HolePart(msgspec.Struct, frozen=True):
    """Text known only when it runs; ``source`` is the expression."""

    span: Span
    source: str
    text: bool = False
    """True inside an f-string and for a variable of a state: it can only be text."""


class GenPart(msgspec.Struct, frozen=True):
    """A generation; ``name`` is None when it is not a constant (or has none)."""

    span: Span
    name: str | None
    params: tuple[tuple[str, str], ...] = ()


class SelectPart(msgspec.Struct, frozen=True):
    """A choice; ``options`` is empty when they are not constant."""

    span: Span
    name: str | None
    options: tuple[str, ...] = ()


class BeginPart(msgspec.Struct, frozen=True):
    """Begin of a turn."""

    span: Span
    role: str


class EndPart(msgspec.Struct, frozen=True):
    """End of a turn."""

    span: Span
    role: str


Part = TextPart | HolePart | GenPart | SelectPart | BeginPart | EndPart

# ---------------------------------------------------------------- nodes


class Append(msgspec.Struct, frozen=True):
    """Parts are appended to a state."""

    span: Span
    state: str
    parts: tuple[Part, ...]


class Read(msgspec.Struct, frozen=True):
    """A variable, the text, or the messages of a state are read: the run may wait here."""

    span: Span
    state: str
    what: str


class Fork(msgspec.Struct, frozen=True):
    """Branches are made of a state."""

    span: Span
    state: str
    group: str
    size: str


class Join(msgspec.Struct, frozen=True):
    """Branches end."""

    span: Span
    group: str
    mode: str


class Call(msgspec.Struct, frozen=True):
    """A program or helper that gets the state: ``inline`` on it, or with its ``own``."""

    span: Span
    callee: str
    kind: str


class HostCall(msgspec.Struct, frozen=True):
    """A call of Python code; what was recorded is sent before it."""

    span: Span
    source: str


class Host(msgspec.Struct, frozen=True):
    """A statement that is opaque to the graph; it may do anything Python can."""

    span: Span
    source: str


class Return(msgspec.Struct, frozen=True):
    """The body ends."""

    span: Span
    source: str


class Loop(msgspec.Struct, frozen=True):
    """A ``for``, ``while`` or comprehension."""

    span: Span
    head: str
    body: tuple[Node, ...]


class If(msgspec.Struct, frozen=True):
    """A branch (``match`` cases are nested ones)."""

    span: Span
    test: str
    body: tuple[Node, ...]
    orelse: tuple[Node, ...] = ()


class Try(msgspec.Struct, frozen=True):
    """A ``try``."""

    span: Span
    body: tuple[Node, ...]
    handlers: tuple[Node, ...] = ()
    final: tuple[Node, ...] = ()


class Scope(msgspec.Struct, frozen=True):
    """A ``with``: a role, a ``var_scope``, or foreign."""

    span: Span
    kind: str
    body: tuple[Node, ...]


Node = Append | Read | Fork | Join | Call | HostCall | Host | Return | Loop | If | Try | Scope


class Graph(msgspec.Struct, frozen=True):
    """A program. ``state`` is the name of its state parameter (``s`` in a cell)."""

    name: str
    filename: str
    state: str
    params: tuple[str, ...]
    nodes: tuple[Node, ...]
    span: Span = Span(1, 0, 1, 1)

    def walk(self) -> Iterator[Node]:
        """Every node, outer before inner, in source order."""
        todo = list(reversed(self.nodes))
        while todo:
            node = todo.pop()
            yield node
            todo += reversed(children(node))

    def gens(self) -> list[GenPart]:
        """Every generation the text shows."""
        return [
            part
            for node in self.walk()
            if isinstance(node, Append)
            for part in node.parts
            if isinstance(part, GenPart)
        ]

    def variables(self) -> list[str | None]:
        """The names of all generations and choices the text shows; None for one that is not constant."""
        parts = [part for node in self.walk() if isinstance(node, Append) for part in node.parts]
        return [part.name for part in parts if isinstance(part, GenPart | SelectPart)]

    def find(self, span: Span) -> Node | None:
        """The innermost node that covers ``span``, or None."""
        best: Node | None = None
        for node in self.walk():
            if node.span.covers(span) and (best is None or best.span.covers(node.span)):
                best = node
        return best

    def validate(self) -> None:
        """Check what every graph must keep: spans lie inside their parents, appends have parts. Raises ValueError."""
        for node in self.walk():
            for child in children(node):
                if not node.span.covers(child.span):
                    raise ValueError(f"{child} lies outside of {node}")
            if isinstance(node, Append) and not node.parts:
                raise ValueError(f"{node} appends nothing")

    def text(self) -> str:
        """A stable form for people and golden tests: one line a node, ``line:column`` first."""
        head = f"program {self.name}({', '.join(self.params)})"
        return "\n".join([head, *_lines(self.nodes, 1)]) + "\n"

    def data(self) -> dict[str, Any]:
        """The graph as JSON-like data for the view."""
        return {
            "name": self.name,
            "state": self.state,
            "params": list(self.params),
            "nodes": [_data(node) for node in self.nodes],
        }


def children(node: Node) -> tuple[Node, ...]:
    """The nodes inside a region, in source order."""
    if isinstance(node, Loop | Scope):
        return node.body
    if isinstance(node, If):
        return node.body + node.orelse
    if isinstance(node, Try):
        return node.body + node.handlers + node.final
    return ()


def _lines(nodes: tuple[Node, ...], depth: int) -> Iterator[str]:
    for node in nodes:
        yield f"{node.span.line:>4}:{node.span.col:<3}{'  ' * depth}{describe(node)}"
        if isinstance(node, If):
            yield from _lines(node.body, depth + 1)
            if node.orelse:
                yield f"{'':8}{'  ' * depth}else"
                yield from _lines(node.orelse, depth + 1)
        elif isinstance(node, Try):
            yield from _lines(node.body, depth + 1)
            for title, part in (("except", node.handlers), ("finally", node.final)):
                if part:
                    yield f"{'':8}{'  ' * depth}{title}"
                    yield from _lines(part, depth + 1)
        else:
            yield from _lines(children(node), depth + 1)


def describe(node: Node) -> str:
    """One node in one line."""
    if isinstance(node, Append):
        return f"append {node.state} " + " ".join(_part(part) for part in node.parts)
    if isinstance(node, Read):
        return f"read {node.state} {node.what}"
    if isinstance(node, Fork):
        return f"fork {node.state} → {node.group}[{_short(node.size)}]"
    if isinstance(node, Join):
        return f"join {node.group} {node.mode}"
    if isinstance(node, Call):
        return f"call {node.callee} {node.kind}"
    if isinstance(node, HostCall | Host | Return):
        word = {HostCall: "host-call", Host: "host", Return: "return"}[type(node)]
        return f"{word} {_short(node.source)}".rstrip()
    if isinstance(node, Loop):
        return f"loop {_short(node.head)}"
    if isinstance(node, If):
        return f"if {_short(node.test)}"
    return f"scope {node.kind}" if isinstance(node, Scope) else "try"


def _part(part: Part) -> str:
    if isinstance(part, TextPart):
        return repr(part.text if len(part.text) <= 40 else part.text[:39] + "…")
    if isinstance(part, HolePart):
        return f"{{{_short(part.source)}}}"
    if isinstance(part, GenPart):
        inner = ", ".join([part.name or "_", *(f"{key}={value}" for key, value in part.params)])
        return f"gen({inner})"
    if isinstance(part, SelectPart):
        inner = ", ".join([part.name or "_", *map(repr, part.options)])
        return f"select({_short(inner)})"
    return f"<{part.role}>" if isinstance(part, BeginPart) else f"</{part.role}>"


def _short(source: str) -> str:
    line = " ".join(source.split())
    return line if len(line) <= 60 else line[:59] + "…"


def _data(node: Node) -> dict[str, Any]:
    out: dict[str, Any] = {"kind": type(node).__name__, "span": list(node.span), "label": describe(node)}
    if isinstance(node, Append):
        out["state"] = node.state
        out["parts"] = [
            {"kind": type(part).__name__, "span": list(part.span), "label": _part(part)}
            for part in node.parts
        ]
    if isinstance(node, If):
        out["body"], out["orelse"] = [_data(n) for n in node.body], [_data(n) for n in node.orelse]
    elif isinstance(node, Try):
        out["body"] = [_data(n) for n in node.body]
        out["handlers"], out["final"] = [_data(n) for n in node.handlers], [_data(n) for n in node.final]
    elif inner := children(node):
        out["body"] = [_data(n) for n in inner]
    return out
