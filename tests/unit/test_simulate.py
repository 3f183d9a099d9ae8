"""The simulator: the shipped scheduler does again what it did, and something else under other settings."""

from __future__ import annotations

import random

import pytest
from recording_rig import RecordedRig, busy

from sgnb.engine.scheduler.simulate.cost import CostModel
from sgnb.engine.scheduler.simulate.play import differences, play, replay
from sgnb.engine.scheduler.simulate.script import from_recording
from sgnb.messages import StepEvent


def same(rig: RecordedRig) -> None:
    """The simulation of what the rig did makes the same batches, step by step."""
    script = from_recording(rig.save())
    played = replay(script)
    assert differences(script.steps, played.events) == []
    assert played.followed and len(script.steps) > 10


@pytest.mark.parametrize("seed", range(6))
def test_a_recorded_run_is_reproduced_step_by_step(tmp_path, seed):
    rig = busy(tmp_path / "a.sgnb", seed)
    steps = [event for event in rig.detail if isinstance(event, StepEvent)]
    assert any(note.what == "retracted" for step in steps for note in step.notes)
    assert {row.kind for step in steps for row in step.rows} == {"prefill", "decode", "score"}
    same(rig)


@pytest.mark.parametrize(
    "args",
    [
        {"schedule_policy": "random", "decode_quantum": 3},
        {"schedule_policy": "dfs-weight", "enable_mixed_chunk": True},
        {"schedule_policy": "lof", "chunked_prefill_size": -1, "prefill_decode_interval": 3},
        {"schedule_policy": "fcfs", "disable_radix_cache": True},
        {"radix_eviction_policy": "lfu", "allocator_order": "lowest"},
    ],
    ids=str,
)
def test_every_way_to_end_and_every_setting_is_reproduced(tmp_path, args):
    """Conversations that end by stops, EOS, limits and aborts; commits, knobs, flushes, priorities, errors, refusals."""
    rng = random.Random(str(args))
    rig = RecordedRig(
        **{"max_total_tokens": 300, "context_length": 120, "chunked_prefill_size": 16, **args},
        schedule_conservativeness=0.2,
        max_running_requests=6,
    )
    rig.runner.nan_rows = lambda batch, row: batch.params[row].max_new_tokens > 0 and rng.random() < 0.004

    def abort_during(batch) -> None:
        if rng.random() < 0.05 and rig.scheduler.reqs:
            rig.abort(rng.choice(list(rig.scheduler.reqs)))

    rig.runner.during = abort_during
    rig.record(tmp_path / "a.sgnb")
    live: dict[int, str] = {}
    for sid in range(1, 26):
        rig.open(sid)
        live[sid] = ""
    for number in range(1, 221):
        sid = rng.choice(list(live))
        text = rng.choice([b"aaaabbbb", b"cc", b"the quick brown fox"]) + bytes(rng.choices(b"xyz", k=3))
        free = all(rid not in rig.scheduler.reqs for rid in [live[sid]])
        what = rng.random()
        if what < 0.5 and (free or what < 0.02):
            live[sid] = rig.decode(
                number,
                text,
                sid=sid,
                fresh=False,
                max_new_tokens=rng.randint(0, 25),
                stop=rng.choice([[], ["e"], ["th", "a "]]),
                stop_token_ids=rng.choice([[], [ord("t")]]),
                ignore_eos=rng.random() < 0.5,
                priority=rng.choice([0, 0, 0, 3]),
                keep=rng.choice([None, None, 5, 0]) if free else None,
            )
        elif what < 0.6 and free:
            live[sid] = rig.select(number, text, [b"one", b"two", b"o", b"one"], sid=sid, fresh=False)
        elif what < 0.68 and free:
            rig.commit(sid, text)
        elif what < 0.74 and free:
            rig.extend(sid, text)
        elif what < 0.80:
            rig.fork(sid, 1000 + number)
            live[1000 + number] = ""
        elif what < 0.83 and len(live) > 5:
            rig.close(sid)
            del live[sid]
        elif what < 0.86:
            rig.ask("set", chunked_prefill_size=rng.choice([8, 16, 64]))
        elif what < 0.88:
            rig.ask("flush_cache")
        elif what < 0.9:
            rig.ask("pin", sid=f"c1.s{sid}")
        rig.step(rng.randint(0, 3))
    rig.drain()
    ends = {told.finish.type for told in rig.told.values()}
    assert {"stop", "length", "abort", "error"} <= ends
    same(rig)


def test_a_recording_may_begin_on_a_warm_cache(tmp_path):
    rig = RecordedRig(max_total_tokens=200, chunked_prefill_size=16, context_length=100)
    for n in range(12):
        rig.run(n, b"shared prefix %d" % (n % 4) + bytes([97 + n]) * 9, max_new_tokens=6, ignore_eos=True)
    rig.open(50)
    rig.decode(51, b"a conversation", sid=50, fresh=False, max_new_tokens=5)
    rig.drain()
    rig.record(tmp_path / "a.sgnb")
    for n in range(20, 60):
        rig.decode(
            n, b"shared prefix %d" % (n % 5) + bytes([90 + n % 9]) * 9, max_new_tokens=9, ignore_eos=True
        )
        rig.step(n % 3)
    rig.decode(151, b" goes on", sid=50, fresh=False, max_new_tokens=5)
    rig.drain()
    same(rig)


def test_other_settings_make_other_batches_and_the_same_tokens(tmp_path):
    rig = busy(tmp_path / "a.sgnb", 3)
    script = from_recording(rig.save())
    same_again = play(script, CostModel())
    other = play(script, CostModel(), {"chunked_prefill_size": -1, "max_total_tokens": 4000})
    assert other.retractions == 0 and same_again.retractions > 0
    assert other.generated_tokens == same_again.generated_tokens
    assert other.steps < same_again.steps
