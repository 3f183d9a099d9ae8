"""The ``sgnb`` command: ``models``, ``doctor``, ``simulate``, ``export``, ``engines``.

Runs in the user's shell. Thin: only ``python -m sgnb.engine`` may import torch and the scheduler, so models, doctor and
simulate are started there by name, with this terminal as their own. No logic of models, checks or simulations here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

import sgnb
from sgnb.backends.folders import list_records
from sgnb.errors import SgnbError
from sgnb.liveness import engine_command
from sgnb.recording import open_recording


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="sgnb", description="LLM programs in notebooks.")
    parser.add_argument("--version", action="version", version=f"sgnb {sgnb.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    models = commands.add_parser("models", help="list the models that can be launched by name, or fetch one")
    actions = models.add_subparsers(dest="action")
    actions.add_parser("list", help="what is known and what is in the cache")
    pull = actions.add_parser("pull", help="fetch a model into the cache")
    pull.add_argument("name", nargs="?", help="default: the embedded model")
    commands.add_parser("doctor", help="check what works here; each thing that does not comes with its fix")
    commands.add_parser(
        "simulate",
        add_help=False,
        help="a recording or a synthetic workload under other settings: sgnb simulate --help",
    )
    export = commands.add_parser("export", help="write a recording as JSON for Perfetto or chrome://tracing")
    export.add_argument("recording", metavar="FILE", help="a recording: %%sgl record start FILE makes one")
    export.add_argument("out", metavar="OUT", help="the JSON file to write")
    commands.add_parser("engines", help="list the engines that run now")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code (0: done, 1: it failed, 2: wrong usage, 130: interrupted)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["simulate"]:  # its options are the simulator's own
        return _start(words)
    options = build_parser().parse_args(words)
    if options.command == "engines":
        return _engines()
    if options.command == "export":
        return _export(options.recording, options.out)
    command = [options.command]
    if options.command == "models":
        command += [options.action or "list", *([options.name] if getattr(options, "name", None) else [])]
    return _start(command)


def _start(command: Sequence[str]) -> int:
    """A command of the engine's side, in this terminal."""
    child = subprocess.Popen(engine_command(command))
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.wait()  # it got the interrupt too, and leaves nothing half-written
        return 130


def _export(recording: str, out: str) -> int:
    try:
        opened = open_recording(recording)
        path = opened.to_perfetto(out)
    except SgnbError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Wrote {path}. Open it at ui.perfetto.dev or in chrome://tracing.")
    for missing in opened.gaps():
        print(f"Note: {missing}.")
    return 0


def _engines() -> int:
    try:
        records = list_records()
    except SgnbError as error:
        print(error, file=sys.stderr)
        return 1
    for record in records:
        print(
            f"{record.name:<20} {record.model:<32} {record.state:<9} pid {record.pid}, owner {record.owner_pid}"
        )
    if not records:
        print("No engine is running. sgnb.launch() in Python or %sgl launch in a notebook starts one.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
