"""SGLang's names: the alias module, tracing, engine calls, what is refused with a reason."""

from __future__ import annotations

import asyncio
import sys

import pytest

import sgnb
from sgnb.backends.mock import MockBackend
from sgnb.errors import NoEngine, ProgramError, ProgramTypeError
from sgnb.lang.instruction import Init


@pytest.fixture
def sglang():
    import sgnb.compat.sglang as compat

    yield compat.install()
    compat.uninstall()


def test_import_sglang_means_sgnb(sglang):
    import sglang as sgl
    from sglang.lang.choices import greedy_token_selection
    from sglang.lang.ir import REGEX_FLOAT

    assert sgl.function is sgnb.function and sgl.gen is sgnb.gen
    assert greedy_token_selection is sgnb.greedy_token_selection and "0-9" in REGEX_FLOAT
    with pytest.raises(AttributeError):
        sgl.nothing  # noqa: B018

    @sgl.function
    def qa(s, question):
        s += sgl.user(question) + sgl.assistant(sgl.gen("answer", max_tokens=8))

    backend = MockBackend("yes")
    sgl.set_default_backend(backend)
    try:
        assert qa.run(question="?")["answer"] == "yes"
    finally:
        sgl.set_default_backend(None)
        backend.shutdown()


def test_alias_does_not_hide_a_real_sglang(sglang, monkeypatch):
    import sgnb.compat.sglang as compat

    monkeypatch.setitem(sys.modules, "sglang", type(sys)("sglang"))
    with pytest.raises(ImportError, match="real sglang"):
        compat.install()


@pytest.mark.parametrize(
    "statement",
    [
        "from sglang import function, gen, set_default_backend, user, assistant, Runtime, RuntimeEndpoint",
        "from sglang import *",
        "from sglang.lang.ir import REGEX_BOOL, REGEX_FLOAT, REGEX_INT, REGEX_STR",
        "from sglang.lang.choices import greedy_token_selection, token_length_normalized",
        "from sglang.lang.api import gen, select",
        "from sglang.lang.backend.runtime_endpoint import RuntimeEndpoint",
        "from sglang.global_config import global_config",
        "from sglang.srt.constrained.outlines_backend import build_regex_from_object",
        "from sglang.srt.hf_transformers_utils import get_tokenizer",
        "from sglang.srt.utils import is_hip",
        "from sglang.utils import dump_state_text, http_request, print_highlight, read_jsonl, wait_for_server",
        "import sglang.lang.chat_template, sglang.lang.global_config",
    ],
)
def test_imports_of_sglangs_programs_and_examples(sglang, statement):
    names: dict[str, object] = {}
    exec(statement, names)
    assert len(names) > 1


def test_endpoints_mean_the_engine_of_the_notebook(sglang):
    import sglang as sgl

    with pytest.raises(NoEngine, match="stands for the engine of this notebook"):
        sgl.RuntimeEndpoint("http://localhost:30000")
    assert sgl.global_config.default_backend is None
    backend = MockBackend("yes", model="tiny")
    sgl.global_config.default_backend = backend
    try:
        endpoint = sgl.RuntimeEndpoint("http://localhost:30000")
        assert (
            endpoint.get_model_name() == sgl.global_config.default_backend.endpoint.get_model_name() == "tiny"
        )
        sgl.set_default_backend(endpoint)

        @sgl.function
        def qa(s):
            s += "?" + sgl.gen("answer")

        assert qa.run()["answer"] == qa.run(backend=endpoint)["answer"] == "yes"
        with pytest.raises(ProgramError, match="has no tokenizer"):
            endpoint.get_tokenizer().encode("a")
    finally:
        sgl.set_default_backend(None)
        backend.shutdown()


def test_engines_and_runtimes_are_started_by_sglangs_arguments_and_generate_in_its_order(sglang, monkeypatch):
    import sglang as sgl

    class Engine(MockBackend):
        def generate(self, prompt=None, *, input_ids=None, sampling_params=None):
            return {"text": f"{prompt} {sampling_params} {input_ids}"}

    started = []
    engine = Engine(model="tiny")
    monkeypatch.setattr(sgnb, "launch", lambda model, **args: started.append((model, args)) or engine)
    for make in (sgl.Engine, sgl.Runtime):
        llm = make(model_path="tiny", tp_size=1, log_level="error", page_size=4)
        assert llm.generate("Hi", {"temperature": 0})["text"] == "Hi {'temperature': 0} None"
        assert llm.generate(input_ids=[1], sampling_params={})["text"] == "None {} [1]"
    assert started == [("tiny", {"page_size": 4})] * 2
    sgl.set_default_backend(MockBackend())
    try:
        with pytest.raises(ProgramError, match="has no generate"):
            sgl.RuntimeEndpoint("http://localhost:30000").generate("Hi")
    finally:
        sgl.set_default_backend(None)


