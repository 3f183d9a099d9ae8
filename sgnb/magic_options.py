"""The magic lines of ``%sgl`` and ``%%sgl``: how they are cut, parsed and refused.

Notebook process; called by ``magics``. A line is cut as by a shell, a ``# comment`` after a blank is dropped, nothing is
expanded (``{x}`` and ``$x`` stay what they are). A mistake is a one-line UsageError. No engine is touched here.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shlex
from collections.abc import Sequence
from typing import Any, NoReturn

from IPython.core.error import UsageError

from sgnb.cell import CellOptions
from sgnb.config import EngineArgs
from sgnb.errors import LimitError
from sgnb.knobs import find_knob
from sgnb.lang.arguments import MAX_PRIORITY
from sgnb.sampling_params import SamplingParams

CELL_USAGE = (
    "%%sgl [-o NAME] [--background] [--debug] [--engine NAME] [--max-tokens N] …, then a program; see %%sgl?"
)
LINE_USAGE = (
    "%sgl launch | stop | restart | status | log | stacks | attach | engines | set | pause | step | resume | flush"
    " | defragment | states | record | explain | view; see %sgl?"
)

COMMANDS: dict[str, str] = {
    "launch": "[MODEL] [--name NAME] [--dtype float32] …: start an engine, wait until it is ready",
    "stop": "[--yes]: end the engine and free its memory",
    "restart": "end the engine and start it again with the same arguments",
    "status": "state, model and numbers of the engine",
    "log": "[N]: the last N lines of the engine's log (20)",
    "stacks": "what every thread of the engine does now, also of one that is stuck",
    "attach": "NAME: use an engine that another notebook started",
    "engines": "all engines of this user",
    "set": "[KEY VALUE | KEY=VALUE …]: change knobs of the running engine; alone: what they are now",
    "pause": "take no further step; requests are still received",
    "step": "[N]: let a paused engine take N steps (1)",
    "resume": "go on after pause",
    "flush": "empty the cache of what nobody uses",
    "defragment": "move what is in the KV pool together, so that free slots are one run",
    "states": "[release [NAME …]]: states that hold a session; release ends those, or all",
    "record": "start FILE [--no-text] [--seconds N] | stop [FILE]: write what the engine does to a file",
    "explain": "how a program runs: its graph, its blocks, what each pass did",
    "view": "tree | kv | timeline | graph NAME: see the engine, or a program, at work",
}
SAMPLING = {
    "--max-tokens": ("max_new_tokens", int),
    "--temperature": ("temperature", float),
    "--top-p": ("top_p", float),
    "--top-k": ("top_k", int),
    "--min-p": ("min_p", float),
    "--seed": ("seed", int),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}


class LineParser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line and name the magic."""

    def error(self, message: str) -> NoReturn:
        """One line, no traceback; of an option that is not known, the nearest that is."""
        unknown = re.search(r"unrecognized arguments: (-\S+)", message)
        legal = [flag for action in self._actions for flag in action.option_strings]
        near = difflib.get_close_matches(unknown[1].partition("=")[0], legal, 1, 0.7) if unknown else []
        raise UsageError(f"{self.prog}: {message}" + (f". Did you mean {near[0]}?" if near else ""))


def split_line(line: str) -> list[str]:
    """Cut like a shell; a ``#`` at a word's start outside quotes begins a comment."""
    try:
        return shlex.split(_without_comment(line), posix=True)
    except ValueError as error:
        raise UsageError(f"sgl: {error} in: {line.strip()}") from None


def _without_comment(line: str) -> str:
    quote, escaped = "", False
    for index, char in enumerate(line):
        if escaped:
            escaped = False
        elif char == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (index == 0 or line[index - 1].isspace()):
            return line[:index]
    return line


def cell_parser() -> LineParser:
    """Options of ``%%sgl``."""
    parser = LineParser(prog="%%sgl", add_help=False, allow_abbrev=False)
    parser.add_argument("-o", "--out", metavar="NAME", help="bind the state of the program to this variable")
    parser.add_argument("--background", action="store_true", help="return at once; the cell's view goes on")
    parser.add_argument(
        "--debug", action="store_true", help="show each instruction with state, ids, cached, ms"
    )
    parser.add_argument("--engine", metavar="NAME", help="run on this engine, not on the current one")
    parser.add_argument(
        "--from", dest="start", metavar="NAME", help="go on with the state of an earlier cell"
    )
    parser.add_argument(
        "-O0", dest="unoptimised", action="store_true", help="send every operation as it was recorded"
    )
    parser.add_argument(
        "--logprobs", type=int, metavar="N", help="keep each token's probability and its N likeliest rivals"
    )
    parser.add_argument(
        "--priority", type=int, default=0, metavar="N", help="higher goes first, and may suspend lower ones"
    )
    for flag, (name, kind) in SAMPLING.items():
        parser.add_argument(
            flag, dest=name, type=kind, metavar="N", help=f"default {name} of the cell's gens"
        )
    parser.add_argument(
        "--stop",
        action="append",
        metavar="TEXT",
        help=r"default stop text, \n is a line end; may be repeated",
    )
    return parser


