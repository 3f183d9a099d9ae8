"""``Engine.generate`` and the Backend methods over real processes, with the stub runner."""

from __future__ import annotations

import _thread
import gc
import threading
import time
import weakref

import pytest

from sgnb.backends.base import Delta, Done, Failed, Started
from sgnb.backends.engine import launch
from sgnb.errors import LimitError, RequestError
from sgnb.lang.instruction import Block, Decode, Extend, Init, TextPart
from sgnb.messages import EngineStats, RequestEvent
from sgnb.sampling_params import SamplingParams

LONG = {"max_new_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine():
    with launch(runner="stub", name="gen", stub_step_seconds=0.001) as engine:
        yield engine


def until_idle(engine) -> None:
    deadline = time.monotonic() + 10
    while (stats := engine.stats())["num_running_reqs"] or stats["num_queue_reqs"] or stats["num_sessions"]:
        assert time.monotonic() < deadline, stats
        time.sleep(0.02)


def test_result_has_sglangs_names(engine):
    done = engine.generate(
        "hello", sampling_params={"max_new_tokens": 6, "ignore_eos": True, "return_logprob": True}
    )
    assert sorted(done) == ["meta_info", "output_ids", "prompt_ids", "text"]
    meta = done["meta_info"]
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    assert {"id", "prompt_tokens", "cached_tokens", "completion_tokens", "e2e_latency"} <= set(meta)
    assert [token for _, token, _ in meta["output_token_logprobs"]] == done["output_ids"]


def test_second_time_the_prompt_is_cached(engine):
    engine.flush_cache()
    prompt = "the same words as before"
    params = {"max_new_tokens": 1, "temperature": 0}
    first = engine.generate(prompt, sampling_params=params)
    second = engine.generate(prompt, sampling_params=params)
    assert first["meta_info"]["cached_tokens"] == 0
    assert second["meta_info"]["cached_tokens"] == len(prompt) - 1
    assert first["text"] == second["text"]


def test_list_of_prompts_runs_together_in_order(engine):
    prompts = [f"prompt {i}" for i in range(8)]
    params = {"max_new_tokens": 30, "temperature": 0, "ignore_eos": True}
    together = engine.generate(prompts, sampling_params=params)
    assert [one["text"] for one in together] == [
        engine.generate(p, sampling_params=params)["text"] for p in prompts
    ]
    steps = [(one["meta_info"]["first_step"], one["meta_info"]["last_step"]) for one in together]
    assert max(first for first, _ in steps) < min(last for _, last in steps)
    assert engine.generate([], sampling_params=params) == []
    many = engine.generate(["a", "b"], sampling_params=[{"max_new_tokens": 1}, {"max_new_tokens": 2}])
    assert [len(one["output_ids"]) for one in many] == [1, 2]


def test_ids_in_equal_text_in(engine):
    params = {"max_new_tokens": 5, "temperature": 0}
    by_text = engine.generate("abc", sampling_params=params)
    assert engine.generate(input_ids=list(b"abc"), sampling_params=params)["text"] == by_text["text"]
    both = engine.generate(input_ids=[list(b"abc"), list(b"x")], sampling_params=params)
    assert both[0]["output_ids"] == by_text["output_ids"]


@pytest.mark.parametrize("ids", [[1, -5], [2**63], [259], [1.0], ["a"], [True], [None]])
def test_B148_token_ids_out_of_range_are_refused_before_anything_is_queued(engine, ids):
    before = engine.client.bytes_sent
    with pytest.raises(LimitError, match=r"input_ids\["):
        engine.generate(input_ids=ids)
    assert engine.client.pending == 0 and engine.client.bytes_sent - before < 200


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({}, "either a prompt or input_ids"),
        ({"prompt": "a", "input_ids": [1]}, "either a prompt or input_ids"),
        ({"prompt": 5}, "a str or a list of them, not int"),
        ({"prompt": b"bytes"}, "a str or a list of them, not bytes"),
        ({"input_ids": 5}, "a list of token ids, not int"),
        ({"prompt": "a", "sampling_params": 5}, "must be a dict, not int"),
        ({"prompt": "a", "sampling_params": {"stop_regex": "x"}}, "stop_regex is not supported"),
        ({"prompt": ["a", 5]}, "must be a str"),
        ({"prompt": "a", "sampling_params": {"nonsense": 1}}, "nonsense"),
        ({"prompt": "a", "sampling_params": {"temprature": 1}}, "Did you mean 'temperature'"),
        ({"prompt": "a", "sampling_params": {"temperature": -1}}, "temperature"),
        ({"prompt": "a", "sampling_params": {"stop": ""}}, "stop string is empty"),
        ({"prompt": "a", "sampling_params": {"stop_token_ids": [999]}}, "stop_token_ids"),
        ({"prompt": ["a"], "sampling_params": [{}, {}]}, "2 sampling_params for 1"),
        ({"prompt": "x" * (5 << 20)}, "prompt has"),
        ({"prompt": "a\ud800"}, "surrogate"),
    ],
)
def test_wrong_calls_are_refused_with_words(engine, call, words):
    with pytest.raises(LimitError, match=words):
        engine.generate(**call)
    assert engine.client.pending == 0


