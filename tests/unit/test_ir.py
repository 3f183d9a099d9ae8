"""The static graph, the passes and the lowering: golden forms."""

from __future__ import annotations

import ast
import textwrap

import pytest

from sgnb.errors import SourcePosition
from sgnb.lang.block import GenOp, InitOp, MarkOp, TextOp
from sgnb.lang.frontend.graph import parse_program
from sgnb.lang.instruction import Decode, Extend, Init, MarkPart, TextPart
from sgnb.lang.ir import Append, Graph, Loop, Read
from sgnb.lang.ir import TextPart as GraphText
from sgnb.lang.lower import lower
from sgnb.lang.passes import PassRecord, optimize
from sgnb.lang.passes.fold_text import fold_text
from sgnb.lang.position import Place, Span
from sgnb.sampling_params import SamplingParams

SOURCE = """
def qa(s, question, n=2):
    t = s
    with s.user():
        t += f"Question: {question}\\n"
    for i in range(n):
        s += assistant("A" + gen("a", max_tokens=4))
        if s["a"] == "stop":
            break
        elif tool(i):
            log(i)
    try:
        with user():
            x = gen("x")
    except ValueError:
        s.user("again")
    finally:
        done()
    return [s[k] for k in ("a", "x")], s.text()
"""

GOLDEN = """
program qa(s, question, n)
   4:4    scope user
   4:9      append s <user>
   5:8      append s 'Question: ' {question} '\\n'
   4:9      append s </user>
   6:13   host-call range(n)
   6:4    loop for i in range(n)
   7:8      append s <assistant> 'A' gen(a, max_tokens=4) </assistant>
   8:11     read s 'a'
   8:8      if s['a'] == 'stop'
            else
  10:13       host-call tool(i)
  10:8        if tool(i)
  11:12         host-call log(i)
  12:4    try
  13:8      scope user
  13:13       append s <user>
  14:12       append s gen(x)
  13:13       append s </user>
          except
  16:8      append s <user> 'again' </user>
          finally
  18:8      host-call done()
  19:11   loop [s[k] for k in ('a', 'x')]
  19:12     read s k
  19:39   read s text()
  19:4    return ([s[k] for k in ('a', 'x')], s.text())
"""


def graph_of(source, state=None):
    tree = ast.parse(textwrap.dedent(source))
    node = tree if state else tree.body[0]
    return parse_program(node, filename="f", name="qa", state=state)


def test_golden_text_form():
    graph = graph_of(SOURCE)
    graph.validate()
    assert graph.text() == GOLDEN[1:]


def test_data_is_plain_and_complete():
    def plain(value):
        if isinstance(value, dict):
            return all(isinstance(k, str) and plain(v) for k, v in value.items())
        return all(map(plain, value)) if isinstance(value, list) else isinstance(value, str | int | None)

    graph = graph_of(SOURCE)
    data = graph.data()
    assert plain(data) and len(data["nodes"]) == len(graph.nodes)
    hole = data["nodes"][0]["body"][1]["parts"][1]
    assert (hole["kind"], hole["label"]) == ("HolePart", "{question}")


def test_cell_graph_follows_s():
    graph = graph_of("s += 'a' + gen('x')\nu = s\nu += gen('y')\nu = 5\nu += 1", state="s")
    assert [part.name for part in graph.gens()] == ["x", "y"]
    assert graph.find(Span(1, 0, 1, 19)) is graph.nodes[0]
    assert graph.find(Span(9, 0, 9, 1)) is None


def test_validate_refuses_broken_graphs():
    inside = Append(Span(9, 0, 9, 5), "s", (GraphText(Span(9, 0, 9, 5), "x"),))
    with pytest.raises(ValueError, match="outside"):
        Graph("g", "f", "s", (), (Loop(Span(1, 0, 2, 0), "for", (inside,)),)).validate()
    with pytest.raises(ValueError, match="appends nothing"):
        Graph("g", "f", "s", (), (Append(Span(1, 0, 1, 1), "s", ()),)).validate()
    assert isinstance(Graph("g", "f", "s", (), (Read(Span(1, 0, 1, 1), "s", "x"),)).text(), str)


def text(sid, value, literal=False):
    return TextOp(sid, value, literal, None)


def test_fold_text_joins_only_neighbours_of_one_kind_and_session():
    ops = [
        text("a", "1"),
        text("a", "2"),
        text("a", "3", True),
        text("b", "4"),
        text("b", "5"),
        text("a", "6"),
    ]
    assert [(op.sid, op.text) for op in fold_text(ops)] == [("a", "12"), ("a", "3"), ("b", "45"), ("a", "6")]
    mark = MarkOp("a", "user", True, None)
    assert fold_text([text("a", "1"), mark, text("a", "2")]) == [text("a", "1"), mark, text("a", "2")]
    assert fold_text([]) == []


def test_passes_record_what_they_did():
    records: list[PassRecord] = []
    optimize([text("a", "1"), text("a", "2")], records=records)
    optimize([text("a", "1")], records=records)
    assert [(r.name, r.before, r.after, r.changed) for r in records if r.name == "fold_text"] == [
        ("fold_text", 2, 1, True),
        ("fold_text", 1, 1, False),
    ]
    records = [r for r in records if r.name == "fold_text"]
    assert "one string" in records[0].rule and "side by side" in records[1].rule
    assert optimize([text("a", "1"), text("a", "2")], passes=()) == [text("a", "1"), text("a", "2")]


def test_lowering():
    place = Place(compile("\n\nx = 1", "<sgl 1>", "exec"), 2)
    params = SamplingParams(max_new_tokens=3)
    block = lower(
        "run1",
        [
            InitOp("a", None),
            text("a", "hi", True),
            MarkOp("a", "user", False, None),
            GenOp("a", "r1", "x", params, place, "1", "b"),
            text("a", "tail"),
            text("b", "other"),
        ],
    )
    assert block.run == "run1"
    assert block.instructions[:2] == (Init("a"), Extend("a", (TextPart("hi", True), MarkPart("user", False))))
    decode = block.instructions[2]
    assert isinstance(decode, Decode) and isinstance(decode.position, SourcePosition)
    assert (decode.rid, decode.params, decode.cell, decode.branch, decode.position.line) == (
        "r1",
        params,
        "1",
        "b",
        3,
    )
    assert block.instructions[3:] == (Extend("a", (TextPart("tail"),)), Extend("b", (TextPart("other"),)))
