"""Joins by KV on the scheduler: what is copied, what is computed, who may find it, and when it becomes exact again.

The stub's copies belong to the prefix they are first read in and change what is drawn after them, so that whoever
reads copied KV without being joined says something else than it says alone.
"""

from __future__ import annotations

import pytest
from recording_rig import RecordedRig
from scheduler_rig import BYTES, Rig, alone

from sgnb.engine.model_executor.stub_runner import COPIED, mix, prefix_hash
from sgnb.engine.scheduler.simulate.play import differences, replay
from sgnb.engine.scheduler.simulate.reader import from_recording
from sgnb.messages import SessionJoin, StepEvent

TEXT = bytes(range(97, 117)) * 2
PAGES = [1, 2, 4, 16]


def joined(arms: int = 3, tokens: int = 20, **args) -> Rig:
    """A prompt, forked, each arm with text and a generation of its own; joined."""
    rig = Rig(**args)
    rig.run(1, TEXT, max_new_tokens=1, ignore_eos=True)
    sids = list(range(11, 11 + arms))
    rig.fork(1, *sids)
    for sid in sids:
        rig.decode(sid, bytes([64 + sid]) * 4, sid=sid, fresh=False, max_new_tokens=tokens, ignore_eos=True)
    rig.drain()
    rig.join(1, *sids)
    rig.close(*sids)
    rig.drain()
    rig.runner.log.clear()
    return rig


def ids_of(rig: Rig, sid: int = 1) -> list[int]:
    return list(rig.scheduler.sessions[f"c1.s{sid}"].ids)


def computed(rig: Rig) -> int:
    return sum(sum(batch.extend_lens) for batch in rig.runner.log if batch.forward_mode != "decode")


def copied(rig: Rig) -> int:
    return sum(len(batch.copy_src) for batch in rig.runner.log)


def test_branches_are_copied_and_not_computed():
    rig = joined()
    before = ids_of(rig)
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=4)
    assert told.prompt_ids == before + list(b"!!")
    assert before == list(TEXT) + before[40:41] + [t for arm in range(3) for t in ids_of_arm(rig, arm)]
    assert told.meta.joined_tokens == copied(rig) == 3 * 24
    assert told.meta.joined_kv == "approximate"
    assert told.meta.cached_tokens == 41
    assert computed(rig) == 2, "what is new; the branches had computed what the parent lacked"
    notes = [n for e in rig.detail if isinstance(e, StepEvent) for n in e.notes if n.what == "joined"]
    assert [(n.rid, n.needs, n.has) for n in notes] == [("c1.r2", 72, 72)]
    assert [e.joined_tokens for e in rig.events if e.rid == "c1.r2" and e.state == "first_token"] == [72]


def ids_of_arm(rig: Rig, arm: int) -> list[int]:
    told = rig.told[f"c1.r{11 + arm}"]
    return [*told.prompt_ids[41:], *told.output_ids]


def test_copies_shift_keys_by_what_their_tokens_move():
    rig = joined(arms=2)
    rig.run(2, b"!!", sid=1, fresh=False)
    batch = next(batch for batch in rig.runner.log if batch.copy_src)
    assert batch.copy_shift == [0] * 24 + [24] * 24, "the second branch stands behind the first"


@pytest.mark.parametrize("page", PAGES)
def test_what_is_drawn_depends_on_the_copies_alone(page):
    """Equal for every page size: the same tokens are copied, or computed behind copies."""
    rig = joined(page_size=page)
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    assert told.meta.joined_kv == "approximate"
    assert told.meta.joined_tokens + told.meta.cached_tokens + computed(rig) == len(told.prompt_ids)
    again = rig.run(3, b"", sid=1, fresh=False, max_new_tokens=2, ignore_eos=True)
    assert again.prompt_ids == told.prompt_ids + told.output_ids
    assert again.meta.joined_tokens == 0
    assert again.meta.cached_tokens >= (len(told.prompt_ids) // page) * page - page
    assert again.meta.joined_kv == "approximate"


def test_the_draws_are_those_of_a_prefix_with_copies():
    rig = joined(arms=1)
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=1, ignore_eos=True)
    from random_load import draw

    state = prefix_hash(told.prompt_ids[:41])
    for token in told.prompt_ids[41:65]:
        state = mix(state ^ (token + 1) ^ COPIED)
    state = prefix_hash(told.prompt_ids[65:], state)
    assert told.ids == [draw(state, set())]