def test_prompt_that_cannot_fit_fails_alone(engine):
    with pytest.raises(RequestError) as caught:
        engine.generate("x" * 200_000, sampling_params={"max_new_tokens": 1})
    assert caught.value.code
    assert engine.generate("x", sampling_params={"max_new_tokens": 1})["text"]
    until_idle(engine)


def test_f15_many_threads_at_once(engine):
    wrong: list[object] = []
    params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    expected = {
        f"thread {i}": engine.generate(f"thread {i}", sampling_params=params)["text"] for i in range(8)
    }

    def run(prompt: str) -> None:
        for _ in range(5):
            text = engine.generate(prompt, sampling_params=params)["text"]
            if text != expected[prompt]:
                wrong.append((prompt, text))

    threads = [threading.Thread(target=run, args=(prompt,)) for prompt in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong and not any(thread.is_alive() for thread in threads)
    until_idle(engine)


@pytest.mark.parametrize("delay", [0.0, 0.01, 0.1, 0.3])
def test_f8_interrupt_aborts_and_gives_the_prompt_back(engine, delay):
    timer = threading.Timer(delay, _thread.interrupt_main)
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        engine.generate(["a", "b", "c"], sampling_params=LONG)
        time.sleep(5)
    assert time.monotonic() - started < delay + 1.0
    until_idle(engine)
    assert engine.state == "idle" or engine.client.pending == 0


@pytest.mark.parametrize("gap", [0.0, 0.002, 0.02])
def test_f9_interrupt_twice(engine, gap):
    hits = 0
    timers = [threading.Timer(0.1 + gap * i, _thread.interrupt_main) for i in range(2)]
    try:
        try:
            for timer in timers:
                timer.start()
            engine.generate("a", sampling_params=LONG)
        except KeyboardInterrupt:
            hits += 1
        time.sleep(0.3)
    except KeyboardInterrupt:
        hits += 1  # the second one came later than the first one's clean-up
    for timer in timers:
        timer.join()
    assert hits >= 1
    until_idle(engine)
    assert engine.generate("x", sampling_params={"max_new_tokens": 1})["text"]


def test_abort_all_ends_requests_with_abort(engine):
    results: list[dict] = []
    thread = threading.Thread(
        target=lambda: results.extend(engine.generate(["a", "b"], sampling_params=LONG))
    )
    thread.start()
    while engine.client.pending < 2:
        time.sleep(0.005)
    time.sleep(0.1)
    assert engine.abort_all() == {"aborted": 2}
    thread.join(5)
    assert [one["meta_info"]["finish_reason"]["type"] for one in results] == ["abort", "abort"]
    until_idle(engine)


def run_block(engine, instructions, seconds: float = 10.0) -> list[object]:
    events: list[object] = []
    done = threading.Event()

    def sink(new) -> None:
        events.extend(new)
        if any(isinstance(event, (Done, Failed)) for event in new):
            done.set()

    engine.submit(Block("run", tuple(instructions)), sink)
    assert done.wait(seconds)
    return events


def test_backend_gives_started_deltas_and_one_done(engine):
    sid, rid = engine.new_sid(), engine.new_rid()
    events = run_block(
        engine,
        [
            Init(sid),
            Extend(sid, (TextPart("hello"),)),
            Decode(rid, sid, "x", SamplingParams(max_new_tokens=9, ignore_eos=True)),
        ],
    )
    assert isinstance(events[0], Started) and isinstance(events[-1], Done)
    assert sum(isinstance(event, Done) for event in events) == 1
    text = "".join(event.text for event in events if isinstance(event, Delta))
    assert len(text) == 9 and events[-1].meta["completion_tokens"] == 9
    template = engine.template()
    assert template.roles["user"][0].startswith("<|im_start|>user")
    engine.release([sid])
    until_idle(engine)


def test_unknown_session_is_a_failure_of_that_request(engine):
    events = run_block(engine, [Decode(engine.new_rid(), engine.new_sid(), "x", SamplingParams())])
    assert isinstance(events[-1], Failed)


def test_release_is_safe_in_a_finaliser(engine):
    """Collected in the middle of anything, on any thread, while locks are held."""

    class State:
        def __init__(self) -> None:
            self.sid = engine.new_sid()
            run_block(
                engine,
                [Init(self.sid), Decode(engine.new_rid(), self.sid, "x", SamplingParams(max_new_tokens=1))],
            )
            weakref.finalize(self, engine.release, [self.sid])

    states = [State() for _ in range(20)]
    assert engine.stats()["num_sessions"] == 20
    with engine.client._changed, engine._lock:
        del states
        gc.collect()
    until_idle(engine)


def test_telemetry_reaches_subscribers_and_the_socket_is_there_only_for_them(engine):
    events: list[object] = []
    stop = engine.subscribe(events.append)
    deadline = time.monotonic() + 5
    while not any(isinstance(event, EngineStats) for event in events):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    engine.generate("count me", sampling_params={"max_new_tokens": 3})
    while not any(isinstance(event, RequestEvent) and event.state == "finished" for event in events):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert engine.last_stats.max_total_num_tokens > 0
    stop()
    time.sleep(0.1)
    count = len(events)
    engine.generate("not me", sampling_params={"max_new_tokens": 1})
    time.sleep(0.6)
    assert len(events) == count
