"""Constraints as text: what is refused before anything is compiled, and where."""

from __future__ import annotations

import json

import pytest

from sgnb.errors import LimitError
from sgnb.sampling_params import SamplingParams


def nested(depth: int) -> object:
    schema: object = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


LEGAL = [
    {"regex": r"[0-9]{3}(?:-[0-9]+)*"},
    {"regex": r"\(\?=\)[(?=)\]{99999}]"},
    {"regex": "(?P<year>[0-9]{4})"},
    {"regex": "a{10000}"},
    {"json_schema": {"type": "object", "properties": {"type": {"type": ["string", "null"]}}}},
    {"json_schema": json.dumps(nested(62))},
    {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"enum": ["ü", 1, None]}}}},
    {"json_schema": {"enum": list(range(4096))}},
    {"json_schema": {"items": {"$ref": "#"}, "prefixItems": []}},
    {"json_schema": {"$ref": "#/$defs/a~1%62", "$defs": {"a/b": {"$ref": "#/allOf/0"}}, "allOf": [True]}},
    {"json_schema": {"minimum": 0.5, "maximum": 0.5, "minLength": 0, "pattern": "^[a-z]{2}$"}},
    {"json_schema": {"properties": {"$ref": {"type": "string"}, "pattern": {"minimum": 1}}}},
    {"ebnf": 'root ::= "(" item* ")" # (\nitem ::= [(\\]] | "\\"("'},
    {
        "ebnf": 'root ::= TagDispatch(("a", b), loop_after_dispatch=true)\nb ::= "é" [é] -c.d\r\n-c.d ::= "x"{2,}'
    },
    {"ebnf": 'root\n::= "a"\n | "b" (= "c") # it\'s; a comment'},
    {"ebnf": "root ::= " + "(" * 256 + '"a"' + ")" * 256},
]
REFUSED = [
    ({"regex": "[a-z"}, "position 0"),
    ({"regex": "a)b"}, "position 1"),
    ({"regex": "*a"}, "position 0"),
    ({"regex": "ab(?=c)"}, "look-ahead at position 2"),
    ({"regex": "(?<!a)b"}, "look-behind"),
    ({"regex": r"(a)\1"}, "back-reference at position 3"),
    ({"regex": "(?i)abc"}, "a flag at position 0"),
    ({"regex": r"a\p{L}"}, "position 1"),
    ({"regex": "a{10001}"}, "10,000"),
    ({"regex": "a{1,99999999999999999999}"}, "10,000"),
    ({"regex": "a" * 4097}, "4,096"),
    ({"regex": "(" * 2000 + ")" * 2000}, "deep"),
    ({"regex": "\ud800"}, "Unicode"),
    ({"json_schema": '{"type": }'}, "line 1, column 10"),
    ({"json_schema": "[]"}, "must be an object"),
    ({"json_schema": {"properties": {"a": {"type": "strin"}}}}, "/properties/a/type is 'strin'"),
    ({"json_schema": {"properties": {"x": {"type": 12}}}}, "/properties/x/type is 12"),
    ({"json_schema": nested(64)}, "64 deep"),
    ({"json_schema": "[" * 100_000}, "deep"),
    ({"json_schema": {"enum": list(range(4097))}}, "4,097"),
    ({"json_schema": {"enum": []}}, "at least one"),
    ({"json_schema": {"items": [{"type": "string"}]}}, "prefixItems"),
    ({"json_schema": {"$ref": "http://example.invalid/s.json"}}, "/$ref"),
    ({"json_schema": {"$ref": "#Name", "$defs": {"Name": {"$anchor": "Name"}}}}, "#/$defs/NAME"),
    (
        {"json_schema": {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"c": {}}}},
        "points at nothing: '#/$defs/b'",
    ),
    ({"json_schema": {"$ref": "#/title", "title": "x"}}, "points at nothing"),
    ({"json_schema": {"$ref": "#"}}, "leads back to itself"),
    (
        {"json_schema": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}},
        "leads back to itself",
    ),
    ({"json_schema": {"required": "name"}}, "/required must be a list"),
    ({"json_schema": {"items": {"anyOf": []}}}, "/items/anyOf is empty"),
    ({"json_schema": {"maximum": "5"}}, "/maximum must be a number, found '5'"),
    ({"json_schema": {"minLength": -1}}, "/minLength must be a whole number"),
    ({"json_schema": {"minItems": 3, "maxItems": 1}}, "/minItems is 3, above maxItems, 1"),
    ({"json_schema": {"minimum": 5, "maximum": 1.5}}, "/minimum is 5, above maximum, 1.5"),
    ({"json_schema": {"pattern": "["}}, "/pattern: regex: unterminated"),
    ({"json_schema": {"pattern": "a(?=b)"}}, "/pattern: regex: a look-ahead"),
    ({"json_schema": {"pattern": 5}}, "/pattern must be a text"),
    ({"json_schema": '{"a": 1, "a": 2}'}, "twice"),
    ({"json_schema": '{"minimum": NaN}'}, "NaN"),
    ({"json_schema": {"minimum": float("inf")}}, "JSON"),
    ({"json_schema": {"not": 3}}, "/not must be a schema"),
    ({"json_schema": json.dumps({"title": "x" * (256 << 10)})}, "262,144"),
    ({"ebnf": 'rot ::= "a"'}, "no rule named root"),
    ({"ebnf": 'root ::= "a'}, "line 1, column 10"),
    ({"ebnf": 'root ::= "a" )'}, "closes nothing"),
    ({"ebnf": 'root ::= "b"\n | ("a"'}, "'(' at line 2, column 4 is never closed"),
    (
        {"ebnf": 'root ::= move\nmoves ::= "a"'},
        "rule 'move' at line 1, column 10 is not defined; did you mean 'moves'",
    ),
    ({"ebnf": 'root ::= "a"\nroot ::= "b"'}, "rule 'root' at line 2, column 1 is defined already, at line 1"),
    ({"ebnf": "root ::= 'a'"}, '"\'" at line 1, column 10 is no sign of a grammar'),
    ({"ebnf": 'root ::= "a";'}, "';' at line 1, column 13"),
    ({"ebnf": 'root ::= b\nb := "a"'}, "':' at line 2, column 3"),
    ({"ebnf": 'root ::= é\né ::= "a"'}, "'é' at line 1, column 10"),
    ({"ebnf": 'root ::= "a" b ::= "c"'}, "'::=' at line 1, column 16 stands behind no name"),
    ({"ebnf": "root ::= " + "(" * 257 + '"a"' + ")" * 257}, "256"),
    ({"ebnf": "root ::= " + '"a" ' * 20_000}, "65,536"),
    ({"regex": "a", "ebnf": 'root ::= "a"'}, "one constraint"),
    ({"regex": 3}, "regex"),
]


@pytest.mark.parametrize("given", LEGAL)
def test_legal(given):
    params = SamplingParams.make(given)
    kind = next(iter(given))
    assert params.constraint.kind == kind and params.unconstrained().constraint is None


@pytest.mark.grammar
@pytest.mark.parametrize(("given", "words"), REFUSED)
def test_B022_B028_B029_B032_B055_B059_refused_with_the_place(given, words):
    with pytest.raises(LimitError) as caught:
        SamplingParams.make(given)
    assert words in str(caught.value)
