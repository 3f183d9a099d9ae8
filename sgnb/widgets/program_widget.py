"""The anywidget behind a program view: its traits and its files. Nothing else.

Notebook process. Imported by ``widgets.program`` at the first display only, since ipywidgets takes 0.2 s to load. No
folding, no words: what the traits hold is made in ``widgets.program``.
"""

from __future__ import annotations

from typing import Any

import anywidget
import ipywidgets  # type: ignore[import-untyped]
import traitlets

from sgnb.widgets.bundle import STATIC, script_of
from sgnb.widgets.comms import answer_on_any_shell, run_no_hooks

_layout: list[ipywidgets.Layout] = []


class ProgramWidget(anywidget.AnyWidget):
    """``snapshot``: the whole picture as of its ``seq``; ``key``: stable over views of one run."""

    _esm = script_of("program.js")
    _css = (STATIC / "program.css").read_text(encoding="utf-8")
    snapshot = traitlets.Dict().tag(sync=True)
    key = traitlets.Unicode().tag(sync=True)

    def __init__(self, key: str, snapshot: dict[str, Any]) -> None:
        if (
            not _layout or _layout[0].comm is None
        ):  # one for all: a layout a cell would be a second comm a cell
            _layout[:] = [ipywidgets.Layout()]
        super().__init__(key=key, snapshot=snapshot, layout=_layout[0])

    def open(self) -> None:
        """Open the comm; the page may answer on a subshell."""
        super().open()
        run_no_hooks(self.comm)
        answer_on_any_shell(self.comm)

    def _send(self, msg: Any, buffers: Any = None) -> None:
        super()._send(msg, buffers)
        answer_on_any_shell(self.comm)

    def __repr__(self) -> str:
        """Stable: no address, no state."""
        return "ProgramWidget()"

    def close(self) -> None:
        """Close the comm; one that is already gone is fine."""
        try:
            super().close()
        except Exception:  # the front end or the comm manager closed it before
            self.comm = None
