"""sgnb: LLM programs in notebooks, on an engine you can see think.

    import sgnb as sgl

Public names only; imports neither torch nor transformers nor xgrammar.
"""

from sgnb.backends.base import Backend, get_default_backend, set_default_backend
from sgnb.backends.engine import Engine, attach, engines, launch
from sgnb.errors import (
    AuthFailed,
    Cancelled,
    EngineDied,
    EngineError,
    EngineStartError,
    LimitError,
    ModelFileError,
    NoEngine,
    ProgramError,
    RequestError,
    SgnbError,
)
from sgnb.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    system,
    system_begin,
    system_end,
    text,
    user,
    user_begin,
    user_end,
)
from sgnb.runtime.function import SglFunction, function
from sgnb.runtime.run import Run
from sgnb.runtime.state import State

__version__ = "0.1.0"

__all__ = [
    "AuthFailed",
    "Backend",
    "Cancelled",
    "Engine",
    "EngineDied",
    "EngineError",
    "EngineStartError",
    "LimitError",
    "ModelFileError",
    "NoEngine",
    "ProgramError",
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
    "function",
    "gen",
    "get_default_backend",
    "launch",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "text",
    "user",
    "user_begin",
    "user_end",
]


def load_ipython_extension(ipython: object) -> None:
    """``%load_ext sgnb``: register the magics, the completer and the panel's comm target."""
    from sgnb import magics  # noqa: PLC0415  IPython is needed only inside a notebook

    magics.load(ipython)


def unload_ipython_extension(ipython: object) -> None:
    """``%unload_ext sgnb``: remove hooks, comms and threads; the engine stays and is found again."""
    from sgnb import magics  # noqa: PLC0415

    magics.unload(ipython)


def _jupyter_labextension_paths() -> list[dict[str, str]]:
    """Where JupyterLab finds the side panel."""
    return [{"src": "labextension", "dest": "sgnb"}]
