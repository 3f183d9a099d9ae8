"""Appending branches to a session: its new ids, and the joint that says where their KV lies.

Scheduler process; called by ``Intake``. Computes and copies nothing: see ``joint``.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgnb.engine.mem_cache.radix_cache import RadixCache
from sgnb.engine.scheduler.joint import Joint, Patch, PrivateIds, keys_of
from sgnb.engine.scheduler.session import Session
from sgnb.messages import SessionJoin


def append_branches(
    parent: Session,
    branches: Sequence[Session],
    msg: SessionJoin,
    waits: frozenset[str],
    private_ids: PrivateIds,
    cache: RadixCache,
) -> None:
    """``branches`` are the sessions of ``msg.parts``, in order; the message was checked. ``waits``: see ``Joint``."""
    parent.was_joined = True
    parent.ids.extend(msg.ids)
    patches = []
    for part, branch in zip(msg.parts, branches, strict=True):
        parent.ids.extend(part.ids)
        source = branch.forked_at + part.skip
        own = branch.ids[source:]
        if own:
            start = len(parent.ids)
            patches.append(Patch(start, len(own), source, branch.keys(), branch.extra_key))
        parent.ids.extend(own)
    if patches:
        keys = keys_of(parent.prompt_with([]), parent.joined)[: patches[0].start]
        first = parent.ids[patches[0].start]
        joint = Joint(cache, private_ids, first, keys, patches, waits)
        joint.refer_to([branch.node for branch in branches if branch.node is not None])
        parent.join(joint)
    parent.refer_to(cache.match_prefix(parent.keys(), parent.extra_key).node)
