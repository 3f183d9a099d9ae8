"""Generated texts as the token ids they were: what a saved state and ``State.fork_at`` are made of.

Notebook process; used by ``runtime.saved`` and ``State.fork_at``. A finished generation knows the ids its session keeps and
the characters beyond them; appending both again gives the very ids, so nothing is tokenised twice. No waiting here.
"""

from __future__ import annotations

from sgnb.errors import ProgramError
from sgnb.lang import api
from sgnb.lang.position import Place, internal, line_of, position_of
from sgnb.runtime.core import Core
from sgnb.runtime.events import HostNote
from sgnb.runtime.state import State
from sgnb.runtime.turns import Step
from sgnb.runtime.variables import Slot

internal(__name__)


def kept_ids(slot: Slot) -> tuple[tuple[int, ...], str] | None:
    """The ids a session keeps of a finished generation, and the characters of its text beyond them.

    None where they are not known: a choice, a shared or stopped generation, a backend without ids.
    """
    kept, beyond = slot.meta.get("kept_tokens"), slot.meta.get("leftover", "")
    if slot.options or not isinstance(kept, int) or not isinstance(beyond, str) or len(slot.ids) < kept:
        return None
    return tuple(slot.ids[:kept]), beyond


def parts_of(slot: Slot) -> list[api.Text | api.Tokens]:
    """What to append for a finished generation: its ids where they are known, else its text."""
    found = kept_ids(slot)
    if found is None or not slot.text.endswith(found[1]):
        return [api.Text(slot.text, literal=True)]
    ids, beyond = found
    text = slot.text[: len(slot.text) - len(beyond)]
    parts: list[api.Text | api.Tokens] = [api.Tokens(ids, text)] if ids else []
    return [*parts, api.Text(beyond, literal=True)] if beyond else parts


def repeat_exactly(state: State, steps: list[Step], place: Place) -> None:
    """Append what another state had appended, its finished generations as ids."""
    for step in steps:
        for part in parts_of(step) if isinstance(step, Slot) else (step,):
            state.append_expr(part, place)


def fork_at(source: State, name: str, count: int, place: Place) -> State:
    """See ``State.fork_at``."""
    position = position_of(place)
    slot = next((s for s in source._history if isinstance(s, Slot) and s is source._values.get(name)), None)
    if slot is None:
        raise ProgramError(
            f"fork_at({name!r}, …): {name!r} is no generation of this state's text.",
            hint=f"Its variables: {', '.join(map(repr, source.names())) or 'none'}.",
            position=position,
        )
    slot.core.read(slot)
    found = kept_ids(slot)
    if found is None:
        raise ProgramError(
            f"fork_at({name!r}, …): the tokens of this text are not known.",
            hint="Only a generation that an engine finished has them.",
            position=position,
        )
    ids = found[0]
    if type(count) is not int or not 0 <= count <= len(ids):
        raise ProgramError(
            f"fork_at({name!r}, {count!r}): the text has {len(ids)} tokens.",
            hint=f"Give a number from 0 to {len(ids)}.",
            position=position,
        )
    text, whole = source.backend.text_of(ids[:count])
    forks, source._forks = source._forks, source._forks + 1
    branch = f"{source.branch}.{name}@{whole}" if source.branch else f"{name}@{whole}"
    core = source.core
    if core.over:
        core = Core(source.backend, title="state", defaults=source.core.defaults, seed=source.seed)
        core.begin_own_run(branch)
    state = State(core, branch, f"{source.path}/{forks}@{whole}", defaults=source.defaults, seed=source.seed)
    steps = source._history[: next(i for i, step in enumerate(source._history) if step is slot)]
    repeat_exactly(state, steps, place)
    if whole:
        state.append_expr(api.Tokens(tuple(ids[:whole]), text), place)
    if whole < count:
        note = f"Token {count} of {name!r} ends inside a character; the fork begins after token {whole}."
        core.append_event(HostNote(note, line_of(place)))
    return state
