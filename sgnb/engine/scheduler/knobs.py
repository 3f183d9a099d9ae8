"""Live knobs: what changes in a running scheduler with each.

Role: behind the controls ``set`` and ``knobs``. Scheduler process; called by ``control`` between two steps, so a pass sees
one setting. Which knobs there are, and what is legal, is ``sgnb.knobs``'s. Output never depends on a knob. Each change is an
event, so that a timeline can say from which step on it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sgnb.config import EngineArgs, with_objective
from sgnb.errors import LimitError
from sgnb.knobs import LIVE, find_knob
from sgnb.messages import KnobEvent

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler


def live_knobs(scheduler: Scheduler) -> dict[str, Any]:
    """The live knobs as they are now."""
    return {name: getattr(scheduler.args, name) for name in LIVE}


def set_knobs(scheduler: Scheduler, values: dict[str, Any]) -> dict[str, Any]:
    """Change knobs, all or none; the live ones as they are now. LimitError for a name, type or value that is not legal.

    ``objective`` stands for its knobs; those given beside it win.
    """
    for name, value in values.items():
        find_knob(name, live=True).check(value)
    asked = with_objective(values)
    rows = scheduler.runner.max_running
    if asked.get("max_running_requests", 1) > rows:
        raise LimitError(
            f"max_running_requests must be in 1..{rows} while the engine runs, not {asked['max_running_requests']}",
            hint="The table of running requests was made at start: launch with a larger max_running_requests.",
        )
    fields: dict[str, Any] = {**msgspec.structs.asdict(scheduler.args), **asked}
    args = msgspec.convert(fields, EngineArgs, strict=True).check()
    old, scheduler.args = scheduler.args, args
    _apply(scheduler, old, args)
    changed = {name: getattr(args, name) for name in LIVE if getattr(args, name) != getattr(old, name)}
    if changed:
        scheduler.publish(
            KnobEvent(
                time=scheduler.clock(),
                step=scheduler.meter.forward_steps + 1,
                objective=args.objective,
                knobs=changed,
            )
        )
    return live_knobs(scheduler)


def _apply(scheduler: Scheduler, old: EngineArgs, args: EngineArgs) -> None:
    """What has to be told to others; the rest is read from ``scheduler.args`` where it is used."""
    scheduler.policy.name = args.schedule_policy
    scheduler.allocator.order = args.allocator_order
    if args.schedule_conservativeness != old.schedule_conservativeness:
        scheduler.ratio.set_conservativeness(args.schedule_conservativeness)
    if args.radix_eviction_policy != old.radix_eviction_policy:
        scheduler.cache.set_eviction(args.radix_eviction_policy)
    if args.disable_radix_cache != old.disable_radix_cache:
        if args.disable_radix_cache:
            scheduler.cache.flush()
        scheduler.cache.disabled = args.disable_radix_cache
