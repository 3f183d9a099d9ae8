"""Which names in a cell's text surely mean the language's own: ``gen``, ``sgl.gen``, a ``g`` that was imported from sgnb.

Notebook process; asked by the checks of a cell's text. A name that the cell or the notebook binds to anything else is not
ours, and one that may be either is left alone. Nothing is imported or evaluated here.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from types import ModuleType
from typing import Any

from sgnb.lang.api import DSL_NAMES

PACKAGE = "sgnb"
_DISPLAYS = (ast.Dict, ast.DictComp, ast.List, ast.ListComp, ast.Set, ast.SetComp, ast.Constant)


def bindings(tree: ast.AST) -> Counter[str]:
    """How often each name is bound anywhere in the tree: by functions, classes, parameters and imports too."""
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.arg):
            found[node.arg] += 1
        elif isinstance(node, ast.alias):
            found[(node.asname or node.name).split(".")[0]] += 1
        elif isinstance(node, ast.MatchMapping):
            found[node.rest or ""] += 1
        elif isinstance(
            node,
            ast.FunctionDef
            | ast.AsyncFunctionDef
            | ast.ClassDef
            | ast.ExceptHandler
            | ast.MatchAs
            | ast.MatchStar,
        ):
            found[node.name or ""] += 1
    return found


class OwnNames:
    """The names of one cell. ``names``: the notebook's, with their values where they are known."""

    def __init__(self, tree: ast.Module, names: Collection[str]) -> None:
        self.bound = bindings(tree)
        """How often the cell binds each name, in whatever scope."""
        self._values: Mapping[str, Any] = names if isinstance(names, Mapping) else {}
        self._imports: dict[str, tuple[str, str]] = {}
        self._plain: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and isinstance(node.value, _DISPLAYS):
                self._plain |= {one.id for one in node.targets if isinstance(one, ast.Name)}
            elif isinstance(node, ast.Import):
                for one in node.names:
                    if one.asname or "." not in one.name:
                        self._imports[one.asname or one.name] = (one.name, "")
            elif isinstance(node, ast.ImportFrom) and not node.level:
                for one in node.names:
                    self._imports[one.asname or one.name] = (node.module or "", one.name)

    def called(self, node: ast.expr) -> str:
        """Which function of the language an expression surely is; an empty string when it is none or may be another."""
        if isinstance(node, ast.Attribute):
            module = self.module(node.value)
            own = DSL_NAMES.get(node.attr)
            return node.attr if own is not None and module and _of(module, node.attr) is own else ""
        if not isinstance(node, ast.Name):
            return ""
        if not self.bound[node.id]:
            if node.id in DSL_NAMES:  # in a cell these win over the notebook's
                return node.id
            return _named(self._values.get(node.id))
        home, name = self._imports.get(node.id, ("", ""))
        if self.bound[node.id] > 1 or home.split(".")[0] != PACKAGE:
            return ""
        return name if name in DSL_NAMES else ""

    def module(self, node: ast.expr) -> ModuleType | None:
        """The module that has the language, if a name surely means it: ``sgl`` after ``import sgnb as sgl``."""
        if not isinstance(node, ast.Name):
            return None
        value = self._values.get(node.id)
        if self.bound[node.id]:
            home = self._imports.get(node.id)
            value = sys.modules.get(PACKAGE) if self.bound[node.id] == 1 and home == (PACKAGE, "") else None
        if isinstance(value, ModuleType) and (
            value.__name__ == PACKAGE or vars(value).get("gen") is DSL_NAMES["gen"]
        ):
            return value
        return None

    def plain(self, name: str) -> bool:
        """Whether the cell binds a name to nothing but one list, dict or set that it writes out."""
        return name in self._plain and self.bound[name] == 1

    def builtin(self, name: str) -> bool:
        """Whether a builtin's name still means it."""
        return not self.bound[name] and name not in self._values


def _of(module: ModuleType, name: str) -> Any:
    """An attribute without the import that asking for it may cause."""
    return vars(module).get(name, DSL_NAMES[name] if module.__name__ == PACKAGE else None)


def _named(value: object) -> str:
    return next((name for name, own in DSL_NAMES.items() if own is value), "")
