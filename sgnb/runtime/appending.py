"""What an append becomes: operations of the run, pieces of the state's text, variables, seeds.

Notebook process; the base class of ``runtime.state.State``, which decides whether an append may be recorded and in
which run. Parameters and seeds are settled here, at record time, so that no pass can change them. Nothing is sent here.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import msgspec

from sgnb.errors import LimitError, ProgramError
from sgnb.lang import api
from sgnb.lang.arguments import as_gen_says
from sgnb.lang.block import ForkOp, GenOp, IdsOp, SelectOp, TextOp
from sgnb.lang.position import Place, internal, line_of, position_of
from sgnb.runtime.collect import SessionHandle
from sgnb.runtime.core import Core
from sgnb.runtime.events import GenQueued, TextAppended
from sgnb.runtime.meta import event_line, gen_seed, shape_words
from sgnb.runtime.parsing import Parsed
from sgnb.runtime.reasoning import SUFFIX, ReasoningPart
from sgnb.runtime.turns import Turns
from sgnb.runtime.variables import Lazy, Samples, Slot
from sgnb.sampling_params import SamplingParams

internal(__name__)


def check_unicode(parts: Iterable[api.Expr], place: Place) -> None:
    """Refuse a text that no encoding has, where it stands: half of a pair of surrogates, as a wrong decoding leaves them."""
    for part in parts:
        if isinstance(part, api.Text) and not part.value.isascii():
            try:
                part.value.encode()
            except UnicodeEncodeError as error:
                raise ProgramError(
                    f"The text holds half a character, {part.value[error.start]!r} at {error.start}: it has no encoding.",
                    hint='Write text.encode("utf-8", "replace").decode(), or read it with errors="replace".',
                    position=position_of(place),
                ) from None


class Appending(Turns):
    """Text, token ids, generations and choices."""

    defaults: dict[str, Any]
    samples: int
    seed: int
    path: str
    rewound: int
    _handle: SessionHandle
    _gens: int
    _made: dict[tuple[tuple[str, Any], ...], SamplingParams]
    _unnamed: int

    @abstractmethod
    def _slot(
        self, core: Core, name: str, place: Place, sid: str = "", options: tuple[str, ...] = ()
    ) -> Slot:
        """A generation of this state; ``sid`` is the session of a further sample."""

    def _add_text(self, core: Core, part: api.Text, place: Place) -> None:
        if part.value:
            self._pieces.append(part.value)
            self._history.append(part)
            core.append_event(TextAppended(self.number, part.value, line_of(place)))
            if self.sent:
                core.record(TextOp(self.sid, part.value, part.literal or self.role is not None, place))

    def _add_tokens(self, core: Core, part: api.Tokens, place: Place) -> None:
        if part.value:
            self._pieces.append(part.value)
            core.append_event(TextAppended(self.number, part.value, line_of(place)))
        self._history.append(part)
        if self.sent:
            core.record(IdsOp(self.sid, part.ids, part.value, place))

    def _add_gen(self, core: Core, part: api.Gen, place: Place) -> Lazy:
        name = part.name or self._auto_name()
        at = part.place if part.place is not None and part.place.code is place.code else place
        ordinal, params = self._params(part, at)
        if part.reasoning is not None and (part.n or self.samples) == 1:
            params = msgspec.structs.replace(params, reasoning=part.reasoning)
        sids = [self.backend.new_sid() for _ in range((part.n or self.samples) - 1)]
        if sids:
            core.record(ForkOp(self.sid, tuple(sids), at))
        slots = [
            self._record_gen(core, name, self._seeded(params, ordinal, sample), at, sid, part.priority)
            for sample, sid in enumerate(["", *sids])
        ]
        self._pieces.append(slots[0])
        self._history.append(slots[0])
        if part.reasoning is not None and not sids:
            slots[0].family = part.reasoning
            self._values[name] = ReasoningPart(slots[0], part.reasoning, thought=False)
            self._values[name + SUFFIX] = ReasoningPart(slots[0], part.reasoning, thought=True)
        elif part.parse and part.shape is not None:
            self._values[name] = parsed = Parsed(slots, part.shape)
            return Lazy(slots[0], parsed)
        else:
            self._values[name] = Samples(slots) if sids else slots[0]
        return Lazy(slots[0])

    def _record_gen(
        self, core: Core, name: str, params: SamplingParams, at: Place, sid: str, priority: int | None
    ) -> Slot:
        """One request; ``sid`` is the session of a further sample."""
        slot = self._slot(core, name, at, sid)
        core.add_slot(slot)
        self._handle.add(slot)
        shape = shape_words(params)
        core.append_event(
            GenQueued(self.number, slot.rid, name, event_line(slot), params.max_new_tokens, shape=shape)
        )
        branch = core.branch_label(self.branch)
        core.record(GenOp(slot.sid, slot.rid, name, params, at, core.cell, branch, priority))
        return slot

    def _add_select(self, core: Core, part: api.Select, place: Place) -> Slot:
        name = part.name or self._auto_name()
        at = part.place if part.place is not None and part.place.code is place.code else place
        slot = self._slot(core, name, at, options=part.options)
        core.add_slot(slot)
        self._handle.add(slot)
        self._pieces.append(slot)
        self._history.append(slot)
        self._values[name] = slot
        core.append_event(
            GenQueued(self.number, slot.rid, name, event_line(slot), 0, part.options, method=part.method)
        )
        where = (at, core.cell, core.branch_label(self.branch), part.priority)
        core.record(SelectOp(self.sid, slot.rid, name, part.options, part.method, *where))
        return slot

    def _auto_name(self) -> str:
        name = f"gen_{self._unnamed}"
        self._unnamed += 1
        return name

    def _params(self, part: api.Gen, place: Place) -> tuple[int, SamplingParams]:
        """The generation's ordinal in this state, and its parameters, which may lack a seed."""
        ordinal = self._gens
        self._gens += 1
        stops = part.shape.stop if part.shape is not None else ()
        key = (*part.params, ("more stops", stops)) if stops else part.params
        params = self._made.get(key)
        if params is None:
            try:
                params = SamplingParams.make({**self.defaults, **dict(part.params)})
                if stops:
                    params = msgspec.structs.replace(params, stop=(*params.stop, *stops)).check()
            except LimitError as error:
                raise as_gen_says(error, position_of(place)) from None
            self._made[key] = params
        return ordinal, params

    def _seeded(self, params: SamplingParams, ordinal: int, sample: int) -> SamplingParams:
        """With the seed that is due to one sample. A seed of the program's own counts on from sample to sample."""
        if params.greedy:
            return params
        if params.seed is not None:
            return (
                params if not sample else msgspec.structs.replace(params, seed=(params.seed + sample) % 2**63)
            )
        path = f"{self.path}~{self.rewound}" if self.rewound else self.path
        return msgspec.structs.replace(params, seed=gen_seed(self.seed, path, ordinal, sample))
