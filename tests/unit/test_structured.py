"""Constraints, parsed values, sampling parameters and priorities in programs, over the mock backend."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from typing import Annotated, Literal, NotRequired, TypedDict

import pytest

import sgnb as sgl
from sgnb.backends.conform import conforming_text
from sgnb.backends.mock import MockBackend
from sgnb.constraints import Constraint
from sgnb.errors import LimitError, ParseError, ProgramError, ProgramTypeError
from sgnb.lang.instruction import Decode, Select
from sgnb.lang.schema import REGEX_INT, build, json_schema_of
from sgnb.runtime.run import run_cell


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Pet(TypedDict):
    kind: Literal["cat", "dog"]
    age: NotRequired[int]


@dataclasses.dataclass
class Person:
    name: str
    height: float
    pets: list[Pet]
    colour: Colour = Colour.RED
    note: str | None = None


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree]


class Model:
    """What a pydantic model looks like from outside."""

    def __init__(self, x: int) -> None:
        self.x = x

    @classmethod
    def model_json_schema(cls):
        return {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}

    @classmethod
    def model_validate_json(cls, text):
        return cls(json.loads(text)["x"])


def decodes(backend: MockBackend) -> list[Decode]:
    return [op for block in backend.log for op in block.instructions if isinstance(op, Decode)]


def run_gen(script, **arguments):
    backend = MockBackend(script)

    @sgl.function
    def prog(s):
        s += "Q: " + sgl.gen("x", **arguments)

    state = prog.run(backend=backend)
    state.sync()
    return state, decodes(backend)[0].params


@pytest.mark.parametrize(
    ("arguments", "kind", "text", "said", "value"),
    [
        ({"dtype": int}, "regex", REGEX_INT, "-12", -12),
        ({"dtype": "int"}, "regex", REGEX_INT, "7", 7),
        ({"dtype": float}, "regex", r"[-+]?[0-9]*\.?[0-9]+[ \n]*", "2.5", 2.5),
        ({"dtype": bool}, "regex", "(True|False)", "False", False),
        ({"dtype": str}, "regex", r"\"[\w\d\s]*\"", '"two words"', "two words"),
        ({"dtype": Literal["a.b", "c"]}, "regex", r"(a\.b|c)", "a.b", "a.b"),
        ({"dtype": Literal[1, 10]}, "regex", "(1|10)", "10", 10),
        ({"dtype": Colour}, "regex", "(red|blue)", "blue", Colour.BLUE),
        ({"regex": "[0-9]{2}"}, "regex", "[0-9]{2}", "42", "42"),
        ({"regex": re.compile("a+")}, "regex", "a+", "aa", "aa"),
        ({"regex": int}, "regex", REGEX_INT, "3", 3),
        ({"json_schema": {"type": "array"}}, "json_schema", '{"type": "array"}', "[1]", [1]),
        ({"json_schema": '{"type":"null"}'}, "json_schema", '{"type":"null"}', "null", None),
        (
            {"dtype": list[int]},
            "json_schema",
            '{"type": "array", "items": {"type": "integer"}}',
            "[1, 2]",
            [1, 2],
        ),
        ({"ebnf": 'root ::= "a" | "b"'}, "ebnf", 'root ::= "a" | "b"', "b", "b"),
    ],
)
def test_what_may_be_written_and_what_it_gives(arguments, kind, text, said, value):
    state, params = run_gen(said, **arguments)
    assert params.constraint == Constraint(kind, text)
    assert state["x"] == said, "without parse the value is the text"
    state, _ = run_gen(said, parse=True, **arguments)
    assert state["x"] == value and type(state["x"]) is type(value)
    assert state.text() == "Q: " + said


def test_whole_numbers_stop_at_a_blank_as_in_sglang_beside_other_stops():
    backend = MockBackend("12 apples")

    @sgl.function
    def prog(s):
        s += sgl.gen("x", dtype=int) + sgl.gen_int("y", stop="."), sgl.gen_string("z")

    @sgl.function
    def real(s):
        s += sgl.gen("x", dtype=int) + sgl.gen_int("y", stop=".") + sgl.gen_string("z", max_tokens=3)

    state = real.run(backend=backend, stop="END")
    state.sync()
    stops = [op.params.stop for op in decodes(backend)]
    assert stops == [("END", " ", "\n"), (".", " ", "\n"), ("END",)]
    assert (state["x"], state["y"]) == ("12", "12")
    with pytest.raises(TypeError):
        prog.run(backend=backend)


def test_classes_become_schemas_and_objects():
    schema = json_schema_of(Person)
    assert schema["required"] == ["name", "height", "pets"] and schema["additionalProperties"] is False
    assert schema["properties"]["pets"]["items"]["properties"]["kind"] == {"enum": ["cat", "dog"]}
    assert schema["properties"]["note"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}
    said = '{"name": "A", "height": 2, "pets": [{"kind": "cat"}], "colour": "blue"}'
    state, params = run_gen(said, json_schema=Person, parse=True)
    assert json.loads(params.json_schema) == schema
    assert state["x"] == Person("A", 2.0, [{"kind": "cat"}], Colour.BLUE)
    tree = json_schema_of(Tree)
    assert tree["$ref"] == "#/$defs/Tree"
    assert tree["$defs"]["Tree"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Tree"}
    assert build(Tree, {"value": 1, "children": [{"value": 2, "children": []}]}) == Tree(
        1, [{"value": 2, "children": []}] and [Tree(2, [])]
    )
    state, _ = run_gen('{"x": 5}', json_schema=Model, parse=True)
    assert isinstance(state["x"], Model) and state["x"].x == 5


@pytest.mark.parametrize(
    ("tp", "value", "words"),
    [
        (int, "1", "the value: expected int, found '1'"),
        (int, True, "expected int"),
        (list[int], [1, "x"], "[1]: expected int"),
        (tuple[int, str], [1], "expected 2 items"),
        (dict[str, int], {"a": None}, "a: expected int"),
        (Person, {"name": "A"}, "lacks 'height'"),
        (Person, {"name": "A", "height": 1, "pets": [], "x": 1}, "no field 'x'"),
        (
            Person,
            {"name": "A", "height": 1, "pets": [{"kind": "cow"}]},
            "pets[0].kind: expected 'cat' or 'dog'",
        ),
        (int | None, "x", "expected int"),
        (Colour, "green", "a Colour"),
    ],
)
def test_values_of_another_type_are_refused_with_the_path(tp, value, words):
    with pytest.raises(ValueError) as caught:
        build(tp, value)
    assert words in str(caught.value)


@pytest.mark.parametrize("tp", [set[complex], complex, dict[int, str], print])
def test_types_without_a_schema_are_refused_where_gen_stands(tp):
    with pytest.raises(ProgramTypeError, match="has no JSON schema") as caught:
        sgl.gen("x", json_schema=tp)
    assert caught.value.position.file == __file__


def test_what_pydantic_finds_is_told_in_one_line():
    class ValidationError(ValueError):
        def errors(self):
            return [
                {"loc": ("likes", 0), "msg": "Input should be a valid string"},
                {"loc": (), "msg": "EOF"},
            ] + [{}] * 3

    class Strict(Model):
        @classmethod
        def model_validate_json(cls, text):
            raise ValidationError("5 validation errors\n  For further information visit …")

    state, _ = run_gen('{"x": 1}', json_schema=Strict, parse=True)
    with pytest.raises(ParseError) as caught:
        state["x"]
    assert caught.value.message == (
        "The text of 'x' cannot be parsed: likes.0: Input should be a valid string; EOF; ; …; it reads '{\"x\": 1}'."
    )


def test_annotated_is_what_it_annotates():
    assert json_schema_of(Annotated[int, "an age"]) == {"type": "integer"}


def test_parse_error_is_raised_at_the_variable_with_the_place_of_its_gen():
    state, _ = run_gen('{"name": "A', json_schema=Person, parse=True)
    for _ in range(2):
        with pytest.raises(ParseError) as caught:
            state["x"]
        assert caught.value.position.file == __file__ and "'x' cannot be parsed" in str(caught.value)
    assert state.text() == 'Q: {"name": "A', "the state goes on"
    state += " more"
    assert state.text().endswith("more")
    for text, how, words in (
        ('"tea', {"dtype": str}, "parsed: there are no quotes around it; it reads"),
        ("12", {"regex": "[a-z]+"}, "parsed: it does not match '[a-z]+'; it reads '12'"),
        ("maybe", {"dtype": Literal["yes", "no"]}, "parsed: it is none of 'yes', 'no'; it reads 'maybe'"),
    ):
        with pytest.raises(ParseError) as caught:
            run_gen(text, parse=True, **how)[0]["x"]
        assert words in caught.value.message
    cut, _ = run_gen("1234 5678", regex="[0-9 ]+", max_tokens=1, parse=True)
    assert cut["x"] == "1234"


def test_lazy_value_is_the_object():
    @sgl.function
    def prog(s):
        s += "x"
        with sgl.assistant():
            person = sgl.gen("p", json_schema={"type": "object"}, parse=True)
            number = sgl.gen("n", dtype=int, parse=True)
        s += f" {person['name']} {number + 1}"
        return number

    state = prog.run(backend=MockBackend({"p": '{"name": "Ada"}', "n": "41"}))
    assert state.ret_value == 41 and state.text().endswith(" Ada 42")


def test_samples_are_parsed_one_by_one():
    state, _ = run_gen({"x": ["1", "2", "3"]}, dtype=int, n=3, parse=True)
    assert state["x"] == [1, 2, 3] and len(state.get_meta_info("x")) == 3


WRONG = [
    ({"regex": "[a-"}, ProgramError, "unterminated"),
    ({"regex": "a" * 5000}, LimitError, "4,096"),
    ({"regex": "a", "dtype": int}, ProgramTypeError, "one constraint, not regex and dtype"),
    ({"regex": {"a": 1}}, ProgramTypeError, "regex takes a pattern"),
    ({"json_schema": "{"}, ProgramError, "not JSON"),
    ({"ebnf": 3}, ProgramTypeError, "ebnf takes a text"),
    ({"dtype": "integer"}, ProgramTypeError, "no type is called 'integer'"),
    ({"parse": True}, ProgramError, "does not say what to make"),
    ({"parse": 1, "dtype": int}, ProgramTypeError, "True or False"),
    ({"choices": ["a"], "dtype": int}, ProgramError, "neither a constraint"),
    ({"priority": 1.5}, ProgramTypeError, "priority"),
    ({"priority": 10**9}, LimitError, "priority"),
    ({"extra_key": "k"}, ProgramTypeError, "extra_key"),
    ({"frequency_penalty": 3}, LimitError, "-2..2"),
    ({"logit_bias": {"x": 1}}, LimitError, "'x'"),
    ({"logprob_start_len": -2}, LimitError, "logprob_start_len"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), WRONG)
def test_wrong_arguments_are_refused_where_gen_stands(arguments, kind, words):
    with pytest.raises(kind, match=re.escape(words)) as caught:
        sgl.gen("x", **arguments)
    assert caught.value.position.file == __file__


def test_constant_constraints_are_checked_before_the_first_instruction():
    backend = MockBackend()

    @sgl.function
    def prog(s):
        s += sgl.gen("first")
        if s["first"] == "never":
            s += sgl.gen("x", regex="(")

    with pytest.raises(ProgramError, match="position 0") as caught:
        prog.run(backend=backend)
    assert "regex=" in caught.value.position.text and not backend.log
    with pytest.raises(ProgramError, match="no rule named root") as caught:
        run_cell("s += gen('a')\ns += gen('b', ebnf='x')", cell_name="1", user_ns={}, backend=backend)
    assert caught.value.position.line == 2 and not backend.log


def test_parameters_and_priorities_reach_the_backend():
    backend = MockBackend("yes")

    @sgl.function
    def prog(s):
        s += sgl.gen("a", logit_bias={5: -1.5}, frequency_penalty=0.5, min_p=0.1, repetition_penalty=1.1)
        s += sgl.gen("b", priority=7) + sgl.select("c", ["yes", "no"])
        s += sgl.gen("d", choices=["yes", "no"], priority=9)

    prog.run(backend=backend, priority=3, presence_penalty=0.25).sync()
    ops = [op for block in backend.log for op in block.instructions if isinstance(op, Decode | Select)]
    assert [op.priority for op in ops] == [3, 7, 3, 9]
    params = ops[0].params
    assert params.logit_bias == ((5, -1.5),) and params.frequency_penalty == 0.5 and params.min_p == 0.1
    assert params.presence_penalty == 0.25 and params.repetition_penalty == 1.1
    assert ops[1].params.presence_penalty == 0.25


CONFORM = [
    Constraint("regex", r"[-+]?[0-9]+[ \n]*"),
    Constraint("regex", r"(?:alpha|beta){2,5}\.(x|\d{3})[^a-z]+"),
    Constraint("regex", r"[]a]{2}\w\s\x41\u00fc$"),
    Constraint(
        "ebnf", 'root ::= expr\nexpr ::= expr "+" term | term\nterm ::= [0-9]{2,3} ("!" | "?")? # end'
    ),
    Constraint("json_schema", json.dumps(json_schema_of(Person))),
    Constraint("json_schema", json.dumps(json_schema_of(Tree))),
    Constraint("json_schema", '{"type":"string","minLength":9,"maxLength":9}'),
]


@pytest.mark.parametrize("constraint", CONFORM)
def test_mock_says_what_conforms(constraint):
    text = conforming_text(constraint)
    if constraint.kind == "regex":
        assert re.fullmatch(constraint.text, text)
    elif constraint.kind == "ebnf":
        assert re.fullmatch(r"([0-9]{2,3}[!?]?\+)*[0-9]{2,3}[!?]?", text)
    elif "Tree" in constraint.text:
        assert build(Tree, json.loads(text)).children == []
    elif "pets" in constraint.text:
        assert build(Person, json.loads(text)).pets == []
    else:
        assert len(json.loads(text)) == 9


def test_unscripted_programs_with_constraints_run_on_the_mock():
    state, _ = run_gen(None, json_schema=Person, parse=True)
    assert isinstance(state["x"], Person)
    assert run_gen({"other": "y"}, dtype=int, parse=True)[0]["x"] == 0
