"""xgrammar behind our classes, on a vocabulary of bytes: reported faults, and the borders of its matcher."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time

import psutil
import pytest
from process_rig import until

from sgnb.constraints import Constraint, check_constraint
from sgnb.engine.grammar import xgrammar_backend
from sgnb.engine.grammar.base import GrammarError, GrammarState, Vocabulary
from sgnb.engine.grammar.xgrammar_backend import XGrammarBackend
from sgnb.errors import ConstraintError

EOS = 257
TABLE = [*(bytes([i]) for i in range(256)), b"<|im_start|>", b"<|im_end|>", b"ab"]
pytestmark = pytest.mark.grammar


@pytest.fixture(scope="module")
def backend():
    backend = XGrammarBackend(Vocabulary(TABLE, len(TABLE), frozenset([256, 257]), [EOS]))
    yield backend
    backend.close()


def state_of(backend, kind, text) -> GrammarState:
    return GrammarState(backend.compile(Constraint(kind, text)), frozenset([EOS]), -(-len(TABLE) // 32))


def allows(state: GrammarState, token: int) -> bool:
    return bool(state.mask.view("uint32")[token // 32] >> (token % 32) & 1)


def accepts(state: GrammarState, text: str) -> bool:
    """Whether the text can be written, byte by byte through the masks, and may end there."""
    for byte in text.encode():
        if state.error is not None or not allows(state, byte):
            return False
        state.accept(byte)
    return state.may_end and allows(state, EOS)


SCHEMAS = {
    "B003": ({"type": "string", "maxLength": 4}, ['"日本語字"'], ['"abcde"']),
    "B006": ({"type": "number", "minimum": -2, "maximum": 2}, ["-0.5"], ["2.5"]),
    "B007": ({"type": "number", "exclusiveMinimum": 0}, ["0.1"], ["0"]),
    "B008": ({"enum": ["多云", "晴"]}, ['"晴"'], ['"云"']),
    "B009": ({"enum": ["caf\u00e9"]}, ['"café"'], ['"caf?"']),
    "B010": (
        {"type": "object", "properties": {"satz": {"type": "string"}}, "required": ["satz"]},
        ['{"satz": "Größe über Öl"}'],
        ['{"satz": 1}'],
    ),
    "B011": ({"enum": [4, True, None, "4"]}, ["4", "true", "null", '"4"'], ["false", '""']),
    "B012": ({"type": "string"}, ['"a"'], ['"\u0001"', '"\\q"', '"\\u12"']),
    "B014": (
        {
            "oneOf": [{"type": "integer", "minimum": 0, "maximum": 50}, {"$ref": "#/$defs/pt"}],
            "$defs": {
                "pt": {
                    "type": "array",
                    "items": {"type": "integer", "minimum": 0, "maximum": 9},
                    "minItems": 2,
                    "maxItems": 2,
                }
            },
        },
        ["50", "[3, 9]"],
        ["51", "[3, 10]"],
    ),
    "B018": (
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}},
            "required": ["n"],
            "patternProperties": {"^n$": {"type": "integer"}},
            "additionalProperties": False,
        },
        ['{"n": 1}'],
        ["{}"],
    ),
    "B021": (
        {"type": "object", "properties": {name: {"type": "integer"} for name in "abc"}},
        ["{}", '{"b": 1}', '{"a": 1, "c": 2}'],
        ['{,"b": 1}', '{"a": 1,, "c": 2}'],
    ),
    "B034": ({"type": "string", "pattern": "^\\d$"}, ['"7"'], ['"১"']),
}
REGEXES = {
    "B050": ("[.]+", ["..."], ["a"]),
    "B053": ("[\u4e00-\u9fff]{2,4}", ["你好"], ["a", "你"]),
    "B057": (r"[\x00-\u2e7f]+", ["a\u0001"], ["語"]),
    "B058": (r"^(|.*)$", ["", "x"], []),
    "B063": ("Answer: (yes|no)", ["Answer: yes"], ["Answer:yes"]),
}


@pytest.mark.parametrize("row", SCHEMAS)
def test_schemas_of_reported_faults(backend, row):
    schema, good, bad = SCHEMAS[row]
    for text in good + bad:
        state = state_of(backend, "json_schema", json.dumps(schema, ensure_ascii=False))
        assert accepts(state, text) == (text in good), (row, text)


@pytest.mark.parametrize("row", REGEXES)
def test_regexes_of_reported_faults(backend, row):
    regex, good, bad = REGEXES[row]
    for text in good + bad:
        assert accepts(state_of(backend, "regex", regex), text) == (text in good), (row, text)


@pytest.mark.parametrize(
    ("row", "kind", "text", "words"),
    [
        ("B026", "json_schema", '{"type":"array","items":[{"type":"integer"},{"type":"string"}]}', "/items"),
        ("B056", "regex", r"(?P<yr>\d{4}", "at position 0"),
        ("B060", "regex", "a{2}{3}", "multiple repeat at position 4"),
        ("B060", "regex", "b++", "position 3"),
        ("B062", "regex", "(?i)abc", "a flag at position 0"),
        ("B062", "regex", r"(?P<y>\d+)", "position 3"),
        ("B062", "regex", r"\p{L}+", r"\p at position 0"),
    ],
)
def test_constructs_of_reported_faults_are_refused_with_their_place(backend, row, kind, text, words):
    """Never a language that was not meant: what Python's own check lets pass, the library refuses."""
    with pytest.raises((ConstraintError, GrammarError)) as caught:
        check_constraint(kind, text)
        backend.compile(Constraint(kind, text))
    assert words in str(caught.value), row


