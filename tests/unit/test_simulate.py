"""The simulator: the shipped scheduler does again what it did, and something else under other settings."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time

import msgspec
import pytest
from recording_rig import RecordedRig, busy
from scheduler_rig import BYTES
from test_grammar_queue import ListBackend

from sgnb.engine.grammar import base
from sgnb.engine.model_executor.stub_runner import STUB_EOS
from sgnb.engine.scheduler.simulate import command
from sgnb.engine.scheduler.simulate.cost import CostModel, fit
from sgnb.engine.scheduler.simulate.play import differences, play, replay
from sgnb.engine.scheduler.simulate.reader import Window, from_recording
from sgnb.engine.scheduler.simulate.report import compare, settings, table
from sgnb.engine.scheduler.simulate.script import Compiled, Input, plain_params, unpack
from sgnb.engine.scheduler.simulate.workloads import WORKLOADS, make_workload
from sgnb.errors import LimitError, RecordingError
from sgnb.messages import StepEvent, StepRow, TokenTable


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
        {"page_size": 4, "max_total_tokens": 320},
        {"enable_overlap": True},
        {"enable_overlap": True, "enable_mixed_chunk": True, "page_size": 2},
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


@pytest.mark.parametrize("overlap", [False, True])
def test_prompts_that_are_scored_are_computed_as_they_were(tmp_path, overlap):
    """Log-probabilities of a prompt limit what of it may come from the cache, and may be all that is asked for."""
    rng = random.Random(3)
    rig = RecordedRig(max_total_tokens=400, chunked_prefill_size=16, enable_overlap=overlap)
    rig.runner.nan_rows = lambda batch, row: rng.random() < 0.02
    rig.record(tmp_path / "a.sgnb")
    for n in range(60):
        text = b"all of them begin alike" + b"%d" % (n % 7) * 4
        asked = {"return_logprob": True, "logprob_start_len": rng.choice([-1, 0, 10, 25])}
        rig.decode(n, text, max_new_tokens=rng.choice([0, 0, 1, 5]), ignore_eos=True, **asked)
        if n % 5 == 0:
            rig.select(100 + n, text, [b"one", b"two"])
        rig.step(rng.randint(0, 3))
    rig.drain()
    scored = [
        told for told in rig.told.values() if told.input_logprobs and not told.ids and not told.finish.error
    ]
    assert len(scored) > 5 and any(told.finish.error for told in rig.told.values())
    same(rig)


@pytest.mark.parametrize(
    ("seed", "args"),
    [
        (0, {}),
        (1, {"enable_overlap": True}),
        (2, {"enable_overlap": True, "runner_driver": "thread", "page_size": 4}),
    ],
    ids=str,
)
def test_steps_that_failed_fail_again(tmp_path, capsys, seed, args):
    """Steps that ran out of memory are tried in parts again, at the same places; under other settings it is said instead."""
    rng = random.Random(seed)
    rig = RecordedRig(max_total_tokens=300, context_length=120, chunked_prefill_size=16, **args)

    def during(batch) -> None:
        dice = rng.random()
        if dice < 0.1:
            raise MemoryError
        if dice < 0.12:
            raise RuntimeError("a kernel's fault")
        if dice < 0.2 and rig.scheduler.reqs:
            rig.abort(rng.choice(list(rig.scheduler.reqs)))

    rig.runner.during = during
    rig.record(tmp_path / "a.sgnb")
    for n in range(60):
        text = rng.choice([b"aaaabbbb", b"the quick brown fox "]) * rng.randint(1, 4) + b"%d" % n
        if rng.random() < 0.2:
            rig.select(n, text, [b"one", b"two", b"other"])
        else:
            rig.decode(n, text, max_new_tokens=rng.randint(1, 25), ignore_eos=True)
        rig.step(rng.randint(0, 3))
    rig.drain()
    rig.scheduler.driver.close()
    same(rig)
    script = from_recording(rig.save())
    kinds = [step.failed for step in script.steps if step.failed]
    assert {"memory", "error"} <= set(kinds) and ("skipped" in kinds) == bool(args)
    assert command.main([str(tmp_path / "a.sgnb"), "--check"]) == 0
    assert command.main([str(tmp_path / "a.sgnb"), "--cost", "1,1,1"]) == 0
    shown = capsys.readouterr().out
    assert f"{len(kinds)} of {len(script.steps)} steps were not computed" in shown
    assert f"{kinds.count('memory')} ran out of memory" in shown


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


@pytest.mark.parametrize("page", [2, 4, 16])
def test_a_warm_cache_is_restored_in_pages_of_another_size(tmp_path, page):
    """The recorded tree is cut anywhere; what fills no page of the simulated one takes no slots from it."""
    rig = RecordedRig(max_total_tokens=2000, context_length=200)
    for n in range(8):
        rig.run(n, b"a beginning that all of them share, " + bytes([97 + n]) * (3 + 5 * n), max_new_tokens=6)
    rig.record(tmp_path / "a.sgnb")
    for n in range(20, 28):
        rig.run(n, b"a beginning that all of them share, " + bytes([97 + n - 20]) * 60, max_new_tokens=4)
    played = play(from_recording(rig.save()), CostModel(), {"page_size": page})
    assert (played.requests, played.failed, played.evicted_tokens) == (8, 0, 0)
    assert played.cached_tokens >= 8 * (36 // page * page)


def test_other_settings_make_other_batches_and_the_same_tokens(tmp_path):
    rig = busy(tmp_path / "a.sgnb", 3)
    script = from_recording(rig.save())
    same_again = play(script, CostModel())
    other = play(script, CostModel(), {"chunked_prefill_size": -1, "max_total_tokens": 4000})
    assert other.retractions == 0 and same_again.retractions > 0
    assert other.generated_tokens == same_again.generated_tokens
    assert other.steps < same_again.steps


def test_what_follows_an_answer_waits_for_it(tmp_path):
    """A conversation recorded on a fast engine takes as long as a slow one needs, pauses included."""
    rig = RecordedRig()
    rig.record(tmp_path / "a.sgnb")
    rig.open(1)
    for turn in range(3):
        rig.decode(turn, b"turn", sid=1, fresh=False, max_new_tokens=5, ignore_eos=True)
        rig.drain()
    rig.close(1)
    rig.step()
    script = from_recording(rig.save())
    slow = play(script, CostModel(fixed=1.0, per_prefill_token=0.0, per_decode_row=0.0))
    assert (slow.requests, slow.failed, slow.steps) == (3, 0, 15)
    assert 15.0 <= slow.seconds < 16.0
    assert slow.cached_tokens > 0, "the later turns find the earlier ones"
    assert slow.first_token == pytest.approx([1.0] * 3) and slow.gaps == pytest.approx([1.0] * 12)


def test_a_recording_that_ends_early_is_simulated_to_the_limits(tmp_path, capsys):
    rig = RecordedRig()
    rig.record(tmp_path / "a.sgnb")
    rig.decode(1, b"still running", max_new_tokens=30, ignore_eos=True)
    rig.step(5)
    script = from_recording(rig.save())
    assert play(script, CostModel()).generated_tokens == 30
    assert script.unfinished == 1 and "1 request had not ended" in script.notes[-1]
    assert command.main([str(rig.path), "--check"]) == 0, "what it has is compared, no more"
    assert "all 5 batches are the recorded ones" in capsys.readouterr().out
    rig.drain()


def test_marks_that_are_cut_are_an_error_with_words():
    with pytest.raises(RecordingError, match="four bytes"):
        unpack(b"12345")


def test_an_empty_recording_says_what_to_do(tmp_path):
    rig = RecordedRig()
    rig.record(tmp_path / "a.sgnb")
    with pytest.raises(RecordingError, match="no request in it"):
        from_recording(rig.save())


# ---------------------------------------------------------------- cost


def step(prefill: int, streams: int, context: int, seconds: float) -> StepEvent:
    rows = [StepRow(rid="p", kind="prefill", tokens=prefill, prefix=0)] if prefill else []
    rows += [StepRow(rid=f"d{n}", kind="decode", tokens=1, prefix=context - 1) for n in range(streams)]
    return StepEvent(time=0.0, step=1, mode="mixed", rows=rows, forward_seconds=seconds)


def test_the_cost_is_found_again_in_noisy_steps():
    rng = random.Random(1)
    true = CostModel(fixed=0.005, per_prefill_token=2e-4, per_decode_row=4e-4, per_context_token=1e-6)
    steps = []
    for n in range(400):
        prefill, streams, context = rng.choice([0, 64, 512]), rng.randint(0, 32), rng.randint(10, 2000)
        seconds = true.seconds(prefill, streams, streams * context) * rng.uniform(0.95, 1.05)
        steps.append(step(prefill, streams, context, seconds * (20 if n % 50 == 0 else 1)))
    found = fit(steps)
    for name in ("fixed", "per_prefill_token", "per_decode_row", "per_context_token"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.15), name
    assert 0 < found.error < 0.05 and found.steps == 400
    assert "median error" in str(found)


def test_a_cost_is_never_negative_and_needs_some_steps():
    found = fit([step(0, n % 5, 100, 0.01 - n % 5 * 1e-4) for n in range(50)])
    assert found.per_decode_row == 0.0 and found.fixed > 0
    with pytest.raises(RecordingError, match="steps"):
        fit([step(1, 1, 1, 0.1)])
    assert CostModel.parse("4,0.2,0.5") == CostModel()
    for wrong in ("", "1,2", "a,b,c", "1,-2,3", "0,0,0"):
        with pytest.raises(LimitError, match="FIXED"):
            CostModel.parse(wrong)


# ---------------------------------------------------------------- workloads and comparisons


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_ends_and_is_the_same_again(name):
    script = make_workload(name, requests=40, rate=50.0, seed=3)
    first = play(script, CostModel())
    assert first.failed == 0 and first.requests >= 40
    assert first.cached_tokens > 0.3 * first.prompt_tokens, "programs share prefixes"
    again = play(make_workload(name, requests=40, rate=50.0, seed=3), CostModel())
    assert (again.steps, again.seconds, again.gaps) == (first.steps, first.seconds, first.gaps)
    assert play(make_workload(name, requests=40, rate=50.0, seed=4), CostModel()).steps != first.steps


def test_settings_are_compared_side_by_side():
    script = make_workload("mixed", requests=60, rate=80.0)
    wanted = settings({"schedule_policy": ["lpm", "fcfs"], "chunked_prefill_size": [64, -1]})
    found = compare(script, CostModel(), wanted)
    assert found[0].setting == "policy lpm, chunk 64"
    assert len(found) == 4 and found[0].steps > found[1].steps, "small chunks make more steps"
    assert found[0].inter_token_p99 < found[1].inter_token_p99, "and shorter waits between tokens"
    shown = table(found)
    assert len({len(line.rstrip()) for line in shown.splitlines()}) <= 3
    for word in ("hit rate", "first token p95", "between tokens p99", "retractions", "throughput"):
        assert word in shown
    (small,) = compare(script, CostModel(), {"small": {"max_total_tokens": 3000}})
    assert small.evicted_tokens > 0 and small.hit_rate <= found[0].hit_rate
    (off,) = compare(script, CostModel(), {"off": {"disable_radix_cache": True}})
    assert off.hit_rate == 0
    crowd = make_workload("few-shot", requests=150, rate=1000.0)
    much, soon = compare(crowd, CostModel(), settings({"objective": ["throughput", "latency"]}))
    assert much.throughput > soon.throughput and much.inter_token_p99 > soon.inter_token_p99
    with pytest.raises(LimitError, match="schedule_policy"):
        compare(script, CostModel(), {"x": {"schedule_policy": "best"}})
    with pytest.raises(LimitError, match="unknown"):
        compare(script, CostModel(), {"x": {"colour": "red"}})
    with pytest.raises(LimitError, match="at most 64"):
        settings({"page_size": range(65)})


def test_knobs_that_are_simulated_win_over_recorded_changes(tmp_path):
    rig = RecordedRig(max_total_tokens=4000)
    rig.record(tmp_path / "a.sgnb")
    rig.ask("set", chunked_prefill_size=4, schedule_policy="fcfs")
    rig.decode(1, b"x" * 64, max_new_tokens=2, ignore_eos=True)
    rig.drain()
    script = from_recording(rig.save())
    assert play(script, CostModel()).steps == 17
    assert play(script, CostModel(), {"chunked_prefill_size": 32}).steps == 3


# ---------------------------------------------------------------- the command


def test_the_command_compares_and_checks(tmp_path, capsys):
    recording = busy(tmp_path / "a.sgnb", 2).save()
    assert command.main([str(recording.path), "--check"]) == 0
    assert "batches are the recorded ones" in capsys.readouterr().out
    assert command.main([str(recording.path), "--policy", "lpm,fcfs", "--mixed", "on"]) == 0
    shown = capsys.readouterr().out
    assert "policy fcfs" in shown and "fitted from" in shown
    assert (
        command.main([str(recording.path), "--max-total-tokens", "500", "--json", "--cost", "1,0.1,0.1"]) == 0
    )
    data = json.loads(capsys.readouterr().out)
    assert data["cost"]["fixed"] == 0.001 and data["settings"][0]["retractions"] == 0
    assert command.main(["--workload", "few-shot", "--requests", "9", "--set", "random_seed=1,2"]) == 0
    assert "random_seed 2" in capsys.readouterr().out
    huge = ["--max-running", "2000000000"]  # no list of so many rows is made
    assert command.main(["--workload", "few-shot", "--requests", "9", *huge]) == 0
    capsys.readouterr()
    assert command.main(["--workload", "few-shot", "--requests", "9", "--cache", "on,off"]) == 0
    shown = capsys.readouterr().out
    assert "cache on" in shown and "cache off" in shown
    assert command.main(["--workload", "few-shot", "--requests", "9"]) == 0
    assert "defaults" in capsys.readouterr().out


def test_a_recording_simulates_itself_in_a_process_of_its_own(tmp_path):
    recording = busy(tmp_path / "a.sgnb", 2).save()
    found = recording.simulate("--policy", "lpm,fcfs")
    assert [setting["changes"] for setting in found["settings"]] == [
        {"schedule_policy": "lpm"},
        {"schedule_policy": "fcfs"},
    ]
    with pytest.raises(RecordingError, match="schedule_policy"):
        recording.simulate("--policy", "best")
    with pytest.raises(RecordingError, match=r"more than 0\.001 s"):
        recording.simulate(timeout=0.001)


def test_the_commands_mistakes_are_told(tmp_path, capsys):
    assert command.main([str(tmp_path / "none.sgnb")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    for wrong in (
        [],
        ["a.sgnb", "--workload", "mixed"],
        ["--workload", "mixed", "--check"],
        ["a.sgnb", "--rate", "3"],
        ["a.sgnb", "--requests", "3"],
        ["a.sgnb", "--seed", "3"],
        ["--workload", "mixed", "--set", "random_seed"],
        ["--workload", "mixed", "--set", "random_seed="],
        ["--workload", "mixed", "--chunk", "many"],
        ["--workload", "mixed", "--mixed", "maybe"],
        ["--workload", "dreams"],
    ):
        with pytest.raises(SystemExit) as caught:
            command.main(wrong)
        assert caught.value.code == 2
    assert command.main(["--workload", "mixed", "--policy", "best"]) == 1
    assert "schedule_policy" in capsys.readouterr().err
    for nothing in ("runner=torch", "runner_driver=process", "threads=2", "model=x"):
        assert command.main(["--workload", "mixed", "--set", nothing]) == 1
        assert f"{nothing.partition('=')[0]} makes no difference to a simulation" in capsys.readouterr().err
    assert command.main(["--workload", "mixed", "--requests", "0"]) == 1


def test_sgnb_simulate_starts_it_without_torch(tmp_path):
    code = (
        "import sys; from sgnb.engine.__main__ import main;"
        "code = main(['simulate', '--workload', 'few-shot', '--requests', '5']);"
        "print(code, [m for m in ('torch', 'transformers', 'xgrammar') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "0 []"
    words = [sys.executable, "-m", "sgnb.cli", "simulate", "--workload", "fork-join", "--requests", "9"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert "hit rate" in done.stdout


@pytest.mark.parametrize("overlap", [False, True])
def test_grammars_are_waited_for_and_end_where_they_did(tmp_path, monkeypatch, overlap):
    backend = ListBackend(None)
    monkeypatch.setitem(base.BACKENDS, "xgrammar", lambda vocabulary: backend)
    rig = RecordedRig(table=None, max_total_tokens=200, chunked_prefill_size=16, enable_overlap=overlap)
    rig.scheduler.receive(TokenTable(table=BYTES, special_ids=[256, 257, 258], eos_token_ids=[STUB_EOS]))
    rig.record(tmp_path / "a.sgnb")
    rng = random.Random(7)
    made = 0
    for n in range(60):
        (backend.hold.set if rng.random() < 0.5 else backend.hold.clear)()
        text = rng.choice([f"{n}yes|{n}no", "yes|no", "a|ab", "bad", None])
        limits = {"ignore_eos": text is None, "max_new_tokens": rng.choice([1, 9, 20])}
        made += text is not None
        rig.decode(n, b"prompt %d" % (n % 5), regex=text, **limits)
        rig.step(rng.randint(1, 4))
        if rng.random() < 0.1:
            rig.abort(rng.choice(list(rig.scheduler.reqs) or ["c1.r0"]))
    backend.hold.set()
    deadline = time.monotonic() + 30
    while rig.scheduler.reqs:
        assert time.monotonic() < deadline
        if not rig.step():
            time.sleep(0.01)
    rig.drain()
    backend.close()
    ends = [told.finish.type for told in rig.told.values()]
    assert {"grammar", "eos", "length", "error"} <= set(ends) and made > 30
    same(rig)
    script = from_recording(rig.save())
    assert any(output.waits for output in script.outputs)
    free = play(script, CostModel())
    assert free.requests == sum(kind != "error" for kind in ends) and free.failed == 0


def test_a_request_whose_grammar_takes_long_comes_late():
    script = make_workload("few-shot", requests=1)
    (output,) = script.outputs
    output.constrained = output.waits = True
    decode = script.inputs[1]
    params = plain_params(decode.message.params.max_new_tokens, 0, constrained=True)
    decode.message = msgspec.structs.replace(decode.message, params=params)
    script.inputs.append(Input(Compiled(output.rid), decode.at + 3.0))
    played = play(script, CostModel())
    assert played.first_token[0] > 3.0 and played.failed == 0


def test_a_part_of_a_recording_is_counted_alone(tmp_path, capsys):
    """What came before is played, so that the cache is as warm, and what came after is left out."""
    rig = RecordedRig(max_total_tokens=1000)
    rig.record(tmp_path / "a.sgnb")
    rig.run(1, b"a" * 40, max_new_tokens=5, ignore_eos=True)
    rig.run(2, b"b" * 40, max_new_tokens=5, ignore_eos=True)
    middle = rig.scheduler.clock() - rig.snapshot.time
    rig.run(3, b"a" * 40 + b"x", max_new_tokens=7, ignore_eos=True)
    last = rig.scheduler.clock() - rig.snapshot.time
    rig.run(4, b"b" * 40 + b"x", max_new_tokens=9, ignore_eos=True)
    recording = rig.save()
    whole = play(from_recording(recording), CostModel())
    assert (whole.requests, whole.generated_tokens) == (4, 26)
    tail = play(from_recording(recording, Window(middle)), CostModel())
    assert (tail.requests, tail.generated_tokens, tail.prompt_tokens) == (2, 16, 82)
    assert tail.cached_tokens == 80, "the cache is as it was"
    assert len(tail.first_token) == 2 and len(tail.gaps) == 6 + 8
    assert 0 < tail.seconds < whole.seconds and 0 < tail.steps < whole.steps
    part = play(from_recording(recording, Window(middle, last)), CostModel())
    assert (part.requests, part.generated_tokens) == (1, 7)
    head = play(from_recording(recording, Window(0.0, middle)), CostModel())
    assert (head.requests, head.cached_tokens) == (2, 0)
    short = from_recording(recording, Window(0.0, middle))
    assert len(short.steps) < len(short.measured) == len(from_recording(recording).steps), (
        "a cost is read from all steps there are"
    )
    with pytest.raises(RecordingError, match="nothing was asked from 1000 s on"):
        from_recording(recording, Window(1000.0))
    with pytest.raises(RecordingError, match="cannot go from 3 s to 2"):
        from_recording(recording, Window(3.0, 2.0))
    assert command.main([str(rig.path), "--from", str(middle), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]
    with pytest.raises(SystemExit):
        command.main([str(rig.path), "--check", "--to", "2"])
