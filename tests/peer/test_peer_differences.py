"""Where sgnb differs from SGLang's interpreter on purpose; ``docs/sglang.md`` lists the same ids.

D1 to D15 are defects of SGLang's interpreter: what it does is shown where that takes no server and no luck, then what sgnb
does instead. What would hang runs in a daemon thread with a bound.
"""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path

import pytest
from fake_model import Answers, peer_backend
from sglang_peer import load_peer, peer_function, peer_home

import sgnb as sgl
from sgnb.backends.mock import HANG, MockBackend
from sgnb.errors import ProgramError, ProgramTypeError, RequestError
from sgnb.lang.instruction import Extend, Fork, TextPart

pytestmark = [
    pytest.mark.filterwarnings("ignore:Error in stream_executor"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
HANGS_SECONDS = 0.5
ENDPOINT = peer_home() / "sglang/lang/backend/runtime_endpoint.py"
DOCS = Path(__file__).parents[2] / "docs/sglang.md"


@pytest.fixture
def peer():
    return load_peer()


@pytest.fixture
def mock():
    made = []

    def make(script=None):
        made.append(MockBackend(script))
        return made[-1]

    yield make
    for backend in made:
        backend.shutdown()


def failing(prompt, *_):
    return RequestError("the model failed") if prompt.endswith("fail") else "fine"


def attempt(function):
    """What a call gave, ("raised", error), or HANG when it did not come back."""
    found = []

    def run():
        try:
            found.append(function())
        except BaseException as error:
            found.append(("raised", error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(HANGS_SECONDS)
    return found[0] if found else HANG


def fails(sgl):
    @sgl.function
    def fails(s):
        s += "fail" + sgl.gen("x")

    return fails


def test_D1_an_error_is_raised_where_the_value_is_read(peer, mock):
    state = fails(peer).run(backend=peer_backend(Answers(), fail_at="fail"))
    assert isinstance(attempt(lambda: state["x"])[1], KeyError)  # the cause is not in it
    state = fails(sgl).run(backend=mock(failing))
    for read in (lambda: state["x"], state.text, state.sync, state.messages):
        with pytest.raises(RequestError, match="the model failed"):
            read()


def test_D2_nothing_hangs_after_an_error(peer, mock):
    def more(state):
        state += " more"
        return state.text()

    state = fails(peer).run(backend=peer_backend(Answers(), fail_at="fail"))
    state.error()
    assert attempt(lambda: more(state)) is HANG
    state = fails(sgl).run(backend=mock(failing))
    kind, error = attempt(lambda: more(state))
    assert kind == "raised" and "the model failed" in str(error)


def test_D3_join_by_text_really_joins(mock):
    source = ENDPOINT.read_text()
    assert (
        "self.support_concate_and_append = True" in source
    )  # claimed for every server, and no server has it

    @sgl.function
    def prog(s):
        s += "a"
        forks = s.fork(2)
        forks += lambda i: f"|{i}"
        forks.join(mode="concate_and_append")
        s += "|" + sgl.gen("x")

    backend = mock("end")
    assert prog.run(backend=backend).text() == "a|0|1|end"
    assert backend.prompts == [("x", "a|0|1|")]


def test_D4_a_fork_is_an_instruction(mock):
    @sgl.function
    def prog(s):
        s += "a long common prefix"
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()

    for _ in range(20):
        backend = mock("v")
        prog.run(backend=backend).sync()
        forks = [op for block in backend.log for op in block.instructions if isinstance(op, Fork)]
        assert [len(op.children) for op in forks] == [2]


def test_D5_a_state_goes_on_after_its_run(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            s += "a" + sgl.gen("x", max_tokens=2)

        return prog

    def more(state, sgl):
        state += " and" + sgl.gen("y", max_tokens=2)
        return state["y"], state.fork(2)[1].text()

    state = build(peer).run(backend=peer_backend(Answers()))
    state.sync()
    assert attempt(lambda: more(state, peer)) is HANG
    state = build(sgl).run(backend=mock("one two three"))
    assert attempt(lambda: more(state, sgl)) == ("one two", "aone two andone two")


def test_D6_late_readers_see_everything(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            s += "a" + sgl.gen("x", max_tokens=2)

        return prog

    state = build(peer).run(backend=peer_backend(Answers()), stream=True)
    state.sync()
    while not state.stream_executor.is_finished:
        threading.Event().wait(0.01)
    state.stream_executor.stream_var_event.clear()
    assert attempt(lambda: list(state.text_iter("x"))) == [""]
    state = build(sgl).run(backend=mock("one two"), stream=True)
    state.sync()
    for _ in range(2):
        assert "".join(state.text_iter()) == "aone two" and "".join(state.text_iter("x")) == "one two"


def test_D7_an_exception_of_a_streamed_body_is_raised(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            s += "a"
            raise ZeroDivisionError("mine")

        return prog

    state = build(peer).run(backend=peer_backend(Answers()), stream=True)
    assert attempt(state.error) is None
    state = build(sgl).run(backend=mock(), stream=True)
    assert isinstance(state.error(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="mine"):
        list(state.text_iter())


def test_D8_a_turn_ends_when_its_block_raises(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            try:
                with s.user():
                    s += "question"
                    raise ValueError
            except ValueError:
                pass
            s += sgl.assistant("answer")

        return prog

    assert "Nested roles" in str(build(peer).run(backend=peer_backend(Answers())).error())
    messages = build(sgl).run(backend=mock()).messages()
    assert [message["role"] for message in messages] == ["user", "assistant"]


def test_D9_bind_keeps_num_api_spec_tokens(peer):
    def build(sgl):
        @sgl.function(num_api_spec_tokens=64)
        def prog(s, a):
            s += a

        return prog.bind(a="x").num_api_spec_tokens

    assert build(peer) is None and build(sgl) == 64


def test_D10_unnamed_generations_have_names(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            s += sgl.gen(max_tokens=1) + "," + sgl.gen(max_tokens=2) + "," + sgl.select(choices=["p", "q"])

        return prog

    state = build(peer).run(backend=peer_backend(Answers()))
    state.sync()
    assert list(state.stream_executor.variables) == [None]
    state = build(sgl).run(backend=mock(["1", "2", "q"]))
    assert (state["gen_0"], state["gen_1"], state["gen_2"]) == ("1", "2", "q")


def test_D11_lists_of_the_user_are_not_changed(peer, mock):
    def build(sgl, stop):
        @sgl.function
        def prog(s):
            s += sgl.gen("a", stop=stop) + sgl.gen("b", stop=stop)

        return prog

    theirs, mine = ["X"], ["X"]
    build(peer, theirs).run(backend=peer_backend(Answers())).sync()
    assert theirs == ["X", "<|im_end|>", "<|im_end|>"]
    build(sgl, mine).run(backend=mock("v")).sync()
    assert mine == ["X"]


def test_D12_joined_variables_and_samples_have_meta(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            forks = s.fork(2)
            forks += sgl.gen("x", max_tokens=1)
            forks.join()
            s += sgl.gen("two", n=2, max_tokens=1)

        return prog

    state = build(peer).run(backend=peer_backend(Answers()))
    state.sync()
    assert state.get_meta_info("x") is None
    state = build(sgl).run(backend=mock("v"))
    assert [meta["completion_tokens"] for meta in state.get_meta_info("x")] == [1, 1]
    assert [meta["completion_tokens"] for meta in state.get_meta_info("two")] == [1, 1]
    assert state["two"] == ["v", "v"] and state.text() == "v"  # the text goes on with the first sample


def test_D13_a_trace_follows_branches(peer):
    def build(sgl):
        @sgl.function
        def on_value(s):
            s += sgl.gen("mood")
            if s["mood"]:
                s += "yes"
            else:
                s += "no"

        @sgl.function
        def on_argument(s, topic):
            if "x" in topic:
                s += "with"
            s += f"About {topic}"

        return on_value, on_argument

    on_value, on_argument = build(peer)
    with pytest.raises(TypeError):
        on_argument.trace()
    on_value, on_argument = build(sgl)
    assert str(on_value.trace()).splitlines()[1:] == ["s0 gen mood", "-- wait", "s0 text 'yes'"]
    assert "About {topic}" in str(on_argument.trace())


def test_D14_one_failing_item_leaves_the_batch_alone(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s, item):
            if item == 1:
                raise ZeroDivisionError("mine")
            s += f"{item}" + sgl.gen("x", max_tokens=1)

        return prog

    items = [{"item": i} for i in range(3)]
    with pytest.raises(ZeroDivisionError):
        build(peer).run_batch(items, backend=peer_backend(Answers()))
    states = build(sgl).run_batch(items, backend=mock("v"))
    assert [type(state.error()).__name__ for state in states] == ["NoneType", "ZeroDivisionError", "NoneType"]
    assert states[2]["x"] == "v"


def test_D15_a_log_probability_of_zero_counts_and_types_take_a_stop(mock):
    numbers = {
        "choices": ["ab", "c"],
        "normalized_prompt_logprobs": [-0.5, -0.4],
        "input_token_logprobs": [[(-1.0, 1, None), (0.0, 2, None)], [(-0.4, 3, None)]],
        "output_token_logprobs": [[], []],
        "unconditional_token_logprobs": [[(None, 1, None), (0.0, 2, None)], [(None, 3, None)]],
    }
    normalized = peer_function(ENDPOINT, "compute_normalized_prompt_logprobs")
    assert normalized(numbers["input_token_logprobs"][0]) == -1.0  # over one token instead of two
    meta = sgl.unconditional_likelihood_normalized(**numbers).meta_info
    assert meta["normalized_unconditional_prompt_logprobs"] == [-0.5, -0.4]

    @sgl.function
    def prog(s):
        s += (
            "Legs: "
            + sgl.gen("legs", dtype=int, stop="\n")
            + " and "
            + sgl.gen("arms", dtype=int, stop=["."])
        )

    assert prog.run(backend=mock({"legs": "8\n", "arms": "2."})).text() == "Legs: 8 and 2"


# ------------------------------------------------------------ other differences


def test_rule_7_generated_text_is_never_tokenised_again(peer, mock):
    """SGLang sends the whole text for every generation; here new text travels, and a run of text is one string."""

    def build(sgl):
        @sgl.function
        def prog(s):
            s += "one "
            s += "two" + sgl.gen("x", max_tokens=2)
            s += " three"
            s += " four" + sgl.gen("y", max_tokens=1)

        return prog

    answers = Answers()
    theirs = build(peer).run(backend=peer_backend(answers))
    theirs.sync()
    assert answers.prompts[1].startswith(answers.prompts[0] + theirs["x"])
    backend = mock(Answers())
    mine = build(sgl).run(backend=backend)
    assert mine.text() == theirs.text()
    sent = [op.parts for block in backend.log for op in block.instructions if isinstance(op, Extend)]
    assert sent == [(TextPart("one two"),), (TextPart(" three four"),)]


def test_rule_1_role_blocks_without_a_state(peer, mock):
    with pytest.raises((AttributeError, TypeError)):
        peer.user().__enter__()

    @sgl.function
    def prog(any_name):
        with sgl.user():
            any_name += "Say a word."
        with sgl.assistant():
            word = sgl.gen("word")
        return word

    assert prog.run(backend=mock("moss")).ret_value == "moss"


def test_first_parameter_of_any_name(peer, mock):
    def prog(chat):
        chat += "x"

    with pytest.raises(AssertionError):
        peer.function(prog)
    assert sgl.function(prog).run(backend=mock()).text() == "x"


def joins(sgl):
    @sgl.function
    def prog(s):
        s["old"] = "parent"
        for number in range(2):
            forks = s.fork(2)
            for i in range(2):
                forks[i]["old"] = forks[i]["new"] = f"{number}{i}"
            forks[0]["one"] = 1
            forks.join()

    return prog


def test_join_takes_variables_that_a_branch_binds_anew(peer, mock):
    theirs = joins(peer).run(backend=peer_backend(Answers()))
    assert (theirs["old"], theirs["new"], theirs["one"]) == ("parent", ["00", "01"], [1])
    mine = joins(sgl).run(backend=mock())
    assert (mine["old"], mine["new"], mine["one"]) == (["10", "11"], ["10", "11"], [1, None])


def test_text_for_all_branches(peer, mock):
    def build(sgl):
        @sgl.function
        def prog(s):
            forks = s.fork(2)
            forks += "same"
            return [f.text() for f in forks]

        return prog

    with pytest.raises(ValueError):
        build(peer).run(backend=peer_backend(Answers()))
    assert build(sgl).run(backend=mock()).ret_value == ["same", "same"]


@pytest.mark.parametrize("value", [5, None, b"x"])
def test_what_cannot_be_appended_is_refused_where_it_stands(peer, mock, value):
    @sgl.function
    def prog(s):
        s += value

    with pytest.raises(ProgramTypeError) as caught:
        prog.run(backend=mock())
    assert caught.value.position.text.strip() == "s += value"


def test_nested_turns_are_refused_where_they_stand(peer, mock):
    @sgl.function
    def prog(s):
        with s.user():
            s += sgl.assistant("x")

    with pytest.raises(ProgramError, match="cannot be nested") as caught:
        prog.run(backend=mock())
    assert "sgl.assistant" in caught.value.position.text


def test_speculation_with_an_api_is_not_needed(peer, mock):
    """``num_api_spec_tokens`` is taken and changes nothing: text already sent is not sent again."""

    def build(**kwargs):
        @sgl.function(**kwargs)
        def prog(s):
            s += "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

        return prog

    plain, spec = mock(Answers()), mock(Answers())
    assert build().run(backend=plain).text() == build(num_api_spec_tokens=64).run(backend=spec).text()
    assert len(plain.log) == len(spec.log) == 1


def test_async_reader_of_a_finished_run(mock):
    @sgl.function
    def prog(s):
        s += "a" + sgl.gen("x")

    async def read(state):
        return [piece async for piece in state.text_async_iter("x")]

    state = prog.run(backend=mock("one two"))
    state.sync()
    assert "".join(asyncio.run(read(state))) == "one two"


def test_every_listed_difference_has_a_test():
    listed = re.findall(r"^\| (D\d+|rule \d+) \|", DOCS.read_text(), re.MULTILINE)
    assert listed == [f"D{number}" for number in range(1, 16)] + ["rule 1", "rule 7"]
    tests = " ".join(name for name in globals() if name.startswith("test_"))
    for word in listed:
        assert re.search(rf"\btest_{word.replace(' ', '_')}_", tests), word
