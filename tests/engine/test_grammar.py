"""Constraints on the embedded model through a whole engine: real masks, real compilers, real faults."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import threading
from pathlib import Path
from typing import Literal

import pytest
from process_rig import until

import sgnb as sgl
from sgnb.backends.engine import launch
from sgnb.errors import ConstraintError, RequestError

GREEDY = {"temperature": 0, "max_new_tokens": 60}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "Größe", "多云"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
}
BOMB = "|".join(f"(.{{1,{i}}}[a-{chr(98 + i % 20)}]{{1,{i}}}){{1,{i}}}" for i in range(60, 150))


@dataclasses.dataclass
class Country:
    name: str
    continent: Literal["Europe", "Asia", "Africa"]
    island: bool


@pytest.fixture(scope="module")
def engine():
    with launch(name="grammar", dtype="float32", max_total_tokens=8000, threads=1) as engine:
        engine.generate("a", sampling_params={**GREEDY, "regex": "b"})  # the library loads
        yield engine


def chat(question: str) -> str:
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def test_regex_gives_digits_and_says_why_it_ended(engine):
    done = engine.generate(
        chat("How old is the earth?"), sampling_params={**GREEDY, "regex": "[0-9]{3} years"}
    )
    assert re.fullmatch("[0-9]{3} years", done["text"])
    meta = done["meta_info"]
    assert meta["finish_reason"] == {"type": "stop", "matched": None}
    assert meta["completion_tokens"] == len(done["output_ids"])


def test_json_schema_gives_an_object(engine):
    params = [{**GREEDY, "json_schema": schema} for schema in (PERSON, json.dumps(PERSON))]
    one, other = engine.generate([chat("Invent a person as JSON.")] * 2, sampling_params=params)
    person = json.loads(one["text"])
    assert one["text"] == other["text"]
    assert sorted(person) == ["age", "likes", "name"] and 0 <= person["age"] <= 120
    assert set(person["likes"]) <= {"tea", "Größe", "多云"}


def test_ebnf_is_derived_from_root(engine):
    grammar = 'root ::= pair (", " pair)*\npair ::= [a-z]+ "=" [0-9]+\n'
    done = engine.generate("Settings: ", sampling_params={**GREEDY, "ebnf": grammar, "max_new_tokens": 30})
    text = done["text"] if done["meta_info"]["finish_reason"]["type"] == "stop" else done["text"] + "=1"
    assert re.match(r"[a-z]+(=[0-9]+(, [a-z]+)?)*", text)


@pytest.mark.grammar
def test_B008_B047_B052_text_of_several_tokens_is_reachable(engine):
    for pattern in (
        "(多云|晴){2}",
        r"[A-ZÄÖÜ][a-zäöüß ]{1,8}\.",
        "[\U0001f600-\U0001f64f]{2}",
        "[\u4e00-\u9fff]{2}",
    ):
        done = engine.generate("x ", sampling_params={"temperature": 1.0, "seed": 3, "regex": pattern})
        assert re.fullmatch(pattern, done["text"]), (pattern, done["text"])


def test_special_tokens_are_no_text_of_a_grammar(engine):
    done = engine.generate(chat("Hi"), sampling_params={**GREEDY, "regex": r"[\s\S]{5,40}"})
    kept = set(done["output_ids"])
    assert not kept & set(range(17)) and 5 <= len(done["text"]) <= 40


def test_eight_at_once_with_and_without_a_grammar(engine):
    prompts = [chat(f"Count from {n}.") for n in range(8)]
    plain = {"temperature": 0, "max_new_tokens": 12}
    params = [{**plain, "regex": "[0-9 ]{1,9}"} if n % 2 else plain for n in range(8)]
    together = engine.generate(prompts, sampling_params=params)
    for n, (prompt, done) in enumerate(zip(prompts, together, strict=True)):
        if n % 2:
            assert re.fullmatch("[0-9 ]{1,9}", done["text"])
        else:
            assert done["text"] == engine.generate(prompt, sampling_params=plain)["text"]


def test_logprobs_tell_what_the_grammar_did_and_change_nothing(engine):
    params = {**GREEDY, "regex": "(alpha|beta)!", "max_new_tokens": 9}
    bare = engine.generate(chat("Choose."), sampling_params=params)
    done = engine.generate(
        chat("Choose."), sampling_params={**params, "return_logprob": True, "top_logprobs_num": 2}
    )
    assert done["text"] == bare["text"] and re.fullmatch("(alpha|beta)!", done["text"])
    told = done["meta_info"]["output_token_grammar"]
    assert len(told) == len(done["output_ids"])
    assert all(1 <= one["allowed"] < 49152 and one["forced"] == (one["allowed"] == 1) for one in told)
    assert all(0 <= one["ruled_out"] < 49152 for one in told)
    assert sum(one["forced"] for one in told) == done["meta_info"]["forced_tokens"]


@sgl.function
def unfinished(s):
    s += "x" + sgl.gen("x", ebnf='root ::= "a" | *')


@pytest.mark.grammar
def test_B023_B038_B069_what_the_compiler_refuses_fails_alone(engine):
    scheduler = engine.client.control("check")
    stream = threading.Thread(
        target=engine.generate,
        args=("go on",),
        kwargs={"sampling_params": {"max_new_tokens": 60, "ignore_eos": True}},
    )
    stream.start()
    with pytest.raises(RequestError, match=r"at line 1, column 14, in `root ::= \"a\" | \*`") as caught:
        unfinished.run(backend=engine)["x"]
    assert caught.value.code == "grammar" and "a class [a-z]" in caught.value.hint
    assert caught.value.position is not None and "ebnf=" in caught.value.position.text
    # What can be seen without the compiler is refused before anything is queued.
    for schema, place in (
        ({"type": "string", "pattern": r"^ok\!$("}, "/pattern"),
        ({"$ref": "#/$defs/nope"}, "nope"),
    ):
        with pytest.raises(ConstraintError, match=place):
            engine.generate("x", sampling_params={**GREEDY, "json_schema": schema})
    left = engine.generate("1+1+", sampling_params={**GREEDY, "ebnf": 'root ::= root "+" t | t\nt ::= [0-9]'})
    assert re.match("[0-9]", left["text"])
    stream.join(60)
    assert not stream.is_alive() and scheduler["ok"]


@pytest.mark.grammar
def test_B064_F48_F49_bomb_is_killed_and_stops_nobody(engine):
    ended: list[BaseException] = []

    def bomb() -> None:
        try:
            engine.generate("x", sampling_params={**GREEDY, "regex": BOMB})
        except RequestError as error:
            ended.append(error)

    thread = threading.Thread(target=bomb)
    thread.start()
    until(lambda: engine.stats()["num_grammar_queue_reqs"] == 1, 30)
    done = engine.generate("x", sampling_params={**GREEDY, "regex": "[0-9]{2}"})
    assert re.fullmatch("[0-9]{2}", done["text"]), "a small one is compiled beside it"
    thread.join(60)
    assert ended and ended[0].code == "grammar_timeout", ended
    assert engine.stats()["num_grammar_queue_reqs"] == 0


def workers(engine) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command, parent = (
                (entry / "cmdline").read_bytes(),
                (entry / "stat").read_text().rpartition(")")[2],
            )
        except OSError:
            continue
        if b"grammar/worker.py" in command and int(parent.split()[1]) == engine.client.welcome.scheduler_pid:
            found.append(int(entry.name))
    return found


def test_killed_worker_is_started_again(engine):
    assert len(workers(engine)) == 1
    os.kill(workers(engine)[0], signal.SIGKILL)
    until(lambda: not workers(engine))
    done = engine.generate("x", sampling_params={**GREEDY, "regex": "[a-c]{7}"})
    assert re.fullmatch("[a-c]{7}", done["text"])


def test_worker_ends_with_the_engine():
    with launch(runner="stub", name="grammar-end") as engine:
        engine.generate("x", sampling_params={"regex": "a"})
        pids = workers(engine)
        assert len(pids) == 1
        os.kill(engine.client.welcome.scheduler_pid, signal.SIGKILL)
        until(lambda: not Path(f"/proc/{pids[0]}").exists(), 5)


def test_prompt_logprobs_agree_with_those_of_the_output(engine):
    params = {
        "temperature": 0,
        "max_new_tokens": 6,
        "return_logprob": True,
        "top_logprobs_num": 2,
        "ignore_eos": True,
    }
    first = engine.generate("The capital of France is", sampling_params=params)
    whole = first["prompt_ids"] + first["output_ids"]
    start = len(first["prompt_ids"]) - 1
    again = engine.generate(
        input_ids=whole,
        sampling_params={
            **params,
            "max_new_tokens": 1,
            "logprob_start_len": start,
            "return_text_in_logprobs": True,
        },
    )
    told = again["meta_info"]["input_token_logprobs"]
    assert told[0][0] is None and [token for _, token, _ in told] == whole[start:]
    drawn = first["meta_info"]["output_token_logprobs"]
    assert [value for value, _, _ in told[1:]] == pytest.approx([value for value, _, _ in drawn], abs=1e-3)
    tops = again["meta_info"]["input_top_logprobs"]
    assert tops[0] is None and all(len(one) == 2 for one in tops[1:])
    assert "".join(text for _, _, text in told[1:]) == first["text"]
    assert [one[0][2] for one in tops[1:]] == [text for _, _, text in told[1:]], (
        "greedy: the likeliest, with its text"
    )
    assert first["meta_info"]["output_top_logprobs"][0][0][2] is None, "texts only where they were asked for"
    assert again["meta_info"]["cached_tokens"] <= start


def test_program_gets_objects_from_the_model(engine):
    @sgl.function
    def ask(s):
        s += sgl.user("Describe France.")
        s += sgl.assistant(sgl.gen("country", json_schema=Country, parse=True, max_tokens=60))
        s += sgl.user("How many letters has its name?")
        s += sgl.assistant(sgl.gen_int("letters", max_tokens=4, parse=True))
        s += sgl.user("Is it large?")
        s += sgl.assistant(sgl.gen("large", dtype=Literal["yes", "no"], n=2, parse=True))

    state = ask.run(backend=engine, temperature=0)
    country = state["country"]
    assert isinstance(country, Country) and type(country.island) is bool
    assert type(state["letters"]) is int
    assert set(state["large"]) <= {"yes", "no"} and len(state["large"]) == 2
    assert state.get_meta_info("large")[0]["finish_reason"]["type"] == "stop"