@pytest.mark.parametrize("name", ["OpenAI", "Anthropic", "VertexAI", "LiteLLM", "ServerArgs"])
def test_services_and_servers_are_refused_where_they_are_called(sglang, name):
    import sglang as sgl

    with pytest.raises(ProgramError, match=name) as caught:
        getattr(sgl, name)("a-model")
    assert caught.value.position.file == __file__ and "sgnb.launch()" in caught.value.hint


def test_files_of_lines_and_texts(sglang, tmp_path):
    from sglang.utils import dump_state_text, read_jsonl

    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"a": 1}\n# left out\n\n[2]\n')
    assert list(read_jsonl(str(lines))) == [{"a": 1}, [2]]
    dump_state_text(str(tmp_path / "out.txt"), ["one", "two"])
    assert (tmp_path / "out.txt").read_text().count("one") == 1


def test_trace_shows_what_is_recorded_without_an_engine():
    @sgnb.function
    def prog(s, topic, count=2):
        s += sgnb.user(f"About {topic}")
        forks = s.fork(count)
        for i, f in enumerate(forks):
            f += f"{i}" + sgnb.gen("tip")
        forks.join()
        s += sgnb.select("pick", ["a", "b"])
        if s["pick"] == "a":
            s += "".join(s["tip"])

    trace = prog.trace()
    assert str(trace).splitlines() == [
        "s0 open",
        "s0 text <user> 'About {topic}' </user>",
        "s0 fork s1 s2",
        "s1 text '0'",
        "s1 gen tip",
        "s2 text '1'",
        "s2 gen tip",
        "s0 select pick of 2",
        "-- wait",
        "s0 text '{tip}{tip}'",
    ]
    assert "About tea" in str(prog.trace("tea", count=1))
    assert trace.state["tip"] == ["{tip}", "{tip}"]


def test_engine_calls():
    class Engine(MockBackend):
        def flush_cache(self):
            return {"freed": 3}

        def stats(self):
            return {"running": 0}

    engine = Engine(model="tiny")
    assert sgnb.flush_cache(engine) == {"freed": 3}
    info = sgnb.get_server_info(engine)
    assert info.pop("instruction_queue_length") >= 0
    assert info == {"model": "tiny", "running": 0}
    with pytest.raises(ProgramError, match="has no flush_cache"):
        sgnb.flush_cache(MockBackend())
    with pytest.raises(NoEngine):
        sgnb.get_server_info()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sgnb.image("cat.png"), "needs a model with vision"),
        (lambda: sgnb.video("cat.mp4", 4), "needs a model with vision"),
        (lambda: sgnb.gen("x", stop_regex="a"), "comes in a later version"),
    ],
)
def test_refused_with_a_reason(make, message):
    with pytest.raises(ProgramError, match=message) as caught:
        make()
    assert caught.value.position.file == __file__


def test_extra_key_opens_the_session_with_it():
    backend = MockBackend()

    @sgnb.function
    def inner(s):
        s += "i" + sgnb.gen("y")

    @sgnb.function
    def prog(s):
        s += "p" + sgnb.gen("x")
        inner.run().sync()
        s.fork(1)[0].text()

    prog.run(backend=backend, extra_key="tenant").sync()
    prog.run(backend=backend).sync()
    keys = [op.extra_key for block in backend.log for op in block.instructions if isinstance(op, Init)]
    assert keys == ["tenant", "tenant", "", ""]
    with pytest.raises(ProgramTypeError, match="takes a str"):
        prog.run(backend=backend, extra_key=5)
    backend.shutdown()


def test_num_api_spec_tokens_bind_and_first_parameter_of_any_name():
    backend = MockBackend("x")

    @sgnb.function(num_api_spec_tokens=64)
    def prog(conversation, a, b):
        conversation += f"{a}{b}" + sgnb.gen("v")

    bound = prog.bind(a=1)
    assert bound.num_api_spec_tokens == 64  # D9
    assert bound.run(b=2, backend=backend).text() == "12x"
    backend.shutdown()


def test_async_stream_with_meta():
    backend = MockBackend("one two three")

    @sgnb.function
    def prog(s):
        s += sgnb.gen("v")

    async def read():
        state = prog.run(stream=True, backend=backend)
        return [pair async for pair in state.text_async_iter("v", return_meta_data=True)]

    pairs = asyncio.run(read())
    assert "".join(text for text, _ in pairs) == "one two three"
    assert all("completion_tokens" in meta for _, meta in pairs)
    backend.shutdown()