def parse_cell(line: str) -> CellOptions:
    """Parse the line of ``%%sgl``; UsageError on a mistake, bad values of sampling defaults included."""
    given = vars(cell_parser().parse_args(split_line(line)))
    out = given.pop("out")
    if out is not None and not out.isidentifier():
        raise UsageError(f"%%sgl: -o takes a variable name, not {out!r}")
    if given["start"] and (given["debug"] or given["engine"]):
        raise UsageError("%%sgl: --from goes on where the state is; it takes neither --debug nor --engine")
    if abs(given["priority"]) > MAX_PRIORITY:
        raise UsageError(f"%%sgl: --priority takes -{MAX_PRIORITY}..{MAX_PRIORITY}, not {given['priority']}")
    defaults: dict[str, Any] = {name: given[name] for name, _ in SAMPLING.values() if given[name] is not None}
    if given["logprobs"] is not None:
        defaults |= {"return_logprob": True, "top_logprobs_num": given["logprobs"]}
    if given["stop"]:
        defaults["stop"] = [unescape(text) for text in given["stop"]]
    try:
        SamplingParams.make(defaults)
    except LimitError as error:
        said = error.message
        for flag, (name, _) in SAMPLING.items():
            said = re.sub(rf"\b{name}\b", flag, said)
        raise UsageError(f"%%sgl: {said}") from None
    return CellOptions(
        out=out,
        background=given["background"],
        debug=given["debug"],
        engine=given["engine"],
        start=given["start"],
        unoptimised=given["unoptimised"],
        priority=given["priority"],
        defaults=defaults,
    )


def unescape(text: str) -> str:
    r"""Turn ``\n \t \r \\`` into what they name; other backslashes stay."""
    out, index = [], 0
    while index < len(text):
        char = text[index]
        if char == "\\" and index + 1 < len(text) and text[index + 1] in _ESCAPES:
            out.append(_ESCAPES[text[index + 1]])
            index += 2
        else:
            out.append(char)
            index += 1
    return "".join(out)


def launch_parser() -> LineParser:
    """Options of ``%sgl launch``: every field of EngineArgs as a flag."""
    parser = LineParser(prog="%sgl launch", add_help=False, allow_abbrev=False)
    parser.add_argument("model", nargs="?", metavar="MODEL")
    for flag, name in engine_flags().items():
        if is_switch(name):
            parser.add_argument(flag, dest=name, action="store_const", const="true")
        else:
            parser.add_argument(flag, dest=name, metavar="VALUE")
    return parser


def engine_flags() -> dict[str, str]:
    """``--max-total-tokens`` → ``max_total_tokens``, for every engine argument but the model."""
    return {f"--{name.replace('_', '-')}": name for name in EngineArgs.__struct_fields__ if name != "model"}


def is_switch(name: str) -> bool:
    """Whether an engine argument is given without a value."""
    defaults = dict(zip(EngineArgs.__struct_fields__, EngineArgs.__struct_defaults__, strict=True))
    return isinstance(defaults[name], bool)


def record_parser() -> LineParser:
    """Options of ``%sgl record``."""
    parser = LineParser(prog="%sgl record", add_help=False, allow_abbrev=False)
    parser.add_argument("action", nargs="?", choices=("start", "stop"))
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument(
        "--no-text", dest="text", action="store_false", help="leave texts out: lengths and figures alone"
    )
    parser.add_argument(
        "--seconds", type=float, metavar="N", help="end the recording by itself after so long"
    )
    return parser


def parse_record(given: Sequence[str]) -> argparse.Namespace:
    """``action`` (start, stop, or None: what is recorded now), ``file``, ``text``, ``seconds``; UsageError on a mistake."""
    options = record_parser().parse_args(list(given))
    if options.action == "start" and options.file is None:
        raise UsageError("%sgl record start takes a file name, for example: %sgl record start run.sgnb")
    if options.action != "start" and (not options.text or options.seconds is not None):
        raise UsageError("%sgl record: --no-text and --seconds belong to %sgl record start FILE")
    return options


def parse_launch(words: Sequence[str]) -> tuple[str | None, dict[str, Any]]:
    """The model and the engine arguments, with their types; UsageError on a mistake."""
    given = {
        name: value
        for name, value in vars(launch_parser().parse_args(list(words))).items()
        if value is not None
    }
    try:
        typed = {name: find_knob(name).parse(text) for name, text in given.items()}
        EngineArgs.make(**typed)
    except LimitError as error:
        raise UsageError(f"%sgl launch: {error.message}") from None
    return typed.pop("model", None), typed
