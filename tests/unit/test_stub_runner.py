"""The stub runner: a function of the prefix, and a watchman over slots. No torch is imported by it."""

import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from sgnb.config import EngineArgs
from sgnb.engine.model_executor.model_runner import create_runner
from sgnb.engine.model_executor.stub_runner import STUB_EOS, STUB_VOCAB, SlotViolation, StubRunner
from sgnb.engine.model_store import ModelPath
from sgnb.messages import ModelWorkerBatch
from sgnb.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def batch(rows, *, step=0, params=None, seeds=None, drawn=None, banned=None, bitmask=None, sample=None):
    """``rows``: (req_pool_idx, new ids, prefix_len, out slots, prefix_locs or None)."""
    n = len(rows)
    return ModelWorkerBatch(
        step=step,
        forward_mode="extend",
        input_ids=[t for r in rows for t in r[1]],
        req_pool_indices=[r[0] for r in rows],
        seq_lens=[r[2] + len(r[1]) for r in rows],
        prefix_lens=[r[2] for r in rows],
        extend_lens=[len(r[1]) for r in rows],
        out_cache_loc=[s for r in rows for s in r[3]],
        prefix_locs=[r[4] for r in rows],
        sample=sample or [True] * n,
        params=params or [GREEDY] * n,
        seeds=seeds or [0] * n,
        positions_drawn=drawn or [0] * n,
        banned=banned or [[]] * n,
        bitmask=bitmask,
    )


@pytest.fixture
def runner():
    return StubRunner(EngineArgs(runner="stub", max_total_tokens=4096, max_running_requests=8))


def test_needs_no_torch():
    code = (
        "import sys; from sgnb.config import EngineArgs; from pathlib import Path\n"
        "from sgnb.engine.model_store import ModelPath\n"
        "from sgnb.engine.model_executor.model_runner import create_runner\n"
        "r = create_runner(EngineArgs(runner='stub'), ModelPath('stub', Path('.'), 'gguf'), lambda *a: None)\n"
        "assert r.vocab_size == 259 and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_create_runner_reports_progress(tmp_path):
    seen = []
    model = ModelPath("stub", tmp_path, "gguf")
    runner = create_runner(EngineArgs(runner="stub", max_total_tokens=100), model, lambda *a: seen.append(a))
    assert isinstance(runner, StubRunner) and seen == [("weights", 1, 1), ("kv", 100, 100)]


def test_depends_on_the_whole_prefix_and_nothing_else(runner):
    whole = runner.forward(batch([(0, [1, 2, 3, 4], 0, [1, 2, 3, 4], [])])).next_token_ids
    runner.forward(batch([(1, [1, 2], 0, [5, 6], None)], sample=[False]))
    assert runner.forward(batch([(1, [3, 4], 2, [7, 8], None)])).next_token_ids == whole
    shared = batch([(2, [4], 3, [9], [1, 2, 3]), (3, [9, 2, 3, 4], 0, [10, 11, 12, 13], [])])
    tokens = runner.forward(shared).next_token_ids
    assert tokens[0] == whole[0]
    others = {
        runner.forward(batch([(4, [t, 2, 3, 4], 0, [20, 21, 22, 23], [])])).next_token_ids[0]
        for t in range(40)
    }
    assert len(others) > 5


def test_text_is_mostly_letters_and_ends_now_and_then(runner):
    counts: Counter[int] = Counter()
    ids, at = [65], 1
    for _ in range(2000):
        row = (0, ids[-1:], len(ids) - 1, [at], [] if len(ids) == 1 else None)
        token = runner.forward(batch([row])).next_token_ids[0]
        counts[token] += 1
        ids.append(token)
        at += 1
    assert 1 <= counts.pop(STUB_EOS) <= 40
    assert set(counts) <= set(b" abcdefghijklmnopqrstuvwxyz,.") and counts[32] > 100


def test_not_sampled_rows_give_no_token(runner):
    assert runner.forward(batch([(0, [1], 0, [1], [])], sample=[False])).next_token_ids == [-1]


def test_a_slot_written_by_another_is_caught_in_the_same_step(runner):
    runner.forward(batch([(0, [1, 2], 0, [1, 2], [])]))
    with pytest.raises(SlotViolation, match="no longer holds token 1"):
        runner.forward(batch([(0, [3], 2, [3], None), (1, [7], 0, [2], [])]))


def test_a_freed_slot_is_caught_at_the_next_read(runner):
    runner.forward(batch([(0, [1, 2], 0, [1, 2], [])]))
    runner.forward(batch([(1, [7], 0, [1], [])]))
    with pytest.raises(SlotViolation, match="slot 1 no longer holds token 0"):
        runner.forward(batch([(0, [3], 2, [3], None)]))


@pytest.mark.parametrize("locs", [[2, 1], [1, 5], [4, 5], [1, 9]])
def test_a_wrong_prefix_is_caught(runner, locs):
    runner.forward(batch([(0, [1, 2], 0, [1, 2], [])]))
    runner.forward(batch([(1, [7, 2], 0, [4, 5], [])]))
    if locs == [4, 5]:  # sound, only another prefix: accepted
        runner.forward(batch([(2, [3], 2, [6], locs)]))
        return
    with pytest.raises(SlotViolation, match="must hold token"):
        runner.forward(batch([(2, [3], 2, [6], locs)]))


def test_overwriting_the_own_prefix_is_caught(runner):
    runner.forward(batch([(0, [1, 2], 0, [1, 2], [])]))
    with pytest.raises(SlotViolation, match="its own prefix"):
        runner.forward(batch([(0, [3], 2, [1], None)]))


def test_a_table_that_does_not_fit_is_caught(runner):
    runner.forward(batch([(0, [1, 2], 0, [1, 2], [])]))
    with pytest.raises(SlotViolation, match="its table holds 2"):
        runner.forward(batch([(0, [3], 3, [5], None)]))


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ((0, [-5], 0, [1], []), "input_ids: expected 0..258, found -5"),
        ((0, [2**63], 0, [1], []), "input_ids"),
        ((0, [1], 0, [5000], []), "out_cache_loc: expected 0..4096"),
        ((8, [1], 0, [1], []), "req_pool_indices: expected 0..7"),
        ((0, [], 0, [], []), "row 0"),
        ((0, [1], 1, [1], [2, 3]), "prefix_locs: expected 1 slots, found 2"),
        ((0, [1, 2], 0, [3, 3], []), "twice"),
    ],
)
def test_B148_records_that_leave_the_pool_are_refused_before_anything_is_written(runner, row, words):
    with pytest.raises(ValueError, match=words):
        runner.forward(batch([row]))
    assert (runner._token == -1).all()


