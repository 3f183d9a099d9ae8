"""Was the value of this call assigned to a name, or dropped?

Notebook process; asked by ``lang.api.gen`` inside a ``with user():`` block (design, rule 1). One mechanism for compiled
and eager programs: look at the instruction that follows the call in the caller's code. Only CPython's public ``dis``
names are relied on; the map is made once per code object.
"""

from __future__ import annotations

import dis
from types import CodeType, FrameType

_STORES = ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")
_SKIPPED = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "KW_NAMES")

_cache: dict[int, tuple[CodeType, dict[int, str]]] = {}
_MAX_CACHED = 512


def _following(code: CodeType) -> dict[int, str]:
    """The name of the next real instruction for every offset; a call's offset may be that of its last cache entry."""
    names: dict[int, str] = {}
    at = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname not in _SKIPPED:
            for offset in range(at, instruction.offset, 2):
                names[offset] = instruction.opname
            at = instruction.offset
    return names


def use_of_call(frame: FrameType) -> str:
    """``"assigned"``, ``"dropped"`` or ``"used"``: what becomes of the call ``frame`` is executing."""
    code = frame.f_code
    found = _cache.get(id(code))
    if found is None or found[0] is not code:
        if len(_cache) >= _MAX_CACHED:
            _cache.clear()
        found = _cache[id(code)] = (code, _following(code))
    name = found[1].get(frame.f_lasti, "")
    if name.startswith(_STORES):
        return "assigned"
    return "dropped" if name == "POP_TOP" else "used"
