"""What an engine can be told and asked beside programs: knobs, pauses, its KV, its numbers.

Notebook process; the base of ``backends.handle.Engine``. Each method is one control, sent and answered by the engine's
client, and raises EngineError when the engine does not answer. No life cycle here, and nothing a program needs.
"""

from __future__ import annotations

from typing import Any, Protocol

from sgnb.backends.base import Backend
from sgnb.backends.client import EngineClient
from sgnb.errors import LimitError
from sgnb.knobs import find_knob


class HasSession(Protocol):
    """A ``State``."""

    sid: str


def _sid_of(state: HasSession) -> str:
    sid = getattr(state, "sid", None)
    if not isinstance(sid, str):
        raise LimitError(
            f"a state is pinned, not {type(state).__name__}",
            hint="Give what run() returned, or one of its branches.",
        )
    return sid


class Steering(Backend):
    """The controls of a running engine."""

    client: EngineClient

    def ask(self, verb: str, args: dict[str, Any] | None = None, timeout: float = 10.0) -> dict[str, Any]:
        """One control of the engine by name (``picture``, ``nodes``, ``holders``, ``prompt``, …); its answer."""
        return self.client.control(verb, args, timeout)

    def set(self, *pair: Any, **knobs: Any) -> dict[str, Any]:
        """Change live knobs of the scheduler (``schedule_policy="fcfs"``, ``objective="latency"``, …), all or none; returns
        all that are live. One may be given as ``%sgl set`` has it, ``set("decode_quantum", 8)``. LimitError names the knob
        and its legal range."""
        if pair:
            if len(pair) != 2 or not isinstance(pair[0], str):
                raise LimitError(
                    f"set() takes knobs by name, not {', '.join(map(repr, pair))}",
                    hint='Write set(schedule_policy="fcfs"), or set("schedule_policy", "fcfs") for one.',
                )
            knobs = {pair[0]: pair[1], **knobs}
        for name, value in knobs.items():
            find_knob(name, live=True).check(value)
        return self.client.control("set", knobs)

    def knobs(self) -> dict[str, Any]:
        """The live knobs as they are now; ``sgnb.knobs.KNOBS`` says what each is."""
        return self.client.control("knobs")

    def pause(self) -> dict[str, Any]:
        """Take no further step until ``resume`` (``step`` takes some); requests are still received."""
        return self.client.control("pause")

    def step(self, count: int = 1) -> dict[str, Any]:
        """Let a paused scheduler take ``count`` steps."""
        return self.client.control("step", {"count": count})

    def resume(self) -> dict[str, Any]:
        """Undo ``pause``."""
        return self.client.control("resume")

    def memory(self) -> dict[str, Any]:
        """Free KV slots, in how many runs, the longest, and what is pinned; in slots."""
        return self.client.control("memory")

    def pin(self, state: HasSession) -> dict[str, Any]:
        """Keep the KV of a state's text from being evicted until ``unpin``; at most half of the pool. ``pinned``: how many
        slots. LimitError when the state has no session in this engine."""
        return self.client.control("pin", {"sid": _sid_of(state)})

    def unpin(self, state: HasSession) -> dict[str, Any]:
        """Undo ``pin``."""
        return self.client.control("unpin", {"sid": _sid_of(state)})

    def stacks(self) -> str:
        """What every thread of the engine's processes does now, as text; also of an engine that is stuck."""
        return str(self.client.control("stacks")["stacks"])

    def defragment(self) -> dict[str, Any]:
        """Move cached and running KV together, so that all free slots are one run. How many slots moved, and the number of
        free runs before and after. No output changes; the copy is made before the next step."""
        return self.client.control("defragment")

    def history(self, from_seq: int = 1, limit: int = 1000) -> dict[str, Any]:
        """Numbered telemetry events that the engine still has, oldest first, and the number of the last there is."""
        return self.client.control("history", {"from_seq": from_seq, "limit": limit})

    def flush_cache(self) -> dict[str, Any]:
        """Free what no request locks; says how many slots were freed and how many are still locked."""
        return self.client.control("flush_cache")

    def clients(self) -> list[str]:
        """The names of all attached kernels, this one included."""
        return [str(name) for name in self.client.control("info")["clients"]]
