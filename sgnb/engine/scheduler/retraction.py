"""Retraction: who gives its slots back when the next decode step does not fit.

Role: a pure choice over requests. Scheduler process; called by ``Scheduler`` before each decode step. Frees nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from sgnb.engine.scheduler.req import Req


def victims(running: list[Req], unfinished: list[Req]) -> Iterator[Req]:
    """Requests to retract, in order: fewest output tokens first, then longest input, then latest arrival.

    ``unfinished``: a prompt in the middle of its chunks and selects that score; they have no output, so they go before all
    that stream. One running request always
    stays: alone it fits, since a prompt that cannot was refused and an output ends at the size of the pool.
    """
    ranked = sorted(running, key=_cheapest_first)
    if ranked:
        ranked.pop()
    yield from sorted([*ranked, *unfinished], key=_cheapest_first)


def _cheapest_first(req: Req) -> tuple[int, int, int]:
    return (len(req.output_ids), -len(req.prompt), -req.ordinal)
