"""A state: text, variables and the engine session behind them.

Notebook process; what users hold and append to. Every operation is recorded in the state's run (``runtime.core``); reads
wait for the one thing they need. A state outlives its run: an append in a later cell is recorded in that cell's run, or
in one of its own. When a state is collected its session is released. No scheduling here.
"""

from __future__ import annotations

import asyncio
import difflib
import weakref
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec

from sgnb.backends.base import Backend, TemplateInfo
from sgnb.errors import Cancelled, LimitError, ProgramError, UnknownVariable
from sgnb.lang import api
from sgnb.lang.block import GenOp, InitOp, MarkOp, TextOp
from sgnb.lang.position import Place, internal, line_of, place_of, position_of, user_frame
from sgnb.runtime.core import MAX_REFUSED, Core, current_core
from sgnb.runtime.events import GenQueued, RoleBegan, RoleEnded, StateOpened, TextAppended
from sgnb.runtime.meta import event_line, gen_seed
from sgnb.runtime.scopes import ScopeText, StateTurn, VarScope, join_pieces
from sgnb.runtime.variables import Failure, Lazy, Slot, resolved
from sgnb.sampling_params import SamplingParams

internal(__name__)

TICK_SECONDS = 0.05
"""Async readers wake this often, so that an interrupt of an awaiting cell is seen (ipykernel does not wake the loop)."""


