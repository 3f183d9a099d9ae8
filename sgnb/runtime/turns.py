"""Turns of a state: roles that begin and end, and the blocks that open them.

Notebook process; the base class of ``runtime.state.State``. The template's texts are kept here for people and messages; the
engine puts its own. Nothing is sent here.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from sgnb.backends.base import Backend, TemplateInfo
from sgnb.errors import ProgramError, article
from sgnb.lang import api
from sgnb.lang.block import MarkOp
from sgnb.lang.position import Place, internal, place_of, position_of, user_frame
from sgnb.runtime.core import Core
from sgnb.runtime.events import RoleBegan, RoleEnded, TextAppended
from sgnb.runtime.reading import check_variable_name
from sgnb.runtime.scopes import StateTurn, VarScope
from sgnb.runtime.streaming import Streaming
from sgnb.runtime.variables import Slot

internal(__name__)

Step = api.Text | api.Tokens | api.RoleBegin | api.RoleEnd | Slot
"""What was appended, as a join or a file repeats it."""


class Turns(Streaming):
    """Roles."""

    sid: str
    backend: Backend
    role: str | None
    sent: bool
    _template: TemplateInfo | None
    _turn_start: int
    _history: list[Step]

    @abstractmethod
    def append_expr(self, expr: api.Expr, place: Place) -> Any:
        """See State."""

    @property
    def template(self) -> TemplateInfo:
        """The model's chat texts; asked for at the first turn, since it waits for the model."""
        if self._template is None:
            self._template = self.backend.template()
        return self._template

    # ------------------------------------------------------------ roles

    def _check_roles(self, parts: tuple[api.Expr, ...], place: Place) -> None:
        """Refuse nested and unmatched turns before anything of the expression is recorded."""
        role = self.role
        for part in parts:
            if isinstance(part, api.RoleBegin):
                if role is not None:
                    raise ProgramError(
                        f"{article(part.role).capitalize()} {part.role} turn begins inside {article(role)} {role} turn;"
                        " turns cannot be nested.",
                        hint=f"End the {role} turn first.",
                        position=position_of(place),
                    )
                role = part.role
            elif isinstance(part, api.RoleEnd):
                if role != part.role:
                    raise ProgramError(
                        f"{part.role}_end() without {part.role}_begin()"
                        + (f"; {article(role)} {role} turn is open." if role else "."),
                        hint=f"Write `with s.{part.role}():`, which ends its turn by itself.",
                        position=position_of(place),
                    )
                role = None

    def open_role(self, role: str, place: Place) -> None:
        """Begin a turn."""
        self.append_expr(api.RoleBegin(role), place)

    def close_role(self, role: str, place: Place) -> None:
        """End the turn; does nothing when it is already closed (an error went before)."""
        if self.role == role:
            self.append_expr(api.RoleEnd(role), place)

    def _begin(self, core: Core, role: str, place: Place) -> None:
        if not self._turns and role != "system" and self.template.default_system:
            self._default_system(core)
        prefix = self.template.roles.get(role, ("", ""))[0]
        self.role = role
        if prefix:
            self._pieces.append(prefix)
        self._turn_start = len(self._pieces)
        self._history.append(api.RoleBegin(role))
        core.append_event(RoleBegan(self.number, role, prefix))
        if self.sent:
            core.record(MarkOp(self.sid, role, True, place))

    def _end(self, core: Core, place: Place) -> None:
        role, self.role = self.role or "", None
        self._turns.append((role, self._pieces[self._turn_start :]))
        suffix = self.template.roles.get(role, ("", ""))[1]
        if suffix:
            self._pieces.append(suffix)
        self._history.append(api.RoleEnd(role))
        core.append_event(RoleEnded(self.number, role, suffix))
        if self.sent:
            core.record(MarkOp(self.sid, role, False, place))

    def _default_system(self, core: Core) -> None:
        """The template's own system turn: the engine puts its text, so it is kept here and not sent."""
        whole = self.template.default_system
        prefix, suffix = self.template.roles.get("system", ("", ""))
        self._pieces.append(whole)
        fits = len(whole) >= len(prefix) + len(suffix) and whole.startswith(prefix) and whole.endswith(suffix)
        content = whole[len(prefix) : len(whole) - len(suffix)] if fits else whole
        self._turns.append(("system", [content]))
        core.append_event(RoleBegan(self.number, "system", prefix if fits else ""))
        core.append_event(TextAppended(self.number, content))
        core.append_event(RoleEnded(self.number, "system", suffix if fits else ""))

    def system(self, expr: object = None) -> StateTurn:
        """A system turn: ``with s.system():``, or at once with text."""
        return self._turn("system", expr)

    def user(self, expr: object = None) -> StateTurn:
        """A user turn: ``with s.user():``, or at once with text."""
        return self._turn("user", expr)

    def assistant(self, expr: object = None) -> StateTurn:
        """An assistant turn: ``with s.assistant():``, or at once with an expression."""
        return self._turn("assistant", expr)

    def _turn(self, role: str, expr: object) -> StateTurn:
        if expr is not None:
            self.append_expr(api.Turn(role, expr), place_of(user_frame(2)))
        return StateTurn(self, role, done=expr is not None)

    def var_scope(self, name: str) -> VarScope:
        """``with s.var_scope("x"):`` binds the text appended inside to ``x``."""
        check_variable_name(name)
        return VarScope(self, name)
