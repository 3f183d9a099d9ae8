"""Live knobs: which arguments of a running engine may be changed, and what changes with each.

Role: behind the control ``set``. Scheduler process; called by ``control`` between two steps, so a pass sees one setting.
What is not here is fixed at start. Output never depends on a knob.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sgnb.config import EngineArgs
from sgnb.errors import LimitError

if TYPE_CHECKING:
    from sgnb.engine.scheduler.scheduler import Scheduler

LIVE = (
    "schedule_policy",
    "schedule_conservativeness",
    "chunked_prefill_size",
    "max_prefill_tokens",
    "max_queued_requests",
    "prefill_decode_interval",
    "enable_mixed_chunk",
    "decode_quantum",
    "disable_radix_cache",
    "radix_eviction_policy",
    "allocator_order",
)


def set_knobs(scheduler: Scheduler, values: dict[str, Any]) -> dict[str, Any]:
    """Change knobs, all or none; the live ones as they are now. LimitError for a name, type or value that is not legal."""
    for name in values:
        if name not in LIVE:
            known = name in EngineArgs.__struct_fields__
            text = f"{name} is fixed at start" if known else f"there is no knob {name!r}"
            raise LimitError(text, hint=f"Live knobs: {', '.join(LIVE)}.")
    fields: dict[str, Any] = {**msgspec.structs.asdict(scheduler.args), **values}
    args = EngineArgs.make(**fields)
    old, scheduler.args = scheduler.args, args
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
    return {name: getattr(args, name) for name in LIVE}
