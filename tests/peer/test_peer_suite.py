"""SGLang's own ``test_programs.py``, unchanged, imported through ``sgnb.compat.sglang``.

On the embedded model with the real asserts where 135 million parameters can know the answer; where they cannot, the model is
scripted and the asserts are the real ones just the same. Not run: ``test_image_qa`` (vision, refused) and
``test_completion_speculative`` (it compares the bills of an API over the network; its two programs run).
"""

from __future__ import annotations

import ast

import pytest
from sglang_peer import load_file, peer_home

import sgnb
import sgnb.compat.sglang as compat
from sgnb.backends.mock import MockBackend
from sgnb.errors import ProgramError

FILE = peer_home() / "sglang/test/test_programs.py"
MODEL = "smollm2-135m-instruct"

ON_THE_MODEL = {
    "test_mt_bench": (),
    "test_select": (False,),
    "test_decode_json": (),
    "test_decode_json_regex": (),
    "test_dtype_gen": (),
    "test_regex": (),
    "test_expert_answer": (False,),
    "test_parallel_decoding": (),
    "test_parallel_encoding": (False,),
    "test_stream": (),
    "test_stream_logprobs": (),
    "test_chat_completion_speculative": (),
    "test_gen_min_new_tokens": (),
}
"""Name → arguments. ``False``: any of the options will do, as SGLang's own suite asks of a small model."""
NOT_RUN = {"test_image_qa": "vision", "test_completion_speculative": "network"}


def scripted(*lines):
    """A model that answers with the text behind the last of ``lines`` that the prompt ends with."""
    pairs = [line.split(" => ") for line in lines]

    def answer(prompt, *_):
        return next((text for end, text in reversed(pairs) if prompt.endswith(end)), " it is so.")

    return answer


ON_THE_SCRIPT = {
    "test_few_shot_qa": (
        (),
        scripted(
            "United States?\nA: => Washington, D.C.\nQ:",
            "Japan?\nA: => Tokyo\nQ:",
            "Kingdom?\nA: => London\nQ:",
            "China?\nA: => Beijing\nQ:",
        ),
    ),
    "test_select": ((True,), ["True", "False", "Unknown"]),
    "test_decode_int": ((), {"hours": "24 ", "days": "365\n"}),
    "test_expert_answer": ((), {"expert": " a Parisian.", "answer": "Paris."}),
    "test_parallel_encoding": ((), {"answer": " Noah is."}),
    "test_tool_use": ((), {"expression": "257 * 983) = "}),
    "test_react": ((), {"action_1": "Search", "action_2": "Finish", "answer": "Finland]."}),
}


@pytest.fixture(scope="module")
def programs():
    compat.install()
    yield load_file(FILE, "sglang_test_programs")
    compat.uninstall()


@pytest.fixture(scope="module")
def engine():
    """The embedded model as a reader runs it; only the seed of programs that sample is fixed."""
    with sgnb.launch(MODEL, name="peer") as engine, pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "SGNB_DETERMINISTIC", "1"
        )  # read by runs for their seed; the engine has started without it
        yield engine
    sgnb.set_default_backend(None)


def test_every_program_of_the_file_is_accounted_for():
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert found == ON_THE_MODEL.keys() | ON_THE_SCRIPT.keys() | NOT_RUN.keys()


@pytest.mark.parametrize("name", ON_THE_MODEL)
def test_on_the_embedded_model(programs, engine, name):
    sgnb.set_default_backend(engine)
    getattr(programs, name)(*ON_THE_MODEL[name])


@pytest.mark.parametrize("name", ON_THE_SCRIPT)
def test_on_a_scripted_model(programs, name):
    arguments, script = ON_THE_SCRIPT[name]
    backend = MockBackend(script)
    sgnb.set_default_backend(backend)
    try:
        getattr(programs, name)(*arguments)
    finally:
        sgnb.set_default_backend(None)
        backend.shutdown()


def test_the_programs_about_an_apis_bill_run(programs, engine, tmp_path):
    """``num_api_spec_tokens`` changes neither text nor variables, and nothing is generated past a stop."""
    tree = ast.parse(FILE.read_text(encoding="utf-8"))
    test = next(node for node in tree.body if getattr(node, "name", "") == "test_completion_speculative")
    pair = [ast.unparse(node) for node in test.body if isinstance(node, ast.FunctionDef)]
    file = tmp_path / "programs_of_the_bill.py"
    file.write_text("\n".join(["import sglang as sgl", *pair]), encoding="utf-8")
    found = load_file(file, "programs_of_the_bill")
    assert found.gen_character_spec.num_api_spec_tokens == 64
    sgnb.set_default_backend(engine)
    states = [
        program.run(temperature=0) for program in (found.gen_character_spec, found.gen_character_no_spec)
    ]
    assert states[0].text() == states[1].text()
    for name in ("name", "birthday", "job"):
        value = states[0][name]
        assert value.strip() and "\n" not in value
        assert states[0].get_meta_info(name)["finish_reason"]["type"] == "stop"


def test_vision_is_refused_with_a_sentence(programs):
    backend = MockBackend()
    sgnb.set_default_backend(backend)
    with pytest.raises(ProgramError, match="needs a model with vision"):
        programs.test_image_qa()
    sgnb.set_default_backend(None)
    backend.shutdown()