@pytest.mark.parametrize("page", PAGES)
def test_nobody_else_finds_joined_kv(page):
    rig = joined(page_size=page)
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    stranger = rig.run(3, [*told.prompt_ids, *told.output_ids, *b"??"], max_new_tokens=6, ignore_eos=True)
    assert stranger.ids == alone(stranger.prompt_ids, max_new_tokens=6, ignore_eos=True).ids
    first_arm = 41 + 24
    assert stranger.meta.cached_tokens <= first_arm, "the parent, and the first branch where it really was"
    assert stranger.meta.joined_kv == ""


@pytest.mark.parametrize("page", PAGES)
def test_evicted_it_is_computed_exactly_and_says_so(page):
    rig = joined(page_size=page)
    first = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    rig.scheduler.cache.flush()
    told = rig.run(3, b"++", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    assert told.prompt_ids == first.prompt_ids + first.output_ids + list(b"++")
    assert told.ids == alone(told.prompt_ids, max_new_tokens=6, ignore_eos=True).ids
    assert told.meta.joined_kv == "exact"
    assert told.meta.joined_tokens == 0
    assert "computed anew, exactly" in told.meta.notes[0]
    notes = [n for e in rig.detail if isinstance(e, StepEvent) for n in e.notes if n.what == "recomputed"]
    assert [(n.rid, n.reason) for n in notes] == [("c1.r3", "join")]
    stranger = rig.run(4, [*told.prompt_ids, 33], max_new_tokens=2)
    assert stranger.meta.cached_tokens >= len(told.prompt_ids) // page * page - page, (
        "exact KV is everybody's"
    )


def test_branches_that_are_gone_before_the_copy_are_computed():
    rig = joined()
    rig.scheduler.cache.flush()
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    assert told.ids == alone(told.prompt_ids, max_new_tokens=6, ignore_eos=True).ids
    assert (told.meta.joined_kv, told.meta.joined_tokens) == ("exact", 0)
    assert not any("exactly" in note for note in told.meta.notes)


def test_without_a_cache_a_join_is_exact():
    rig = joined(disable_radix_cache=True)
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    assert told.ids == alone(told.prompt_ids, max_new_tokens=6, ignore_eos=True).ids
    assert told.meta.joined_kv == "exact"


@pytest.mark.parametrize("page", PAGES)
def test_forks_of_a_joined_state_share_its_copies(page):
    rig = joined(page_size=page)
    rig.fork(1, 21, 22, 23)
    for sid in (21, 22, 23):
        rig.decode(sid, bytes([sid + 30]) * 4, sid=sid, fresh=False, max_new_tokens=3, ignore_eos=True)
    rig.drain()
    told = [rig.told[f"c1.r{sid}"] for sid in (21, 22, 23)]
    assert {one.meta.joined_kv for one in told} == {"approximate"}
    assert sum(one.meta.joined_tokens > 0 for one in told) == 1, "one copies, the others find it cached"
    assert len({tuple(one.prompt_ids[:-4]) for one in told}) == 1


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("chunk", [1, 3, 8, 512])
def test_chunks_retraction_and_moves(overlap, chunk):
    rig = joined(chunked_prefill_size=chunk, enable_overlap=overlap)
    rid = rig.decode(2, b"!!", sid=1, fresh=False, max_new_tokens=12, ignore_eos=True)
    rig.step(3)
    rig.ask("defragment")
    rig.scheduler.settle()
    rig.scheduler.retract(rig.scheduler.reqs[rid])
    rig.ask("defragment")
    rig.drain()
    told = rig.told[rid]
    assert told.finish.type == "length"
    assert told.meta.joined_kv == "approximate"
    exact = joined(chunked_prefill_size=chunk)
    plain = exact.run(2, b"!!", sid=1, fresh=False, max_new_tokens=12, ignore_eos=True)
    assert told.prompt_ids == plain.prompt_ids


def test_a_join_behind_a_join():
    rig = joined(arms=2)
    rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    rig.fork(1, 31, 32)
    for sid in (31, 32):
        rig.decode(sid, bytes([sid + 30]) * 4, sid=sid, fresh=False, max_new_tokens=5, ignore_eos=True)
    rig.drain()
    rig.join(1, 31, 32)
    rig.close(31, 32)
    rig.drain()
    told = rig.run(3, b"..", sid=1, fresh=False, max_new_tokens=6, ignore_eos=True)
    assert told.meta.joined_tokens == 2 * 9
    assert told.meta.joined_kv == "approximate"


