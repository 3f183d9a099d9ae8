"""``%load_ext sgnb`` and its undoing: magics, completion, Shift+Tab, the panel's comm.

Notebook process, called by IPython through ``sgnb``. Loading must stay below half a second and never import torch;
ipywidgets waits for the first display. Nothing but putting in place and taking away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from sgnb import completion, inspection, knob_words, magic_options, panel, views
from sgnb.cell import cell_number
from sgnb.config import DEFAULT_MODEL
from sgnb.controls import Controls
from sgnb.knobs import KNOBS, LIVE
from sgnb.magics import SglMagics
from sgnb.runtime.core import Notebook
from sgnb.runtime.function import SglFunction
from sgnb.runtime.state import State
from sgnb.widgets import output
from sgnb.widgets.publisher import get_publisher

_loaded: list[Callable[[], None]] = []


def load(shell: Any) -> None:
    """Register the magics, completion and the panel. A second call changes nothing."""
    if _loaded:
        return
    controls = Controls()
    shell.register_magics(SglMagics(shell, controls))
    options = [flag for action in magic_options.cell_parser()._actions for flag in action.option_strings]
    commands: dict[str, list[str]] = {name: [] for name in magic_options.COMMANDS} | {
        "launch": [DEFAULT_MODEL, *magic_options.engine_flags()],
        "stop": ["--yes"],
        "set": [*LIVE],
        "states": ["release"],
        "record": ["start", "stop", "--no-text", "--seconds"],
        "view": [*views.KINDS],
    }
    namespace = shell.user_ns

    def named(kind: type | tuple[type, ...]) -> completion.Answers:
        return lambda: [
            name for name, one in list(namespace.items()) if isinstance(one, kind) and name[0] != "_"
        ]

    def engines() -> list[str]:
        return [record.name for record in controls.records()]

    values: dict[tuple[str, str], Sequence[str] | completion.Answers] = {
        **{("set", name): knob_words.value_words(KNOBS[name]) for name in LIVE},
        **{("launch", flag): knob_words.value_words(KNOBS[name]) for flag, name in _with_values().items()},
        ("view", "graph"): named((SglFunction, State)),
        ("explain", "explain"): named(SglFunction),
        ("attach", "attach"): engines,
        ("states", "release"): named(State),
    }
    answers: dict[str, completion.Answers] = {
        **dict.fromkeys(["-o", "--out", "--from"], named(State)),
        "--engine": engines,
    }
    matcher = completion.make_matcher(commands, options, values, answers, namespace)
    completer = getattr(shell, "Completer", None)
    if completer is not None:
        completer.custom_matchers.append(matcher)
    uninspect = inspection.install(shell)
    unnamed, Notebook.cell_number = Notebook.cell_number, lambda: _running_cell(shell)
    hub = panel.PanelHub(controls)
    hub.start(shell)

    def unload_all() -> None:
        hub.stop()
        uninspect()
        Notebook.cell_number = unnamed
        if completer is not None and matcher in completer.custom_matchers:
            completer.custom_matchers.remove(matcher)
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop("sgl", None)
        shell.magics_manager.registry.pop("SglMagics", None)
        output.retire_all()
        get_publisher().stop()

    _loaded.append(unload_all)


def _running_cell(shell: Any) -> str:
    """The number of the cell that runs, for programs it runs; "" on other threads, which may outlive their cell."""
    return cell_number(shell) if threading.current_thread() is threading.main_thread() else ""


def _with_values() -> dict[str, str]:
    """Options of launch whose values can be listed."""
    flags = magic_options.engine_flags()
    return {
        flag: name
        for flag, name in flags.items()
        if name in KNOBS and not magic_options.is_switch(name) and knob_words.value_words(KNOBS[name])
    }


def unload(shell: Any) -> None:
    """Remove hooks, comms, matchers and threads; the engine stays and is found again."""
    while _loaded:
        _loaded.pop()()
