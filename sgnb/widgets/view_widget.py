"""What every widget of ours is: an anywidget whose comm anyone may answer, and the two models that all of a kernel share.

Notebook process. The base of ``engine_widget`` and ``program_widget``; imported at the first display only, since ipywidgets
takes 0.2 s to load. Shared are the layout (one a view would be a second comm a view) and the core, the script that packaged
views import from: it is sent once a kernel, before the first view that names it. No view's traits here.
"""

from __future__ import annotations

from typing import Any

import anywidget
import ipywidgets  # type: ignore[import-untyped]
import traitlets

from sgnb.widgets.bundle import packed_core
from sgnb.widgets.comms import answer_on_any_shell, run_no_hooks


class CoreModel(ipywidgets.Widget):
    """``packed``: the core, as ``static/loader.js`` unpacks it. It has no view and hears nothing from a page."""

    packed = traitlets.Unicode().tag(sync=True)

    def __repr__(self) -> str:
        """Stable, and without the text."""
        return "CoreModel()"


_shared: dict[str, ipywidgets.Widget] = {}


def _one(name: str, make: Any, **traits: Any) -> Any:
    """The kernel's one model of a kind; a new one when someone closed it."""
    if name not in _shared or _shared[name].comm is None:
        _shared[name] = make(**traits)
    return _shared[name]


class ViewWidget(anywidget.AnyWidget):
    """``core``: the model with the core; None where the view's script is whole."""

    _esm = "export default { render() {} };"
    core = traitlets.Instance(ipywidgets.Widget, allow_none=True).tag(
        sync=True, **ipywidgets.widget_serialization
    )

    def __init__(self, **traits: Any) -> None:
        packed = packed_core()
        core = _one("core", CoreModel, packed=packed) if packed else None
        super().__init__(core=core, layout=_one("layout", ipywidgets.Layout), **traits)

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
        return f"{type(self).__name__}()"

    def close(self) -> None:
        """Close the comm; one that is already gone is fine."""
        try:
            super().close()
        except Exception:  # the front end or the comm manager closed it before
            self.comm = None
