"""``%sgl`` lines in a cell of Python: squiggles in the words of the run, hover texts, completion of what may stand there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.error import UsageError

import sgnb as sgl
from sgnb import magic_options, panel_edit
from sgnb.config import EngineArgs
from sgnb.controls import Controls
from sgnb.edit_about import about
from sgnb.errors import SgnbError
from sgnb.knobs import LIVE
from sgnb.magics import SglMagics
from sgnb.widgets.engine_view import TITLES


@sgl.function
def qa(s, q):
    s += q + sgl.gen("a")


NAMES: dict[str, Any] = {"qa": qa, "number": 3}
WRONG = [
    ("%sgl view treee", "treee"),
    ("%sgl view", "view"),
    ("%sgl view tree kv", "tree kv"),
    ("%sgl engine start --polcy lpm", "engine"),
    ("%sgl lunch", "lunch"),
    ("%sgl", "%sgl"),
    ("%sgl launch --polcy lpm", "--polcy"),
    ("%sgl launch --schedule-polcy lpm", "--schedule-polcy"),
    ("%sgl launch --schedule-policy lpn", "--schedule-policy lpn"),
    ("%sgl launch --page-size 3 --dtype float32", "--page-size 3"),
    ("%sgl launch --max-total-tokens", "--max-total-tokens"),
    ("%sgl launch 'a", "'a"),
    ("%sgl set schedule_polcy lpm", "schedule_polcy"),
    ("%sgl set page_size 4", "page_size"),
    ("%sgl set schedule_policy lpn", "schedule_policy lpn"),
    ("%sgl set schedule_policy", "schedule_policy"),
    ("%sgl stop now", "now"),
    ("%sgl status all", "all"),
    ("%sgl log many", "many"),
    ("%sgl step 2 3", "2 3"),
    ("%sgl attach", "attach"),
    ("%sgl record start", "start"),
    ("%sgl record begin x", "begin"),
    ("%sgl record stop --seconds 3", "--seconds 3"),
    ("%sgl record start x --second 3", "--second 3"),
    ("%sgl explain", "explain"),
    ("%sgl states free", "free"),
    ("  %sgl view treee", "treee"),
]
DOUBTFUL = [
    ("%sgl explain number", "number"),
    ("%sgl explain qb", "qb"),
    ("%sgl view graph number", "number"),
    ("%sgl states release qa", "qa"),
]
"""Another cell may give the name."""
RIGHT = """
%sgl launch
%sgl launch tiny.gguf --name main --max-total-tokens 4096 # a comment
%sgl help
%sgl --help
%sgl view tree
%sgl view graph
%sgl view graph qa
%sgl explain qa
%sgl set
%sgl set schedule_policy lpm
%sgl set schedule_policy=fcfs
%sgl stop --yes
%sgl log
%sgl log 9
%sgl step
%sgl attach main
%sgl record
%sgl record start f --no-text
%sgl states
%sgl states release
%sgl pause
%sgl?
# %sgl view treee
%sglx
y = 3 %sgl
!%sgl view treee
print('%sgl lunch')
""".strip().split("\n")
RIGHT += ["x = '''\n%sgl view treee\n'''", "%%time\n%sgl view treee"]


class Shell(SimpleNamespace):
    """What a line needs of IPython before it touches an engine."""

    def configurables(self) -> None: ...


def ran(line: str) -> BaseException:
    """What the line raises when it runs, without an engine."""
    magics = SglMagics(None, Controls())
    magics.shell = Shell(user_ns=dict(NAMES))
    with pytest.raises((UsageError, SgnbError)) as raised:
        magics.sgl_line(line.strip().removeprefix("%sgl"))
    return raised.value


def words_of(error: BaseException) -> str:
    if isinstance(error, SgnbError):
        return " ".join(filter(None, [error.message, error.hint]))
    return str(error)


@pytest.mark.parametrize(("severity", "line", "blamed"), [
    *(("error", *one) for one in WRONG), *(("warning", *one) for one in DOUBTFUL),
])  # fmt: skip
def test_a_line_says_what_its_run_says_at_the_words_that_are_wrong(
    severity: str, line: str, blamed: str
) -> None:
    source = f"x = 1\n\n{line}\ny = 2"
    if line.startswith(" "):
        source = f"if True:\n{line}"
    number = source.split("\n").index(line) + 1
    (mark,) = panel_edit.check_source(source, NAMES)
    assert (mark["line"], mark["severity"], mark["message"]) == (number, severity, words_of(ran(line)))
    assert line[mark["col"] : mark["end_col"]] == blamed


@pytest.mark.parametrize("source", RIGHT)
def test_what_is_right_or_no_line_magic_is_silent(source: str) -> None:
    assert panel_edit.check_source(source, NAMES) == []


def test_all_lines_of_a_cell_are_looked_at_also_below_a_late_cell_magic() -> None:
    marks = panel_edit.check_source("\n%sgl view treee\nx = (1,\n  2)\n%sgl lunch\n%%sgl\ns += 'a'", {})
    assert [(mark["line"], mark["severity"]) for mark in marks] == [(2, "error"), (5, "error"), (6, "error")]
    assert marks[2]["message"].startswith("Line magic function `%%sgl` not found.")


def test_any_line_is_read() -> None:
    whole = "%sgl launch 'a\"b' --name é😀 --dtype float32 \\ # x\n%sgl set a=b c=d\n%sgl record start \\"
    for cut in range(len(whole)):
        for text in (whole[:cut], "%sgl " + whole[cut:], whole[cut:] + "\n%sgl view " + whole[:cut]):
            panel_edit.check_source(text, NAMES)
            about(text, text.count("\n") + 1, 7, NAMES)


# ---------------------------------------------------------------- what a word means


def said(marked: str) -> tuple[str, str, str] | None:
    """The word at ``|``, its signature and its text."""
    head = marked[: marked.index("|")].split("\n")
    source = marked.replace("|", "", 1)
    found = about(source, len(head), len(head[-1]), NAMES)
    line = source.split("\n")[len(head) - 1]
    return found and (line[found["col"] : found["end_col"]], found["signature"], found["text"])


@pytest.mark.parametrize(
    ("marked", "word", "signature", "text"),
    [
        ("x = 1\n%s|gl view tree", "%sgl", "%sgl", "%sgl launch | stop"),
        ("%sgl vi|ew tree", "view", "%sgl view tree | kv | timeline | graph NAME", "See the engine, or a program, at work."),
        ("%sgl pa|use", "pause", "%sgl pause", "Take no further step; requests are still received."),
        ("%sgl launch --page-s|ize=4", "--page-size", "--page-size ", "Unless given: 1."),
        ("%sgl launch --schedule-po|licy lpm", "--schedule-policy", "--schedule-policy one of lpm", "order of the queue"),
        ("%sgl set schedule_po|licy lpm", "schedule_policy", "schedule_policy one of lpm", "order of the queue"),
        ("%sgl set schedule_po|licy=lpm", "schedule_policy", "schedule_policy one of lpm", "order of the queue"),
        ("%sgl view time|line", "timeline", "%sgl view timeline", "Batch timeline."),
        ("%sgl record start f --sec|onds 3", "--seconds", "--seconds N", "end the recording"),
    ],
)  # fmt: skip
def test_a_word_is_explained(marked: str, word: str, signature: str, text: str) -> None:
    found = said(marked)
    assert found is not None
    assert found[0] == word and found[1].startswith(signature) and text in found[2]


@pytest.mark.parametrize(
    "marked",
    [
        "%sgl lun|ch",
        "%sgl launch tin|y.gguf",
        "%sgl view tr|eee",
        "x = |1\n%sgl pause",
        "'''\n%sgl pa|use\n'''",
        "%sgl pause  |  ",
    ],
)
def test_of_what_is_not_known_nothing_is_said(marked: str) -> None:
    assert said(marked) is None


def test_every_subcommand_argument_knob_and_view_is_explained() -> None:
    lines = [f"%sgl |{name}" for name in magic_options.COMMANDS] + [f"%sgl view |{kind}" for kind in TITLES]
    lines += [f"%sgl launch |{flag}" for flag in magic_options.engine_flags()]
    lines += [f"%sgl set |{name}" for name in LIVE]
    assert len(lines) > len(EngineArgs.__struct_fields__)
    for line in lines:
        found = said(line)
        assert found is not None and found[1] and found[2], line
