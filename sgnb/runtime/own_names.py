"""``locals()``, ``vars()`` and ``dir()`` in a compiled body: the user's names, without those that the rewriting added.

Notebook process; ``runtime.hooks`` puts these in the place of the builtins where a compiled body calls them, one frame away
from it. Code that gets at the frame in another way (``eval("dir()")``, ``inspect``) sees the added names too.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping
from typing import Any

from sgnb.lang.frontend.rewrite import ADDED
from sgnb.lang.position import internal

internal(__name__)


def _clean(names: Mapping[str, Any]) -> Any:
    """As it is (a module's), or without what was added."""
    if not any(name.startswith(ADDED) for name in names):
        return names
    return {name: value for name, value in names.items() if not name.startswith(ADDED)}


def _locals() -> Any:
    return _clean(sys._getframe(1).f_locals)


def _vars(*of: Any) -> Any:
    return builtins.vars(*of) if of else _clean(sys._getframe(1).f_locals)


def _dir(*of: Any) -> list[str]:
    return builtins.dir(*of) if of else sorted(_clean(sys._getframe(1).f_locals))


OWN_NAMES: dict[Any, Any] = {builtins.locals: _locals, builtins.vars: _vars, builtins.dir: _dir}
"""Builtin → what is called instead."""
