"""Arms of one fork: what they have in common is computed once, where that saves more than a step costs."""

from __future__ import annotations

import pytest
from scheduler_rig import Rig, alone

from sgnb.messages import StepEvent

TEXT = bytes(range(97, 117)) * 2


def prompt_tokens(rig: Rig) -> int:
    return sum(sum(batch.extend_lens) for batch in rig.runner.log if batch.forward_mode == "extend")


def forked(arms: int, common: bytes, parent: bool = False) -> tuple[Rig, list[str]]:
    """A cached text, forked; each arm asks for common ids and two of its own."""
    rig = Rig()
    rig.run(1, TEXT, max_new_tokens=1, ignore_eos=True)
    rig.fork(1, *range(11, 11 + arms))
    rig.runner.log.clear()
    sids = [1, *range(11, 11 + arms)] if parent else list(range(11, 11 + arms))
    rids = [
        rig.decode(100 + sid, common + bytes([64 + sid]) * 2, sid=sid, fresh=False, max_new_tokens=3)
        for sid in sids
    ]
    rig.drain()
    for rid in rids:
        assert rig.told[rid].ids == alone(rig.told[rid].prompt_ids, max_new_tokens=3).ids
    return rig, rids


@pytest.mark.parametrize("parent", [False, True], ids=["arms", "with-parent"])
def test_eight_arms_compute_a_short_tail_once(parent):
    rig, rids = forked(8, b"......", parent)
    # the last token drawn before the fork has no KV yet: it belongs to the tail
    assert prompt_tokens(rig) == 7 + 2 * len(rids)
    waited = {
        note.rid: note.leader
        for event in rig.detail
        if isinstance(event, StepEvent)
        for note in event.notes
        if note.reason == "leader"
    }
    assert waited == dict.fromkeys(rids[1:], rids[0]), "the first arm leads, the others wait for it"


def test_two_arms_do_not_wait_a_step_for_three_tokens():
    rig, rids = forked(2, b"..")
    assert prompt_tokens(rig) == (3 + 2) * len(rids)


def test_equal_prompts_of_strangers_wait_only_for_long_prefixes():
    rig = Rig()
    for n in range(8):
        rig.decode(n, b"......" + bytes([64 + n]) * 2, max_new_tokens=2)
    rig.drain()
    assert prompt_tokens(rig) == 8 * 8


def test_an_arm_whose_leader_is_aborted_goes_on():
    rig = Rig(chunked_prefill_size=4)
    rig.run(1, TEXT, max_new_tokens=1, ignore_eos=True)
    rig.fork(1, *range(11, 19))
    rids = [
        rig.decode(n, b"." * 12 + bytes([64 + n]) * 2, sid=n, fresh=False, max_new_tokens=3)
        for n in range(11, 19)
    ]
    rig.step()
    rig.abort(rids[0])
    rig.drain()
    for rid in rids[1:]:
        assert rig.told[rid].ids == alone(rig.told[rid].prompt_ids, max_new_tokens=3).ids
