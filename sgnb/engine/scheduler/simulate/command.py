"""``sgnb simulate``: a recording or a workload under several settings, side by side.

Role: the command line of the simulator; ``python -m sgnb.engine simulate`` calls ``main`` in a process of its own, without
torch. Parses, says what it does, prints; ``compare`` plays.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from sgnb.config import OBJECTIVES
from sgnb.engine.scheduler.policy import POLICIES
from sgnb.engine.scheduler.simulate.cost import CostModel, fit
from sgnb.engine.scheduler.simulate.play import differences, replay
from sgnb.engine.scheduler.simulate.reader import Window, from_recording
from sgnb.engine.scheduler.simulate.report import compare, settings, table
from sgnb.engine.scheduler.simulate.script import Script
from sgnb.engine.scheduler.simulate.workloads import WORKLOADS, make_workload
from sgnb.errors import SgnbError
from sgnb.recording import open_recording

_MADE = ("requests", "rate", "seed")
_SWITCH = {"on": True, "off": False, "true": True, "false": False}
_KNOBS: dict[str, tuple[str, str, Any, str]] = {
    "--policy": ("schedule_policy", "A,B", str, f"scheduling policies: {', '.join(POLICIES)}"),
    "--objective": ("objective", "A,B", str, f"named sets of knobs: {', '.join(OBJECTIVES)}"),
    "--chunk": ("chunked_prefill_size", "N,N", int, "new prompt tokens a step; -1: no chunking"),
    "--page": ("page_size", "N,N", int, "tokens a page of KV"),
    "--max-total-tokens": ("max_total_tokens", "N,N", int, "KV slots"),
    "--max-running": ("max_running_requests", "N,N", int, "requests that run at once"),
    "--max-prefill-tokens": ("max_prefill_tokens", "N,N", int, "new input admitted in one step"),
    "--interval": ("prefill_decode_interval", "N,N", int, "most prefill steps in a row while streams run"),
    "--quantum": ("decode_quantum", "N,N", int, "tokens of a time slice; 0: none"),
    "--conservativeness": ("schedule_conservativeness", "X,X", float, "margin for what streams still need"),
    "--mixed": ("enable_mixed_chunk", "on,off", bool, "streams draw in the same step as a prefill"),
    "--cache": ("disable_radix_cache", "on,off", bool, "the radix cache"),
    "--eviction": (
        "radix_eviction_policy",
        "A,B",
        str,
        "what is evicted first: lru, lfu, slru, fifo, priority",
    ),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("recording", nargs="?", type=Path, metavar="RECORDING", help="a file of %%sgl record")
    for flag, (_, metavar, _, text) in _KNOBS.items():
        parser.add_argument(flag, metavar=metavar, help=text)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=A,B", help="any other engine argument"
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=float,
        metavar="S",
        help="count only what is asked from this second of the recording on; what came before warms the cache",
    )
    parser.add_argument(
        "--to", dest="end", type=float, metavar="S", help="leave out what is asked after this second"
    )
    parser.add_argument("--workload", choices=WORKLOADS, help="a synthetic workload instead of a recording")
    parser.add_argument("--requests", type=int, metavar="N", help="of the workload (200)")
    parser.add_argument("--rate", type=float, metavar="R", help="programs a second (4)")
    parser.add_argument("--seed", type=int, metavar="S", help="of the workload (0)")
    parser.add_argument(
        "--cost", metavar="FIXED,PREFILL,DECODE[,CONTEXT]", help="cost of a step in ms, not a fitted one"
    )
    parser.add_argument(
        "--check", action="store_true", help="replay the recording and compare every batch with it"
    )
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def main(argv: list[str]) -> int:
    """Run the command; 0: done, 1: it failed (or ``--check`` found a difference), 2: wrong usage."""
    parser = argparse.ArgumentParser(
        prog="sgnb simulate",
        description="What a recorded or synthetic run would have been like under other settings. Every combination of the"
        " values given is simulated with the scheduler itself, on a virtual clock.",
    )
    add_arguments(parser)
    options = parser.parse_args(argv)
    if (options.recording is None) == (options.workload is None):
        parser.error("give a RECORDING, or --workload, one of them")
    part = options.start is not None or options.end is not None
    if (options.check or part) and options.recording is None:
        parser.error("--check, --from and --to need a RECORDING")
    if options.check and part:
        parser.error("--check compares a whole recording: leave out --from and --to")
    made = {name: getattr(options, name) for name in _MADE}
    if options.recording is not None and any(value is not None for value in made.values()):
        parser.error("--requests, --rate and --seed are of a --workload")
    try:
        return _run(options)
    except SgnbError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read it, such as ``head``, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(options: argparse.Namespace) -> int:
    lists = _lists(options)
    if options.recording is not None:
        window = Window(options.start or 0.0, options.end)
        script = from_recording(open_recording(options.recording), window)
    else:
        made = {name: getattr(options, name) for name in _MADE}
        script = make_workload(options.workload, **{k: v for k, v in made.items() if v is not None})
    if options.check:
        return _check(script)
    given = CostModel.parse(options.cost) if options.cost is not None else None
    cost = given or (fit(script.measured) if script.measured else CostModel())
    wanted = settings(lists, "as recorded" if options.recording is not None else "defaults")
    say = sys.stderr.isatty() and not options.json

    def progress(setting: str) -> None:
        if say:
            print(f"simulating {setting} …", file=sys.stderr)

    found = compare(script, cost, wanted, progress)
    if options.json:
        data = {
            "script": script.name,
            "notes": script.notes,
            "cost": msgspec.to_builtins(cost),
            "settings": msgspec.to_builtins(found),
        }
        print(msgspec.json.format(msgspec.json.encode(data)).decode())
        return 0
    print(f"{script.name}\ncost of a step: {cost}")
    for note in script.notes:
        print(f"note: {note}")
    common = ", ".join(f"{name} {values[0]}" for name, values in lists.items() if len(values) == 1)
    if common:
        print(f"with {common}")
    print(f"\n{table(found)}")
    return 0


def _check(script: Script) -> int:
    played = replay(script)
    # What had not ended goes on when it is played; the recording cannot say how.
    events = played.events[: len(script.steps)] if script.unfinished else played.events
    found = differences(script.steps, events)
    for line in found:
        print(line)
    if not found:
        print(f"{script.name}: all {len(script.steps)} batches are the recorded ones.")
    return 1 if found else 0


def _lists(options: argparse.Namespace) -> dict[str, list[Any]]:
    """Knob → the values to try, typed; SystemExit(2) with a sentence for what is not legal."""
    lists: dict[str, list[Any]] = {}
    for flag, (name, _, kind, _) in _KNOBS.items():
        given = getattr(options, flag.removeprefix("--").replace("-", "_"))
        if given is not None:
            values = [_typed(flag, word, kind) for word in given.split(",")]
            lists[name] = [not value for value in values] if name == "disable_radix_cache" else values
    for item in options.set:
        name, equals, words = item.partition("=")
        if not equals or not words:
            print(f"sgnb simulate: --set takes KNOB=A,B, not {item!r}", file=sys.stderr)
            raise SystemExit(2)
        lists[name.replace("-", "_")] = [_guess(word) for word in words.split(",")]
    return lists


def _typed(flag: str, word: str, kind: Any) -> Any:
    try:
        return _SWITCH[word.lower()] if kind is bool else kind(word)
    except (ValueError, KeyError):
        legal = "on or off" if kind is bool else f"{'whole ' if kind is int else ''}numbers"
        print(f"sgnb simulate: {flag} takes {legal}, separated by commas, not {word!r}", file=sys.stderr)
        raise SystemExit(2) from None


def _guess(word: str) -> Any:
    if word.lower() in _SWITCH:
        return _SWITCH[word.lower()]
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word
