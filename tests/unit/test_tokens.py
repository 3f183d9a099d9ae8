"""Generated texts as token ids: saved states and forks from the middle of a text have the very ids."""

from __future__ import annotations

import json

import pytest
from whole_engine import WholeEngine

import sgnb as sgl
from sgnb.backends.mock import MockBackend
from sgnb.engine.tokenizer.detokenizer import text_of_ids


@pytest.fixture
def engine():
    found = WholeEngine()
    yield found
    found.shutdown()


@sgl.function
def story(s):
    s += "Once there was a "
    s += sgl.gen("hero", max_tokens=12, ignore_eos=True)
    s += " and then "
    s += sgl.gen("end", max_tokens=20, stop="e", ignore_eos=True)


def session_ids(engine, state):
    """What the engine has of a state's session once everything pending is computed there."""
    state += sgl.gen("probe", max_tokens=1, ignore_eos=True, temperature=0)
    state.sync()
    engine.settle()
    return list(engine.scheduler.sessions[state.sid].ids)


def test_a_loaded_state_has_the_very_token_ids(engine, tmp_path):
    state = story.run(backend=engine, seed=5)
    state.save(tmp_path / "s.json")
    kinds = [step[0] for step in json.loads((tmp_path / "s.json").read_text())["steps"]]
    assert kinds.count("tokens") == 2
    loaded = sgl.load_state(tmp_path / "s.json", backend=engine)
    assert loaded.text() == state.text() and loaded["end"] == state["end"]
    loaded.save(tmp_path / "again.json")
    again = sgl.load_state(tmp_path / "again.json", backend=engine)
    ids = session_ids(engine, state)
    assert session_ids(engine, loaded) == ids == session_ids(engine, again)


def test_another_model_gets_the_text(engine, tmp_path):
    state = story.run(backend=engine, seed=5)
    state.save(tmp_path / "s.json")
    mock = MockBackend({"more": "!"})
    loaded = sgl.load_state(tmp_path / "s.json", backend=mock)
    loaded += sgl.gen("more")
    assert loaded.text() == state.text() + "!"
    assert mock.prompts == [("more", state.text())]
    mock.shutdown()


@pytest.mark.parametrize("count", [0, 1, 5, 12])
def test_a_fork_from_the_middle_of_a_text_has_its_ids(engine, count):
    state = story.run(backend=engine, seed=5)
    state.sync()
    prompt = len("Once there was a ")
    before = list(engine.scheduler.sessions[state.sid].ids)
    branch = state.fork_at("hero", count)
    assert branch.text() == state.text()[: len(branch.text())]
    assert session_ids(engine, branch)[: prompt + count] == before[: prompt + count]
    meta = branch.get_meta_info("probe")
    assert meta["cached_tokens"] >= prompt + count - 1
    assert branch["probe"] is not None and "hero" not in branch


@pytest.mark.parametrize(
    ("name", "count", "message"),
    [
        ("nobody", 1, "'nobody' is no generation of this state's text"),
        ("hero", 99, "the text has 12 tokens"),
        ("hero", "2", "the text has 12 tokens"),
    ],
)
def test_wrong_forks_have_a_place(engine, name, count, message):
    state = story.run(backend=engine, seed=5)
    with pytest.raises(sgl.ProgramError, match=message) as caught:
        state.fork_at(name, count)
    assert caught.value.position is not None and caught.value.hint


def test_a_mock_has_no_tokens():
    mock = MockBackend({"x": "one two"})

    @sgl.function
    def prog(s):
        s += sgl.gen("x")

    with pytest.raises(sgl.ProgramError, match="the tokens of this text are not known"):
        prog.run(backend=mock).fork_at("x", 1)
    mock.shutdown()


def test_text_of_ids_ends_with_a_whole_character():
    table = [b"a", "é".encode()[:1], "é".encode()[1:], b"\xff"]
    assert text_of_ids([0, 1], table) == ("a", 1)
    assert text_of_ids([0, 1, 2], table) == ("aé", 3)
    assert text_of_ids([], table) == ("", 0)
    assert text_of_ids([3, 99], table) == ("�", 2)
