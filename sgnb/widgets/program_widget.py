"""The widget behind a program view: its traits and its files. Nothing else.

Notebook process. Imported by ``widgets.program`` at the first display only, since ipywidgets takes 0.2 s to load. No
folding, no words: what the traits hold is made in ``widgets.program``.
"""

from __future__ import annotations

from typing import Any

import traitlets

from sgnb.widgets.bundle import script_of, styles_of
from sgnb.widgets.view_widget import ViewWidget


class ProgramWidget(ViewWidget):
    """``snapshot``: the whole picture as of its ``seq``; ``key``: stable over views of one run."""

    _esm = script_of("program.js")
    _css = styles_of("keys.css", "program.css")
    snapshot = traitlets.Dict().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)

    def __init__(self, key: str, snapshot: dict[str, Any]) -> None:
        super().__init__(key=key, snapshot=snapshot)
