"""sgnb: LLM programs in notebooks, on an engine you can see think.

    import sgnb as sgl

Public names only, each imported at its first use: the engine's processes pass here too on their way to ``sgnb.engine``,
and must neither pay for the notebook's side nor hold it. Imports neither torch nor transformers nor xgrammar.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sgnb.backends.base import Backend, get_default_backend, set_default_backend
    from sgnb.backends.engine import Engine, attach, engines, launch
    from sgnb.errors import (
        AuthFailed,
        Cancelled,
        ConstraintError,
        EngineDied,
        EngineError,
        EngineStartError,
        LimitError,
        ModelFileError,
        NoEngine,
        ParseError,
        ProgramError,
        RequestError,
        SgnbError,
    )
    from sgnb.lang.api import (
        assistant,
        assistant_begin,
        assistant_end,
        gen,
        gen_int,
        gen_string,
        greedy_token_selection,
        image,
        select,
        separate_reasoning,
        system,
        system_begin,
        system_end,
        text,
        token_length_normalized,
        unconditional_likelihood_normalized,
        user,
        user_begin,
        user_end,
        video,
    )
    from sgnb.recording import Recording, open_recording
    from sgnb.runtime.explain import explain, explain_data
    from sgnb.runtime.fork import Group
    from sgnb.runtime.function import SglFunction, function
    from sgnb.runtime.run import Run
    from sgnb.runtime.saved import load_state, release_states, states
    from sgnb.runtime.server import flush_cache, get_server_info
    from sgnb.runtime.state import State

__version__ = "0.1.0"

__all__ = [
    "AuthFailed",
    "Backend",
    "Cancelled",
    "ConstraintError",
    "Engine",
    "EngineDied",
    "EngineError",
    "EngineStartError",
    "Group",
    "LimitError",
    "ModelFileError",
    "NoEngine",
    "ParseError",
    "ProgramError",
    "Recording",
    "RecordingError",
    "RequestError",
    "Run",
    "SglFunction",
    "SgnbError",
    "State",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "attach",
    "engines",
    "explain",
    "explain_data",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_default_backend",
    "get_server_info",
    "graph",
    "greedy_token_selection",
    "image",
    "kv_map",
    "launch",
    "load_state",
    "open_recording",
    "radix_tree",
    "release_states",
    "replay",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "states",
    "system",
    "system_begin",
    "system_end",
    "text",
    "timeline",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

_HOMES = {
    "sgnb.backends.base": (
        "Backend",
        "get_default_backend",
        "set_default_backend",
    ),
    "sgnb.backends.engine": (
        "Engine",
        "attach",
        "engines",
        "launch",
    ),
    "sgnb.errors": (
        "AuthFailed",
        "Cancelled",
        "EngineDied",
        "EngineError",
        "EngineStartError",
        "ConstraintError",
        "LimitError",
        "ModelFileError",
        "ParseError",
        "NoEngine",
        "ProgramError",
        "RecordingError",
        "RequestError",
        "SgnbError",
    ),
    "sgnb.lang.api": (
        "assistant",
        "assistant_begin",
        "assistant_end",
        "gen",
        "gen_int",
        "gen_string",
        "greedy_token_selection",
        "image",
        "select",
        "separate_reasoning",
        "system",
        "system_begin",
        "system_end",
        "text",
        "token_length_normalized",
        "unconditional_likelihood_normalized",
        "user",
        "user_begin",
        "user_end",
        "video",
    ),
    "sgnb.recording": (
        "Recording",
        "open_recording",
    ),
    "sgnb.runtime.explain": (
        "explain",
        "explain_data",
    ),
    "sgnb.runtime.fork": ("Group",),
    "sgnb.runtime.function": (
        "SglFunction",
        "function",
    ),
    "sgnb.run_source": ("program",),
    "sgnb.runtime.run": ("Run",),
    "sgnb.runtime.saved": (
        "load_state",
        "release_states",
        "states",
    ),
    "sgnb.runtime.server": (
        "flush_cache",
        "get_server_info",
    ),
    "sgnb.runtime.state": ("State",),
    "sgnb.views": (
        "graph",
        "kv_map",
        "radix_tree",
        "replay",
        "timeline",
    ),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name from its home at its first use."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(_unknown(name))
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def _unknown(name: str) -> str:
    import difflib  # noqa: PLC0415  only a misspelt name pays for it

    near = [] if name.startswith("_") else difflib.get_close_matches(name, __all__, 1)
    return f"module {__name__!r} has no attribute {name!r}" + (
        f". Did you mean: {near[0]!r}?" if near else ""
    )


def __dir__() -> list[str]:
    """The public names, imported or not: what Tab offers after ``sgl.``."""
    return sorted(__all__)


def load_ipython_extension(ipython: object) -> None:
    """``%load_ext sgnb``: register the magics, the completer and the panel's comm target."""
    from sgnb import extension  # noqa: PLC0415  IPython is needed only inside a notebook

    extension.load(ipython)


def unload_ipython_extension(ipython: object) -> None:
    """``%unload_ext sgnb``: remove hooks, comms and threads; the engine stays and is found again."""
    from sgnb import extension  # noqa: PLC0415

    extension.unload(ipython)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where JupyterLab finds the side panel."""
    return [{"src": "labextension", "dest": "sgnb"}]
