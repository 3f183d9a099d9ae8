"""SGLang's module-level calls about the engine: ``flush_cache`` and ``get_server_info``.

Notebook process; used by users. They ask the backend that is given, else the default one.
"""

from __future__ import annotations

from typing import Any

from sgnb.backends.base import Backend, require_backend
from sgnb.errors import ProgramError
from sgnb.lang.position import here, internal
from sgnb.runtime.dispatcher import instruction_queue_length

internal(__name__)


def flush_cache(backend: Backend | None = None) -> dict[str, Any]:
    """Free what the engine's prefix cache holds unlocked; what it freed. Raises NoEngine, EngineError."""
    return _ask(require_backend(backend, here), "flush_cache")


def get_server_info(backend: Backend | None = None) -> dict[str, Any]:
    """The engine's numbers, with the model's name as ``model`` and the notebook's own ``instruction_queue_length``.

    Raises NoEngine, EngineError.
    """
    found = require_backend(backend, here)
    own = {"model": found.model_name, "instruction_queue_length": instruction_queue_length()}
    return {**own, **_ask(found, "stats")}


def _ask(backend: Backend, what: str) -> dict[str, Any]:
    call = getattr(backend, what, None)
    if call is None:
        raise ProgramError(
            f"The backend {backend.model_name!r} has no {what}().",
            hint="Only an engine has: sgnb.launch().",
            position=here(),
        )
    answer: dict[str, Any] = call()
    return answer
