"""Fork, select and commit over real processes with the stub runner: what a program's dispatcher sees."""

from __future__ import annotations

import threading

import pytest

from sgnb.backends.base import Delta, Done, Failed
from sgnb.backends.engine import launch
from sgnb.errors import LimitError
from sgnb.lang.instruction import Block, Commit, Decode, Extend, Fork, Init, Select, TextPart
from sgnb.sampling_params import SamplingParams

PARAMS = SamplingParams(max_new_tokens=6, temperature=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def engine():
    with launch(runner="stub", name="states") as engine:
        yield engine


class Heard:
    """A sink that waits for ends."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.ends: dict[str, Done | Failed] = {}
        self._news = threading.Condition()

    def __call__(self, events) -> None:
        with self._news:
            for event in events:
                if isinstance(event, Delta):
                    self.text[event.rid] = self.text.get(event.rid, "") + event.text
                elif isinstance(event, Done | Failed):
                    self.ends[event.rid] = event
            self._news.notify_all()

    def wait(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.ends) >= count, 20), self.ends


def test_fork_select_and_commit_in_one_block(engine):
    heard = Heard()
    root, *arms = (engine.new_sid() for _ in range(4))
    rids = [engine.new_rid() for _ in range(5)]
    ops = [
        Init(root),
        Extend(root, (TextPart("One root for all of the arms,"),)),
        Commit(root),
        Fork(root, tuple(arms)),
        *(Extend(sid, (TextPart(f" arm {i}:"),)) for i, sid in enumerate(arms)),
        *(Decode(rid, sid, "x", PARAMS) for rid, sid in zip(rids, arms, strict=False)),
        Select(rids[3], root, "kind", (" first", " second", " first of all")),
        Extend(root, (TextPart(" it is"),)),
        Decode(rids[4], root, "y", PARAMS),
    ]
    engine.submit(Block("run", tuple(ops)), heard)
    heard.wait(5)
    assert all(isinstance(end, Done) for end in heard.ends.values()), heard.ends
    meta = heard.ends[rids[3]].meta
    assert heard.text[rids[3]] == (" first", " second", " first of all")[meta["choice"]]
    assert len(meta["scores"]) == len(meta["input_token_logprobs"]) == 3
    assert meta["scores"][meta["choice"]] == max(meta["scores"])
    whole = f"One root for all of the arms,{heard.text[rids[3]]} it is"
    for rid, prompt in [
        (rids[4], whole),
        *((rid, f"One root for all of the arms, arm {i}:") for i, rid in enumerate(rids[:3])),
    ]:
        params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
        assert engine.generate(prompt, sampling_params=params)["text"] == heard.text[rid]
    engine.release([root, *arms])


def test_a_select_without_options_fails_at_its_request(engine):
    heard = Heard()
    sid, rid = engine.new_sid(), engine.new_rid()
    engine.submit(Block("run", (Init(sid), Select(rid, sid, "x", ()))), heard)
    heard.wait(1)
    assert "no options" in str(heard.ends[rid].error)
    engine.release([sid])


def test_knobs_pause_and_history_over_the_wire(engine):
    assert engine.set(schedule_policy="fcfs")["schedule_policy"] == "fcfs"
    with pytest.raises(LimitError, match="page_size"):
        engine.set(page_size=4)
    engine.pause()
    heard = Heard()
    sid, rid = engine.new_sid(), engine.new_rid()
    engine.submit(
        Block("run", (Init(sid), Extend(sid, (TextPart("hi"),)), Decode(rid, sid, "x", PARAMS))), heard
    )
    engine.step(2)
    assert rid not in heard.ends
    engine.resume()
    heard.wait(1)
    assert engine.memory()["free"] > 0
    history = engine.history(limit=5000)
    kinds = {event["event"]["t"] for event in history["events"]}
    assert {"stats", "request", "step", "radix", "kv"} <= kinds
    engine.release([sid])
