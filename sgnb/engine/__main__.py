"""``python -m sgnb.engine``: the engine's processes, and the commands that only the engine's side may carry out.

Started by ``backends.process`` (tokenizer process), by the tokenizer process (``--role scheduler``), by the scheduler
process for ``runner_driver="process"`` (``--role runner``) and by the CLI (``models``, ``doctor``, ``simulate``). Parses
arguments and nothing else; the token is never among them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sgnb.engine.parent import tie_life_to_parent
from sgnb.liveness import COMMAND_OF


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m sgnb.engine", description=__doc__)
    parser.add_argument("--role", choices=("tokenizer", "scheduler", "runner"), default="tokenizer")
    parser.add_argument("--folder", type=Path, help="the run folder, prepared by the notebook's side")
    parser.add_argument("--parent", type=int, default=0, help="pid of the process that started this one")
    parser.add_argument("--fd", type=int, help="the socket to the scheduler (only --role runner)")
    commands = parser.add_subparsers(dest="command")
    models = commands.add_parser("models", help="list models, or pull one into the cache")
    actions = models.add_subparsers(dest="action")
    actions.add_parser("list", help="what is known and what is in the cache")
    pull = actions.add_parser("pull", help="fetch a known model into the cache")
    pull.add_argument("name", nargs="?", help="a known model; default: the embedded one")
    commands.add_parser("simulate", help="a recording or workload under other settings; has its own --help")
    commands.add_parser("doctor", help="what works here, with the fix for each thing that does not")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one role or command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == [COMMAND_OF] and len(words) > 2:  # a command, which ends with who asked for it
        if not tie_life_to_parent(int(words[1]), at_once=True):
            return 1
        words = words[2:]
    if words[:1] == ["simulate"]:
        from sgnb.engine.scheduler.simulate.command import main as simulate  # noqa: PLC0415

        return simulate(words[1:])
    parser = build_parser()
    options = parser.parse_args(words)
    # Each role imports its own half only: the tokenizer process must not pay for torch, nor wait for it.
    if options.command == "models":
        from sgnb.engine.commands import models  # noqa: PLC0415

        return models(options.action or "list", getattr(options, "name", None))
    if options.command == "doctor":
        from sgnb.engine.doctor import doctor  # noqa: PLC0415

        return doctor()
    if options.role == "runner":
        if options.fd is None:
            parser.error("--fd is missing: this role is started by the scheduler process")
        if not tie_life_to_parent(options.parent, at_once=True):
            return 1
        from sgnb.engine.model_executor import runner_process  # noqa: PLC0415

        return runner_process.run(options.fd, options.folder)
    if options.folder is None:
        parser.error("--folder is missing: engines are started by sgnb.launch() or %sgl launch")
    scheduler = options.role == "scheduler"
    alone = not tie_life_to_parent(options.parent, at_once=scheduler)
    if scheduler:
        if alone:
            return 1
        from sgnb.engine import scheduler_process  # noqa: PLC0415

        return scheduler_process.run(options.folder, options.parent)
    from sgnb.engine import tokenizer_process  # noqa: PLC0415

    return tokenizer_process.run(options.folder, orphaned=alone)


if __name__ == "__main__":
    sys.exit(main())