def test_B031_moderate_bounds_on_nested_strings_compile_in_time(backend):
    strings = {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 15}
    schema = {"type": "object", "properties": {f"list{n}": strings for n in range(5)}}
    before = psutil.Process().memory_info().rss
    began = time.process_time()
    state = state_of(backend, "json_schema", json.dumps(schema))
    assert accepts(state, '{"list0": ["ab", "c"]}')
    assert time.process_time() - began < 2 and psutil.Process().memory_info().rss - before < 300 << 20
    assert backend.compile(Constraint("json_schema", json.dumps(schema))).seconds > 0, "it says what it took"


def test_B067_a_space_of_a_sentencepiece_vocabulary_can_be_written():
    """Its pieces carry the space as text once the meta-space is mapped, as the byte table does."""
    pieces = [b"sun", b" moon", b" ", b"m", b"oon", b"<end>"]
    backend = XGrammarBackend(Vocabulary(pieces, len(pieces), frozenset([5]), [5]))
    try:
        for way in ([0, 1], [0, 2, 3, 4]):
            state = GrammarState(backend.compile(Constraint("regex", "[a-z]+ [a-z]+")), frozenset([5]), 1)
            for token in way:
                assert allows(state, token)
                state.accept(token)
            assert state.may_end and allows(state, 5)
    finally:
        backend.close()


def test_B042_refused_token_leaves_the_matcher_unharmed(backend):
    matcher = backend.compile(Constraint("regex", "axc")).matcher()
    state = state_of(backend, "regex", "axc")
    assert not matcher.accept(258), "`ab` begins well and ends badly"
    assert not matcher.accept(EOS) and matcher.accept(ord("a")) and matcher.accept(ord("x"))
    state.accept(258)
    assert state.error.code == "grammar_rejected"


@pytest.mark.sampler
def test_B044_finished_output_is_told_and_can_be_asked_again(backend):
    state = state_of(backend, "regex", "a")
    state.accept(ord("a"))
    assert state.done and state.may_end and state.error is None and state.allowed == 1
    state.accept(ord("b"))
    assert state.error.code == "grammar_rejected"


def test_special_tokens_are_never_allowed_and_everything_else_is(backend):
    state = state_of(backend, "regex", r"[\s\S]*")
    assert not allows(state, 256) and allows(state, EOS) and allows(state, 258) and allows(state, ord("x"))


