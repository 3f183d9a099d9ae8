"""``import sgnb.compat.sglang`` makes ``import sglang`` mean sgnb, so that SGLang's programs run unchanged.

Notebook process; imported by users. Also ``sglang.lang.ir`` with its regular expressions for types, and
``sglang.lang.choices``. It refuses to hide a real SGLang that is imported already. Nothing of SGLang is in here.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import sgnb
from sgnb.lang import choices

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""


class _Alias(ModuleType):
    """A module whose names are sgnb's."""

    def __getattr__(self, name: str) -> Any:
        return getattr(sgnb, name)

    def __dir__(self) -> list[str]:
        return dir(sgnb)


def install() -> ModuleType:
    """Put the alias into ``sys.modules``; returns it. Raises ImportError when the real SGLang is there already."""
    found = sys.modules.get("sglang")
    if isinstance(found, _Alias):
        return found
    if found is not None:
        raise ImportError("the real sglang is imported already; import sgnb.compat.sglang before it")
    root = _Alias("sglang", sgnb.__doc__)
    root.__path__ = []  # a package, so that `import sglang.lang.ir` looks into sys.modules
    lang, ir, kinds = (
        ModuleType("sglang.lang"),
        ModuleType("sglang.lang.ir"),
        ModuleType("sglang.lang.choices"),
    )
    lang.__path__ = []
    for name in ("REGEX_INT", "REGEX_FLOAT", "REGEX_BOOL", "REGEX_STR"):
        setattr(ir, name, globals()[name])
    for name in ("ChoicesDecision", *choices.METHODS):
        setattr(kinds, name, getattr(choices, name))
    root.lang, lang.ir, lang.choices = lang, ir, kinds  # type: ignore[attr-defined]
    sys.modules |= {"sglang": root, "sglang.lang": lang, "sglang.lang.ir": ir, "sglang.lang.choices": kinds}
    return root


def uninstall() -> None:
    """Take the alias out again."""
    if isinstance(sys.modules.get("sglang"), _Alias):
        for name in ("sglang", "sglang.lang", "sglang.lang.ir", "sglang.lang.choices"):
            sys.modules.pop(name, None)


install()
