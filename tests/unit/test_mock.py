"""The scripted backend keeps the contract of ``backends.base``."""

from __future__ import annotations

import threading
import time

import pytest

from sgnb.backends.base import Delta, Done, Failed, Started
from sgnb.backends.mock import HANG, MockBackend
from sgnb.backends.mock_script import tokens_of
from sgnb.errors import EngineDied
from sgnb.lang.instruction import Block, Decode, Extend, Init, MarkPart, TextPart
from sgnb.sampling_params import SamplingParams


class Sink:
    def __init__(self):
        self.events = []
        self.changed = threading.Condition()

    def __call__(self, events):
        with self.changed:
            self.events += events
            self.changed.notify_all()

    def of(self, rid):
        return [event for event in self.events if event.rid == rid]

    def ended(self, *rids):
        def all_ended():
            ends = [e.rid for e in self.events if isinstance(e, Done | Failed)]
            assert len(ends) == len(set(ends)), "more than one end"
            return set(rids) <= set(ends)

        with self.changed:
            assert self.changed.wait_for(all_ended, 10)


@pytest.fixture
def sink():
    return Sink()


def block(*gens, sid="m.s1", **params):
    ops = [Init(sid), Extend(sid, (MarkPart("user", True), TextPart("hi"), MarkPart("user", False)))]
    return Block("r", (*ops, *(Decode(f"{sid}.{n}", sid, n, SamplingParams.make(params)) for n in gens)))


@pytest.mark.parametrize(
    ("output", "params", "text", "finish"),
    [
        ("one two three", {}, "one two three", {"type": "eos", "matched": 0}),
        ("one two three", {"max_new_tokens": 2}, "one two", {"type": "length", "matched": None}),
        ("one two three", {"max_new_tokens": 0}, "", {"type": "length", "matched": None}),
        ("one\ntwo;three", {"stop": [";", "\n"]}, "one", {"type": "stop", "matched": "\n"}),
        ("stop", {"stop": "stop"}, "", {"type": "stop", "matched": "stop"}),
    ],
)
def test_outputs_end_as_an_engine_would_end_them(output, params, text, finish, sink):
    backend = MockBackend(output)
    backend.submit(block("x", **params), sink)
    sink.ended("m.s1.x")
    events = sink.of("m.s1.x")
    assert isinstance(events[0], Started) and isinstance(events[-1], Done)
    assert "".join(e.text for e in events if isinstance(e, Delta)) == text
    assert events[-1].finish == finish and events[-1].meta["completion_tokens"] == len(tokens_of(text))
    backend.shutdown()


def test_prompts_grow_by_what_was_generated(sink):
    backend = MockBackend({"a": "A", "b": ["B"]})
    backend.submit(block("a", "b"), sink)
    sink.ended("m.s1.a", "m.s1.b")
    (_, first), (_, second) = backend.prompts
    assert second == first + "A" and first.startswith("<|im_start|>user\nhi<|im_end|>")
    backend.shutdown()


def test_script_forms_and_failures(sink):
    def script(prompt, name, params):
        if name == "bad":
            raise ValueError("broken")
        return f"{name}{len(prompt) > 0}{params.max_new_tokens}"

    backend = MockBackend(script)
    backend.submit(block("x"), sink)
    backend.submit(block("bad", sid="m.s2"), sink)
    sink.ended("m.s1.x", "m.s2.bad")
    assert "".join(e.text for e in sink.of("m.s1.x") if isinstance(e, Delta)) == "xTrue128"
    assert "ValueError: broken" in str(sink.of("m.s2.bad")[-1].error)
    short = MockBackend(["only one"])
    short.submit(block("x", "y"), sink_two := Sink())
    sink_two.ended("m.s1.x", "m.s1.y")
    assert "no output number 2" in str(sink_two.of("m.s1.y")[-1].error)
    backend.shutdown()
    short.shutdown()


def test_abort_gives_each_request_its_one_end(sink):
    backend = MockBackend(HANG)
    backend.submit(block("x", "y"), sink)
    backend.abort(["m.s1.x", "m.s1.y"])
    backend.abort(["m.s1.x"])
    sink.ended("m.s1.x", "m.s1.y")
    assert all(sink.of(rid)[-1].finish["type"] == "abort" for rid in ("m.s1.x", "m.s1.y"))
    backend.shutdown()


def test_death_fails_all_and_refuses_more(sink):
    backend = MockBackend("word " * 500, delay=0.002)
    backend.submit(block("x", "y"), sink)
    time.sleep(0.02)
    backend.kill("gone")
    sink.ended("m.s1.x", "m.s1.y")
    assert isinstance(sink.of("m.s1.y")[-1].error, EngineDied)
    with pytest.raises(EngineDied, match="gone"):
        backend.submit(block("z"), sink)