@pytest.mark.parametrize(
    "kind, text", [("regex", "[a-z"), ("ebnf", "root ::= |"), ("json_schema", '{"type":12}')]
)
def test_B023_B055_refused_by_the_library_with_its_words(backend, kind, text):
    with pytest.raises(GrammarError) as caught:
        backend.compile(Constraint(kind, text))
    assert caught.value.lasting and str(caught.value).startswith(kind) and ".cc:" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words", "hint"),
    [
        ('root ::= "a"\nb ::= |', "at line 2, column 7, in `b ::= |`", 'nothing at all is written ""'),
        ('root ::=  "a" |', "but got nothing, at line 1", "a rule's name"),
        ('root ::= "a"{x}\nx ::= "b"', "line 1, column 14", "{2,5}"),
        ('root ::= "a"{3,1}', "lower bound is larger than upper bound: 3 > 1", "{2,5}"),
        ("root ::= [z-a]", "lower bound is larger", "[a-z]"),
        ('root ::= "\\q"', "invalid escape sequence, at line 1, column 11", "\\\\"),
        ('root ::= TagDispatch(("a", b))', 'rule "b" is not defined', "quote its name"),
        ("root ::= " + '"a" ' * 30 + "|", "…`", "a class"),
    ],
)
def test_what_the_library_finds_in_a_grammar_has_its_place_and_the_way_on(backend, text, words, hint):
    check_constraint("ebnf", text)
    with pytest.raises(GrammarError) as caught:
        backend.compile(Constraint("ebnf", text))
    assert words in str(caught.value) and hint in caught.value.info.hint


def test_closed_backend_refuses(backend):
    own = XGrammarBackend(Vocabulary(TABLE, len(TABLE), frozenset([256, 257]), [EOS]))
    own.close()
    with pytest.raises(GrammarError, match="ending"):
        own.compile(Constraint("regex", "a"))


HUNGRY = "(a{1,9000}b{1,9000})"
BOMB = "|".join(f"(.{{1,{i}}}[a-{chr(98 + i % 20)}]{{1,{i}}}){{1,{i}}}" for i in range(60, 150))


@pytest.mark.parametrize("megabytes", [2, 8, 32])
def test_F49_one_that_needs_too_much_memory_fails_alone_and_is_told_the_bound(
    backend, monkeypatch, megabytes
):
    """The library says that memory is short, or is ended by it: both are one request's failure, with the figure."""
    monkeypatch.setattr(xgrammar_backend, "MEMORY_BYTES", megabytes << 20)
    with pytest.raises(GrammarError) as caught:
        backend.compile(Constraint("regex", HUNGRY))
    told = caught.value.info
    assert told.code in ("grammar", "grammar_killed") and f"{megabytes} MB" in f"{told.message} {told.hint}"
    assert caught.value.lasting == (told.code == "grammar"), "who was killed may be tried again"
    assert accepts(state_of(backend, "regex", "[0-9]"), "7"), "a small one is compiled under the same bound"


def test_F49_killed_compiler_is_one_requests_failure(backend):
    failed: list[GrammarError] = []

    def compile_bomb() -> None:
        try:
            backend.compile(Constraint("regex", BOMB))
        except GrammarError as error:
            failed.append(error)

    assert accepts(state_of(backend, "regex", "a"), "a")
    warm = psutil.Process(backend._worker.pid)
    thread = threading.Thread(target=compile_bomb)
    thread.start()
    until(warm.children, 30)
    for child in warm.children():
        child.kill()
    thread.join(30)
    assert [(error.info.code, error.lasting) for error in failed] == [("grammar_killed", False)]
    assert "512 MB" in failed[0].info.hint
    assert accepts(state_of(backend, "regex", "[x]"), "x") and warm.is_running()


LOADING = """
import sys
from sgnb.engine.grammar.worker import load_library
library = load_library()
print(sorted({"torch", "transformers"} & set(sys.modules)), library.__name__)
try:
    import torch
except ImportError:
    print("torch cannot be imported afterwards")
print(torch.zeros(2).sum().item())
"""


def test_library_is_loaded_without_torch_and_transformers_and_both_can_be_loaded_later():
    done = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, timeout=300)
    assert done.stdout.split("\n")[:2] == ["[] xgrammar", "0.0"], done.stdout + done.stderr


def test_warm_worker_is_small(backend):
    assert accepts(state_of(backend, "regex", "a"), "a")
    resident = psutil.Process(backend._worker.pid).memory_info().rss
    assert resident < 128 << 20, "with torch in it, it would have more than 200 MB"