class State:
    """What a program appends to. Made by the runtime; ``state["x"]`` and ``state.text()`` wait for what they give."""

    def __init__(
        self,
        core: Core,
        branch: str = "",
        path: str = "0",
        *,
        defaults: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        self.core = core
        self.branch = branch
        self.path = path
        self.backend: Backend = core.backend
        self.defaults = dict(core.defaults if defaults is None else defaults)
        self.seed = core.seed if seed is None else seed
        self._template: TemplateInfo | None = None
        self.sid = self.backend.new_sid()
        self.ret: Any = None
        self.failure: Failure | None = None
        self.role: str | None = None
        self._pieces: list[str | Slot] = []
        self._turn_start = 0
        self._turns: list[tuple[str, list[str | Slot]]] = []
        self._values: dict[str, Any] = {}
        self._gens = 0
        self._made: dict[tuple[tuple[str, Any], ...], SamplingParams] = {}
        self._unnamed = 0
        self._refused = 0
        self.number = core.open_state(self)
        core.append_event(StateOpened(self.number, branch))
        core.record(InitOp(self.sid, None))
        self._finalizer = weakref.finalize(self, self.backend.release, (self.sid,))
        self._finalizer.atexit = False  # the engine forgets the sessions of a process that ends

    @property
    def template(self) -> TemplateInfo:
        """The model's chat texts; asked for at the first turn, since it waits for the model."""
        if self._template is None:
            self._template = self.backend.template()
        return self._template

    # ------------------------------------------------------------ appending

    def __iadd__(self, other: object) -> State:
        self.append_expr(api.as_expr(other), place_of(user_frame()))
        return self

    def append_expr(self, expr: api.Expr, place: Place) -> Any:
        """Record an expression; for a single generation its lazy value is returned."""
        parts = api.flatten(expr)
        self._check_roles(parts, place)
        core = self._writable(place)
        if core is None:
            slot = Slot(self.core, self, "", "", place)
            slot.failure, slot.settled, slot.state = self.failure, True, None
            for part in parts:
                if isinstance(part, api.Gen):
                    self._values[part.name or self._auto_name()] = slot
            return Lazy(slot)
        lazy = None
        for part in parts:
            if isinstance(part, api.Text):
                self._add_text(core, part, place)
            elif isinstance(part, api.Gen):
                lazy = Lazy(self._add_gen(core, part, place))
            elif isinstance(part, api.RoleBegin):
                self._begin(core, part.role, place)
            elif isinstance(part, api.RoleEnd):
                self._end(core, place)
        core.recorded(self)
        return lazy

    def _writable(self, place: Place) -> Core | None:
        """The run that records the next operation; None when the state is poisoned and drops it."""
        if self.failure is not None:
            self._refused += 1
            if self._refused > MAX_REFUSED:
                self.failure.throw()
            return None
        if self.core.finished:
            self._move(current_core() or Core(self.backend, title="state", defaults=self.core.defaults))
        return self.core

    def _move(self, core: Core) -> None:
        """Go on in another run: the one of a later cell, or one of the state's own."""
        if core is self.core:
            return
        own = core is not current_core()
        self.core = core
        self.number = core.open_state(self)
        if own:
            core.begin_own(self)
        core.append_event(StateOpened(self.number, self.branch))

    def _add_text(self, core: Core, part: api.Text, place: Place) -> None:
        if part.value:
            self._pieces.append(part.value)
            core.append_event(TextAppended(self.number, part.value, line_of(place)))
            core.record(TextOp(self.sid, part.value, part.literal or self.role is not None, place))

    def _add_gen(self, core: Core, part: api.Gen, place: Place) -> Slot:
        name = part.name or self._auto_name()
        at = part.place if part.place is not None and part.place.code is place.code else place
        params = self._params(part, at)
        slot = Slot(core, self, self.backend.new_rid(), name, at)
        core.add_slot(slot)
        self._pieces.append(slot)
        self._values[name] = slot
        core.append_event(GenQueued(self.number, slot.rid, name, event_line(slot), params.max_new_tokens))
        core.record(GenOp(self.sid, slot.rid, name, params, at, core.cell, self.branch))
        return slot

    def _auto_name(self) -> str:
        name = f"gen_{self._unnamed}"
        self._unnamed += 1
        return name

    def _params(self, part: api.Gen, place: Place) -> SamplingParams:
        ordinal = self._gens
        self._gens += 1
        params = self._made.get(part.params)
        if params is None:
            try:
                params = SamplingParams.make({**self.defaults, **dict(part.params)})
            except LimitError as error:
                error.position = error.position or position_of(place)
                raise
            self._made[part.params] = params
        if params.seed is None and not params.greedy:
            params = msgspec.structs.replace(params, seed=gen_seed(self.seed, self.path, ordinal))
        return params

    # ------------------------------------------------------------ roles

    def _check_roles(self, parts: tuple[api.Expr, ...], place: Place) -> None:
        """Refuse nested and unmatched turns before anything of the expression is recorded."""
        role = self.role
        for part in parts:
            if isinstance(part, api.RoleBegin):
                if role is not None:
                    raise ProgramError(
                        f"A {part.role} turn begins inside a {role} turn; turns cannot be nested.",
                        hint=f"End the {role} turn first.",
                        position=position_of(place),
                    )
                role = part.role
            elif isinstance(part, api.RoleEnd):
                if role != part.role:
                    raise ProgramError(
                        f"{part.role}_end() without {part.role}_begin()"
                        + (f"; a {role} turn is open." if role else "."),
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
        core.append_event(RoleBegan(self.number, role, prefix))
        core.record(MarkOp(self.sid, role, True, place))

    def _end(self, core: Core, place: Place) -> None:
        role, self.role = self.role or "", None
        self._turns.append((role, self._pieces[self._turn_start :]))
        suffix = self.template.roles.get(role, ("", ""))[1]
        if suffix:
            self._pieces.append(suffix)
        core.append_event(RoleEnded(self.number, role, suffix))
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
        return VarScope(self, name)

    # ------------------------------------------------------------ reading

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.set_var(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def get_var(self, name: str) -> Any:
        """The value of a variable, waited for; raises its error, or UnknownVariable (a KeyError)."""
        value = self.find(name)
        if isinstance(value, Slot):
            return value.core.read(value)
        return value.read() if isinstance(value, ScopeText) else value

    def find(self, name: str) -> Any:
        """The value or the Slot bound to ``name``. While the body still runs elsewhere, waits for it to be bound."""
        core = self.core
        if name not in self._values and core.elsewhere() and (core.names is None or name in core.names):
            core.wait(lambda: name in self._values or core.body_done)
        try:
            return self._values[name]
        except KeyError:
            raise self._unknown(name) from None

    def _unknown(self, name: object) -> BaseException:
        if self.failure is not None:
            self.failure.throw()
        near = difflib.get_close_matches(str(name), map(str, self._values), 1)
        known = ", ".join(map(repr, self._values)) or "none yet"
        return UnknownVariable(
            f"The state has no variable {name!r}." + (f" Did you mean {near[0]!r}?" if near else ""),
            hint=f"Bound so far: {known}.",
            position=position_of(place_of(user_frame(2))),
        )

    def set_var(self, name: str, value: Any) -> None:
        """Bind a variable to a value of the notebook's."""
        self._values[name] = resolved(value)

    def text(self) -> str:
        """All text appended so far, the template's included, generations waited for; raises the state's error."""
        self.settle()
        return self.text_so_far()

    def text_so_far(self) -> str:
        """The text that is there now; never waits, never raises."""
        return join_pieces(self._pieces)

    def messages(self) -> list[dict[str, str]]:
        """The finished turns as ``{"role", "content"}``, generations waited for; raises the state's error."""
        self.settle()
        return [{"role": role, "content": join_pieces(pieces)} for role, pieces in self._turns]

    def get_meta_info(self, name: str) -> dict[str, Any]:
        """A generation's meta (SGLang's names), waited for; empty for a variable that was not generated."""
        value = self.find(name)
        if not isinstance(value, Slot):
            return {}
        value.core.read(value)
        return dict(value.meta)

    def sync(self) -> None:
        """Wait until all that was appended is done; raises the state's error."""
        self.settle()

    def error(self) -> BaseException | None:
        """Wait until all that was appended is done; the error if there was one, else None."""
        self._drain()
        if self.failure is not None:
            self.failure.seen = True
            return self.failure.error
        return None

    def settle(self) -> None:
        """Wait for this state's generations; raises its error."""
        self._drain()
        if self.failure is not None and not self.stopped:
            self.failure.throw()

    @property
    def stopped(self) -> bool:
        """True when the user stopped the run: the partial text is readable, nothing can be appended."""
        return self.failure is not None and isinstance(self.failure.error, Cancelled)

    def _drain(self) -> None:
        core = self.core
        if core.elsewhere():
            core.wait(lambda: core.body_done)
        core.flush()
        for slot in self.open_slots():
            slot.core.wait(lambda slot=slot: slot.settled)  # type: ignore[misc]

    def open_slots(self) -> list[Slot]:
        """The generations that are still under way."""
        return [piece for piece in self._pieces if isinstance(piece, Slot) and not piece.settled]

    @property
    def ret_value(self) -> Any:
        """What the program returned."""
        return resolved(self.ret)

    # ------------------------------------------------------------ streaming

    def text_iter(self, name: str | None = None) -> Iterator[str]:
        """The text (or one variable's) piece by piece as it comes; every reader, early or late, sees all of it."""
        if name is not None:
            value = self.find(name)
            yield from self._slot_iter(value) if isinstance(value, Slot) else (str(value),)
            return
        index = 0
        while self._more(index):
            piece = self._pieces[index]
            index += 1
            if isinstance(piece, Slot):
                yield from self._slot_iter(piece)
            else:
                yield piece
        if self.failure is not None and not self.stopped:
            self.failure.throw()

    def _more(self, index: int) -> bool:
        """Wait until piece ``index`` is there; False when none will come."""
        core = self.core
        if len(self._pieces) <= index and core.elsewhere():
            core.wait(lambda: len(self._pieces) > index or core.body_done)
        return len(self._pieces) > index

    def _slot_iter(self, slot: Slot) -> Iterator[str]:
        slot.core.flush()
        shown = 0
        while True:
            slot.core.wait(lambda shown=shown: len(slot.chunks) > shown or slot.settled)  # type: ignore[misc]
            chunks = slot.chunks[shown:]
            shown += len(chunks)
            if chunks:
                yield "".join(chunks)
            elif slot.settled:
                break
        if slot.failure is not None:
            slot.failure.throw()

    async def text_async_iter(
        self, name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """``text_iter`` for ``async for``; with ``return_meta_data`` of one variable gives ``(text, meta)`` pairs."""
        pieces = self.text_iter(name)
        loop = asyncio.get_running_loop()
        while True:
            future = loop.run_in_executor(None, next, pieces, None)
            try:
                while not future.done():
                    await asyncio.wait([future], timeout=TICK_SECONDS)
            except (asyncio.CancelledError, KeyboardInterrupt):
                self.core.stop()  # which frees the executor's thread too
                raise
            piece = future.result()
            if piece is None:
                return
            yield (piece, self._meta_so_far(name)) if return_meta_data else piece

    def _meta_so_far(self, name: str | None) -> Mapping[str, Any]:
        value = self._values.get(name) if name is not None else None
        if not isinstance(value, Slot):
            return {}
        return dict(value.meta) or {"id": value.rid, "completion_tokens": value.tokens}

    # ------------------------------------------------------------ the end

    def close(self) -> None:
        """Release the engine's session now; the text stays readable. Idempotent."""
        self._finalizer()

    def __enter__(self) -> State:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> Any:
        """Comes in a later version."""
        raise ProgramError(
            "fork comes in a later version of sgnb.", position=position_of(place_of(user_frame()))
        )

    def copy(self) -> Any:
        """Comes in a later version."""
        raise ProgramError(
            "copy comes in a later version of sgnb.", position=position_of(place_of(user_frame()))
        )

    def __repr__(self) -> str:
        names = ", ".join(map(repr, self._values))
        return f"<State {self.branch or 'root'}: {len(self.text_so_far())} characters, variables {names or 'none'}>"
