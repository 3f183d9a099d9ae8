"""What a program may write for a constraint, as text for the engine; and the way back, from generated text to an object.

Notebook process; used by ``lang.arguments``. ``int``, ``Literal``, an enum, a dataclass, a ``TypedDict``, a pydantic model,
a dict or JSON text become a regular expression or a JSON schema (``Shape``), and ``Shape.parse`` reads an output. Pure:
pydantic is never imported, a model of it is known by its methods. Errors are ValueError or TypeError with a path; the place
in the program is the caller's to add.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal

from sgnb.constraints import Kind

REGEX_INT = r"[-+]?[0-9]+[ \n]*"
REGEX_FLOAT = r"[-+]?[0-9]*\.?[0-9]+[ \n]*"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r"\"[\w\d\s]*\""
"""The four are SGLang's, and so is what they match."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A constraint and how an output that meets it is read. ``stop``: stop strings that go with it."""

    kind: Kind
    text: str
    parse: Callable[[str], Any]
    stop: tuple[str, ...] = ()


def dtype_shape(dtype: Any) -> Shape:
    """``gen(dtype=…)``: the four plain types as SGLang has them, else a choice of texts, else JSON."""
    plain = _PLAIN.get(dtype) if isinstance(dtype, type | str) else None
    if plain is not None:
        return plain
    if isinstance(dtype, str) and not dtype.lstrip().startswith("{"):
        raise TypeError(
            f"no type is called {dtype!r}; as text it takes {', '.join(k for k in _PLAIN if isinstance(k, str))}"
        )
    texts = _texts_of(dtype)
    if texts is not None:
        return Shape("regex", "(" + "|".join(map(_escape, texts)) + ")", lambda text: _one_of(texts, text))
    return schema_shape(dtype)


def regex_shape(value: Any) -> Shape:
    """``gen(regex=…)``: a pattern as text, a compiled one without flags, or one of the types that have one."""
    if isinstance(value, re.Pattern):
        if value.flags & ~re.UNICODE or not isinstance(value.pattern, str):
            raise TypeError("a compiled regex must be of text and have no flags")
        value = value.pattern
    if isinstance(value, str):
        return Shape("regex", value, lambda text: _matched(value, text))
    shape = dtype_shape(value)
    if shape.kind != "regex":
        raise TypeError(f"regex takes a pattern, not {_name(value)}; json_schema takes it")
    return shape


def schema_shape(value: Any) -> Shape:
    """``gen(json_schema=…)``: a schema as text or dict, or a type."""
    if isinstance(value, str):
        return Shape("json_schema", value, json.loads)
    if isinstance(value, Mapping):
        return Shape("json_schema", _dump(dict(value)), json.loads)
    if _is_model(value):
        return Shape("json_schema", _dump(value.model_json_schema()), value.model_validate_json)
    schema = json_schema_of(value)
    return Shape("json_schema", _dump(schema), lambda text: build(value, json.loads(text)))


def ebnf_shape(value: Any) -> Shape:
    """``gen(ebnf=…)``: the grammar's text; an output is read as it is."""
    if not isinstance(value, str):
        raise TypeError(f"ebnf takes a text, not {_name(value)}")
    return Shape("ebnf", value, str)


def _dump(schema: dict[str, Any]) -> str:
    return json.dumps(schema, ensure_ascii=False, allow_nan=False)


# ---------------------------------------------------------------- plain types and choices of texts


def _quoted(text: str) -> str:
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        raise ValueError("there are no quotes around it")
    return text[1:-1]


def _bool(text: str) -> bool:
    return bool(_one_of({"True": True, "False": False}, text))


_INT = Shape("regex", REGEX_INT, int, (" ", "\n"))
_FLOAT = Shape("regex", REGEX_FLOAT, float, (" ", "\n"))
_PLAIN: dict[Any, Shape] = {}
for _kind, _shape in (
    (int, _INT),
    (float, _FLOAT),
    (str, Shape("regex", REGEX_STR, _quoted)),
    (bool, Shape("regex", REGEX_BOOL, _bool)),
):
    _PLAIN[_kind] = _PLAIN[_kind.__name__] = _shape