def test_injected_nan_hits_its_row_only(runner):
    runner.nan_rows = lambda b, row: b.step == 3 and row == 1
    rows = [(0, [1], 0, [1], []), (1, [2], 0, [2], [])]
    assert runner.forward(batch(rows, step=2)).bad_rows == []
    out = runner.forward(batch([(0, [3], 1, [3], None), (1, [4], 1, [4], None)], step=3))
    assert out.bad_rows == [1] and out.next_token_ids[1] == -1 and out.next_token_ids[0] >= 0


def test_banned_and_bitmask_are_obeyed(runner):
    first = runner.forward(batch([(0, [1], 0, [1], [])])).next_token_ids[0]
    other = runner.forward(batch([(0, [1], 0, [1], [])], banned=[[first]])).next_token_ids[0]
    assert other != first
    bits = np.zeros(32 * 9, dtype=np.uint8)
    bits[77] = 1
    mask = np.packbits(bits, bitorder="little").tobytes()
    assert runner.forward(batch([(0, [1], 0, [1], [])], bitmask=mask)).next_token_ids == [77]
    out = runner.forward(batch([(0, [1], 0, [1], [])], bitmask=mask, banned=[[77]]))
    assert out.next_token_ids == [-1] and out.bad_rows == [0]


def test_seeds_matter_only_when_sampling(runner):
    def tokens(params):
        made = [
            batch([(0, [9], 0, [1], [])], params=[params], seeds=[s], drawn=[d])
            for s in range(6)
            for d in range(6)
        ]
        return [runner.forward(b).next_token_ids[0] for b in made]

    assert len(set(tokens(GREEDY))) == 1
    drawn = tokens(SamplingParams(temperature=1.0))
    assert len(set(drawn)) > 4 and drawn == tokens(SamplingParams(temperature=1.0))


def test_logprobs(runner):
    params = SamplingParams(temperature=0.0, return_logprob=True, top_logprobs_num=3)
    out = runner.forward(batch([(0, [1], 0, [1], [])], params=[params]))
    (lp,) = out.logprobs
    assert lp.id == out.next_token_ids[0] and lp.top[0] == (lp.logprob, lp.id) and len(lp.top) == 3
    assert max(i for _, i in lp.top) < STUB_VOCAB
