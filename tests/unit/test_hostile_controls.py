"""Controls with arguments of every kind: each is answered once, and the engine goes on."""

from __future__ import annotations

import math

import pytest
from scheduler_rig import Rig

from sgnb.engine.scheduler.control import VERBS
from sgnb.engine.scheduler.telemetry import Telemetry
from sgnb.knobs import LIVE
from sgnb.messages import SchedulerControl
from sgnb.transport import encode

NAMES = ("from_seq", "limit", "count", "sid", "rid", "ids", "all_clients", "tokens", *LIVE)
ODD = (
    *(None, True, False, 0, -1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)),
    *(0.5, math.nan, math.inf, "", "none", "c1.s1", "x" * 5000, b"x"),
    *([], [1], [(1 << 64) - 1], [None], ["a"], {}, {"a": 1}, [[[[]]]]),
)


def ready_rig() -> Rig:
    rig = Rig(max_total_tokens=256, context_length=128)
    ring = Telemetry()
    rig.scheduler.publish = ring.emit
    rig.scheduler.history = lambda start, limit=None: (ring.last_seq, ring.history(start, limit))
    rig.run(1, b"a prompt", sid=1)
    return rig


@pytest.mark.parametrize("verb", [*VERBS, "defragment", "no_such_verb"])
def test_no_argument_of_a_control_ends_the_engine(verb):
    rig = ready_rig()
    asked = 0
    for name in NAMES:
        for value in ODD:
            if verb == "step" and name == "count" and type(value) is int and 0 < value <= 1_000_000:
                continue
            asked += 1
            rig.scheduler.receive(SchedulerControl(client=1, id=asked, verb=verb, args={name: value}))
            rig.scheduler.step()
    assert [reply.id for reply in rig.replies] == list(range(1, asked + 1))
    assert all(reply.error is None or reply.error.message for reply in rig.replies)
    assert not [reply for reply in rig.replies if reply.error and reply.error.code == "internal"]
    for reply in rig.replies:
        encode(reply)
    rig.scheduler.receive(SchedulerControl(client=1, id=0, verb="resume"))
    assert rig.run(2, b"another", sid=2).finish is not None