def _texts_of(tp: Any) -> dict[str, Any] | None:
    """Text → value of a ``Literal`` or an enum of texts and numbers; None for anything else."""
    if typing.get_origin(tp) is Literal:
        values = {arg: arg for arg in typing.get_args(tp)}
    elif isinstance(tp, type) and issubclass(tp, enum.Enum):
        values = {member.value: member for member in tp}
    else:
        return None
    if not all(isinstance(value, str | int) for value in values) or "" in values:
        return None
    return {str(value): meant for value, meant in values.items()}


def _escape(text: str) -> str:
    """Only what is special; ``re.escape`` would also write a backslash before spaces, which is legal but longer."""
    return re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", text)


def _one_of(texts: Mapping[str, Any], text: str) -> Any:
    if text not in texts:
        raise ValueError(f"it is none of {', '.join(map(repr, texts))}")
    return texts[text]


def _matched(pattern: str, text: str) -> str:
    if re.fullmatch(pattern, text) is None:
        raise ValueError(f"it does not match {pattern!r}")
    return text


# ---------------------------------------------------------------- types → JSON schema


def json_schema_of(tp: Any) -> dict[str, Any]:
    """The JSON schema of a type. TypeError, with a path, for a type JSON has no value of."""
    maker = _SchemaMaker()
    schema = maker.make(tp, "")
    return {**schema, "$defs": maker.defs} if maker.defs else schema


_JSON: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
    object: {},
}


class _SchemaMaker:
    """Classes that contain themselves become definitions; others are written out where they stand."""

    def __init__(self) -> None:
        self.defs: dict[str, Any] = {}
        self._open: list[Any] = []
        self._recursive: set[Any] = set()

    def make(self, tp: Any, path: str) -> dict[str, Any]:
        if typing.get_origin(tp) is typing.Annotated:
            return self.make(typing.get_args(tp)[0], path)
        try:
            if tp in _JSON:
                return dict(_JSON[tp])
        except TypeError:
            pass  # not hashable, so it is no type: refused below
        if typing.get_origin(tp) is Literal:
            return {"enum": list(typing.get_args(tp))}
        if isinstance(tp, type) and issubclass(tp, enum.Enum):
            return {"enum": [member.value for member in tp]}
        if _is_model(tp):
            schema = dict(tp.model_json_schema())
            self.defs.update(schema.pop("$defs", {}))
            return schema
        if isinstance(tp, type) and (dataclasses.is_dataclass(tp) or typing.is_typeddict(tp)):
            return self._class(tp, path)
        return self._generic(tp, path)

    def _generic(self, tp: Any, path: str) -> dict[str, Any]:
        origin, args = typing.get_origin(tp), typing.get_args(tp)
        if origin in (list, set, frozenset):
            return {"type": "array", "items": self.make(args[0], f"{path}[]")}
        if origin is tuple and len(args) == 2 and args[1] is Ellipsis:
            return {"type": "array", "items": self.make(args[0], f"{path}[]")}
        if origin is tuple:
            parts = [self.make(arg, f"{path}[{i}]") for i, arg in enumerate(args)]
            return {"type": "array", "prefixItems": parts, "minItems": len(args), "maxItems": len(args)}
        if origin is dict and args[0] is str:
            return {"type": "object", "additionalProperties": self.make(args[1], f"{path}{{}}")}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.make(arg, path) for arg in args]}
        where = f" (at {path.lstrip('.')})" if path else ""
        raise TypeError(
            f"{_name(tp)}{where} has no JSON schema; use str, int, float, bool, None, list, tuple, dict[str, …], "
            "unions, Literal, enums, dataclasses, TypedDict or pydantic models"
        )

    def _class(self, tp: Any, path: str) -> dict[str, Any]:
        reference = {"$ref": f"#/$defs/{tp.__name__}"}
        if tp in self._open:
            self._recursive.add(tp)
            return reference
        self._open.append(tp)
        fields = _fields(tp)
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {name: self.make(hint, f"{path}.{name}") for name, (hint, _) in fields.items()},
            "required": [name for name, (_, required) in fields.items() if required],
            "additionalProperties": False,
        }
        self._open.pop()
        if tp not in self._recursive:
            return schema
        self.defs[tp.__name__] = schema
        return reference


