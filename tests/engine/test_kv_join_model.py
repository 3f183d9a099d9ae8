"""Joins by KV on the embedded model, computed in a process of its own: what the branches said is known afterwards."""

from __future__ import annotations

import pytest

import sgnb as sgl

WORDS = [" hammer", " lemon", " guitar", " candle", " carpet", " rabbit"]
ARMS = [(0, 1), (2, 3), (4, 5)]
"""Which words the branches of each question name."""


@pytest.fixture(scope="module")
def engine():
    with sgl.launch(
        name="kv-join-model", runner_driver="process", dtype="float32", max_total_tokens=4096
    ) as made:
        yield made


@sgl.function
def boxes(s, named, method, options):
    s += "There are some boxes, and each box holds one thing.\n"
    branches = s.fork(len(named))
    for branch, word in zip(branches, named, strict=True):
        branch += f"One box is on the table. The box holds a{word}. It is"
        branch += sgl.gen("more", max_tokens=3, stop=[".", "\n"], temperature=0.0) + ".\n"
    if method is None:
        branches.join()
    else:
        branches.join("concate_and_append", method=method)
    s += "Question: What does one of the boxes hold?\nAnswer: One of the boxes holds a"
    s += sgl.select("thing", options)


def asked(engine, method):
    """(how often a word that a branch named won, the metas)."""
    right, metas = 0, []
    for mine in ARMS:
        named = [WORDS[at] for at in mine]
        others = [WORDS[at] for at in range(len(WORDS)) if at not in mine]
        state = boxes.run(named, method, [*others, named[1]], backend=engine)
        right += state["thing"] == named[1]
        metas.append(state.get_meta_info("thing"))
    return right, metas


def test_a_question_that_the_branches_answer_is_answered_after_a_join_by_kv(engine):
    by_text, texts = asked(engine, "text")
    by_kv, copies = asked(engine, "kv")
    unknown, _ = asked(engine, None)
    assert (by_text, by_kv) == (3, 3) and unknown < 3
    assert all(meta["joined_kv"] == "approximate" and meta["joined_tokens"] > 20 for meta in copies)
    for copy, text in zip(copies, texts, strict=True):  # what was named became far likelier in both ways
        assert copy["scores"][-1] > -4 and text["scores"][-1] > -4


def test_a_single_branch_is_joined_exactly(engine):
    """Nothing moves and nothing stands between: the copy is what is computed."""
    named, options = [WORDS[0]], WORDS[:3]
    by_text, by_kv = (boxes.run(named, method, options, backend=engine) for method in ("text", "kv"))
    near = zip(by_text.get_meta_info("thing")["scores"], by_kv.get_meta_info("thing")["scores"], strict=True)
    assert all(abs(one - other) < 0.02 for one, other in near)
    assert by_kv["thing"] == by_text["thing"]