def test_a_cut_before_the_join_forgets_it_and_one_inside_copies_less():
    rig = joined()
    told = rig.run(2, b"??", sid=1, fresh=False, keep=41 + 30, max_new_tokens=4, ignore_eos=True)
    assert told.meta.joined_tokens == 30
    rig = joined()
    told = rig.run(2, b"??", sid=1, fresh=False, keep=30, max_new_tokens=4, ignore_eos=True)
    assert told.meta.joined_tokens == 0
    assert told.ids == alone(told.prompt_ids, max_new_tokens=4, ignore_eos=True).ids
    assert told.meta.joined_kv == "exact"


def test_closed_sessions_leave_nothing_behind():
    rig = joined()
    rig.run(2, b"!!", sid=1, fresh=False)
    assert any((node.key < 0).any() for node in rig.scheduler.cache.nodes())
    rig.fork(1, 5)
    rig.close(1)
    rig.drain()
    assert any((node.key < 0).any() for node in rig.scheduler.cache.nodes()), "its fork still has it"
    rig.close(5)
    rig.drain()
    assert not any((node.key < 0).any() for node in rig.scheduler.cache.nodes())
    assert not any(node.soft_ref for node in rig.scheduler.cache.nodes())


def test_a_select_after_a_join():
    rig = joined()
    rid = rig.select(2, b"!!", [b"yes", b"no"], sid=1, fresh=False)
    rig.drain()
    told = rig.told[rid]
    assert told.meta.joined_tokens == 72
    again = rig.run(3, b"!", sid=1, fresh=False, max_new_tokens=4)
    assert again.meta.joined_kv == "approximate"
    assert again.meta.joined_tokens == 0


def test_a_small_pool_computes_instead():
    """Copies need room beside the branches; where there is none the branches make room, and all is computed."""
    rig = joined(arms=2, max_total_tokens=110)
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=12, ignore_eos=True)
    assert told.finish.type == "length"
    assert told.meta.joined_tokens < 48


def test_prompts_whose_logprobs_are_wanted_copy_only_what_lies_before():
    rig = joined()
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=2, return_logprob=True, logprob_start_len=60)
    assert told.meta.joined_tokens <= 60 - 41
    assert len(told.input_logprobs) == len(told.prompt_ids) - 60


def test_texts_of_joined_nodes_are_the_true_ones():
    rig = joined()
    told = rig.run(2, b"!!", sid=1, fresh=False, max_new_tokens=1)
    node = next(node for node in rig.scheduler.cache.nodes() if (node.key < 0).any())
    text = rig.ask("nodes", ids=[node.id]).data["nodes"][str(node.id)]["text"]
    whole = b"".join(BYTES[i] for i in told.prompt_ids).decode("latin-1")
    assert text.encode().decode() in whole
    assert text.startswith("KKKK"), "the first joined token is there, not its private id"


def test_refused_where_kv_cannot_be_copied_or_a_branch_is_gone():
    rig = joined()
    rig.fork(1, 40)
    rig.drain()
    rig.close(40)
    rig.join(1, 40)
    told = rig.run(2, b"!", sid=1, fresh=False)
    assert told.finish.error.code == "kv_join"
    assert "closed" in told.finish.error.message
    rig = joined()
    rig.scheduler.runner.rotates = False
    rig.fork(1, 40)
    rig.scheduler.receive(SessionJoin(sid="c1.s1", ids=[], parts=[]))
    told = rig.run(2, b"!", sid=1, fresh=False)
    assert told.finish.error.code == "kv_join"
    assert "method" in told.finish.error.hint


@pytest.mark.parametrize("page", [1, 4])
def test_a_recorded_join_is_simulated_step_by_step(tmp_path, page):
    rig = RecordedRig(page_size=page, chunked_prefill_size=9)
    rig.record(tmp_path / "r.sgnb")
    rig.run(1, TEXT, max_new_tokens=3)
    for round in (10, 20):
        sids = [round + 1, round + 2, round + 3]
        rig.fork(1, *sids)
        for sid in sids:
            rig.decode(sid, bytes([40 + sid]) * 4, sid=sid, fresh=False, max_new_tokens=sid - round + 5)
        rig.drain()
        rig.join(1, *sids, ids=b"...", skip=1)
        rig.close(*sids)
        rig.run(2 + round, b"!!", sid=1, fresh=False, max_new_tokens=4)
    rig.ask("flush_cache")
    rig.run(50, b"??", sid=1, fresh=False, max_new_tokens=4)
    script = from_recording(rig.save())
    played = replay(script)
    assert played.followed
    assert differences(script.steps, played.events) == []
    assert sum(note.what == "joined" for step in played.events for note in step.notes) >= 2
