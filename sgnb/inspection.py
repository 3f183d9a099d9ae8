"""Shift+Tab on a name of the language: IPython looks for it among the notebook's names, where ``gen`` and ``s`` are not.

Notebook process; put in place by ``extension``. IPython asks by name alone, so the language answers only for what nothing
in the notebook is called. Nothing is evaluated.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from sgnb import panel_edit


def install(shell: Any) -> Callable[[], None]:
    """Let ``shell`` answer; returns what takes it away again."""
    original = shell.object_inspect_mime

    def inspect(oname: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return original(oname, *args, **kwargs)  # type: ignore[no-any-return]
        except KeyError:
            said = meaning(oname)
            if said is None:
                raise
            text = f"Signature: {said['signature']}\nDocstring:\n{said['text']}"
            return {"text/plain": text, "text/html": f"<pre>{html.escape(text)}</pre>"}  # kernels expect both

    shell.object_inspect_mime = inspect

    def remove() -> None:
        if shell.__dict__.get("object_inspect_mime") is inspect:
            del shell.object_inspect_mime

    return remove


def meaning(name: str) -> dict[str, str] | None:
    """What a name, or a method behind one, means in a ``%%sgl`` cell."""
    owner, _, last = name.rpartition(".")
    language = panel_edit.language()
    if owner:
        found = (
            language["names"] if owner in ("sgl", "sgnb") else language["methods"] if "." not in owner else {}
        )
    else:
        found = language["names"]
    said: dict[str, str] | None = found.get(last)
    return said