def _fields(tp: Any) -> dict[str, tuple[Any, bool]]:
    """Name → (type, must be there) of a dataclass or TypedDict."""
    try:
        hints = typing.get_type_hints(tp)
    except NameError as error:
        raise TypeError(f"{tp.__name__}: {error}; its types must be known where it is defined") from None
    if typing.is_typeddict(tp):
        whole = typing.get_type_hints(tp, include_extras=True)
        return {name: (hints[name], _is_required(tp, name, hint)) for name, hint in whole.items()}
    out = {}
    for one in dataclasses.fields(tp):
        if one.init:
            none = dataclasses.MISSING
            out[one.name] = (hints[one.name], one.default is none and one.default_factory is none)
    return out


def _is_required(tp: Any, name: str, hint: Any) -> bool:
    """Of a TypedDict's key. Annotations that were strings are looked into: ``__required_keys__`` does not know them."""
    origin = typing.get_origin(hint)
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return name in tp.__required_keys__


def _is_model(tp: Any) -> bool:
    return isinstance(tp, type) and hasattr(tp, "model_json_schema") and hasattr(tp, "model_validate_json")


def _name(tp: Any) -> str:
    return getattr(tp, "__name__", None) or repr(tp)


# ---------------------------------------------------------------- JSON values → objects


def build(tp: Any, value: Any, path: str = "") -> Any:
    """A JSON value as an object of a type. ValueError, with a path, when it is none."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return build(args[0], value, path)
    if tp in (Any, object):
        return value
    if origin is Literal:
        if not any(value == arg and type(value) is type(arg) for arg in args):
            raise _wrong(path, " or ".join(map(repr, args)), value)
        return value
    if isinstance(tp, type) and issubclass(tp, enum.Enum):
        try:
            return tp(value)
        except ValueError:
            raise _wrong(path, f"a {tp.__name__}", value) from None
    if _is_model(tp):
        return tp.model_validate(value)
    if isinstance(tp, type) and (dataclasses.is_dataclass(tp) or typing.is_typeddict(tp)):
        return _build_class(tp, value, path)
    if origin in (typing.Union, types.UnionType):
        return _build_union(args, value, path)
    if origin is not None:
        return _build_generic(origin, args, value, path)
    return _build_plain(tp, value, path)


def _build_plain(tp: Any, value: Any, path: str) -> Any:
    if tp is None or tp is type(None):
        if value is not None:
            raise _wrong(path, "null", value)
        return None
    if tp is float and type(value) is int:
        return float(value)
    if tp is int and type(value) is float and value.is_integer():
        return int(value)
    wanted = list if tp is tuple else tp
    if type(value) is not wanted:
        raise _wrong(path, _name(tp), value)
    return tuple(value) if tp is tuple else value


def _build_generic(origin: Any, args: tuple[Any, ...], value: Any, path: str) -> Any:
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(path, "an object", value)
        return {key: build(args[1], one, f"{path}.{key}") for key, one in value.items()}
    if not isinstance(value, list):
        raise _wrong(path, "a list", value)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        if len(value) != len(args):
            raise _wrong(path, f"{len(args)} items", value)
        return tuple(build(args[i], one, f"{path}[{i}]") for i, one in enumerate(value))
    return origin(build(args[0], one, f"{path}[{i}]") for i, one in enumerate(value))


def _build_union(args: tuple[Any, ...], value: Any, path: str) -> Any:
    reasons = []
    for arg in args:
        try:
            return build(arg, value, path)
        except ValueError as error:
            reasons.append(str(error))
    raise ValueError("; ".join(reasons))


def _build_class(tp: Any, value: Any, path: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(path, f"an object for {tp.__name__}", value)
    fields = _fields(tp)
    for key in value:
        if key not in fields:
            raise ValueError(f"{path.lstrip('.') or tp.__name__} has no field {key!r}")
    for name, (_, required) in fields.items():
        if required and name not in value:
            raise ValueError(f"{path.lstrip('.') or tp.__name__} lacks {name!r}")
    return tp(**{name: build(fields[name][0], one, f"{path}.{name}") for name, one in value.items()})


def _wrong(path: str, wanted: str, value: Any) -> ValueError:
    return ValueError(f"{path.lstrip('.') or 'the value'}: expected {wanted}, found {value!r}")
