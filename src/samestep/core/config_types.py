"""What a config class is made of: its fields, their types and defaults, and how a type is called in a sentence."""

import dataclasses
import math
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeGuard, Union, get_args, get_origin

MISSING = dataclasses.MISSING  # a field without a default
NULL = type(None)
TRUE_WORDS = frozenset({"true", "yes", "on", "1"})
FALSE_WORDS = frozenset({"false", "no", "off", "0"})
NULL_WORDS = frozenset({"null", "none"})

_NAMES = {bool: "bool", int: "int", float: "float", str: "str", Path: "path", NULL: "null", Any: "any", object: "any"}
_PHRASES: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text (put it in quotes)",
    Path: "a path",
    NULL: "null",
}


def init_fields(cls: type) -> list[dataclasses.Field[Any]]:
    """The fields of a config class that can be set; computed ones (`init=False`) cannot."""
    return [field for field in dataclasses.fields(cls) if field.init]


def types_of(cls: type) -> dict[str, Any]:
    """The type of every field, names written as text resolved."""
    return typing.get_type_hints(cls)


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, or MISSING."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def members(tp: Any) -> tuple[Any, ...]:
    """The alternatives of a union; a type that is no union is its only alternative."""
    return get_args(tp) if get_origin(tp) in (Union, types.UnionType) else (tp,)


def without_null(tp: Any) -> tuple[Any, ...]:
    """The alternatives other than null."""
    return tuple(member for member in members(tp) if member is not NULL)


def section(tp: Any) -> type | None:
    """The config class that a field of this type nests, if it nests one."""
    real = without_null(tp)
    return real[0] if len(real) == 1 and is_section(real[0]) else None


def is_section(tp: Any) -> TypeGuard[type]:
    """Whether this (non-union) type is a config class."""
    return isinstance(tp, type) and dataclasses.is_dataclass(tp)


def is_flag(tp: Any) -> bool:
    """Whether a field of this type is switched with a bare `--name`."""
    return without_null(tp) == (bool,)


def is_list(tp: Any) -> bool:
    """Whether values of this (non-union) type are lists or tuples."""
    return (get_origin(tp) or tp) in (list, tuple, Sequence)


def is_dict(tp: Any) -> bool:
    """Whether values of this (non-union) type are mappings with free keys."""
    return (get_origin(tp) or tp) in (dict, Mapping)


def holds_dict(tp: Any) -> bool:
    """Whether a key below a field of this type names an entry of the field's mapping."""
    return any(is_dict(member) for member in without_null(tp))


def type_text(tp: Any) -> str:
    """The type as it stands in a table: `int | null`, `none | bf16 | fp16`, `list[int]`."""
    if len(members(tp)) > 1:
        return " | ".join(type_text(member) for member in members(tp))
    if get_origin(tp) is Literal:
        return " | ".join(str(choice) for choice in get_args(tp))
    if is_list(tp) or is_dict(tp):
        name = "dict" if is_dict(tp) else "list"
        inner = [type_text(arg) for arg in get_args(tp) if arg is not Ellipsis]
        return f"{name}[{', '.join(inner)}]" if inner else name
    return _NAMES.get(tp) or str(getattr(tp, "__name__", tp))


def expected(tp: Any) -> str:
    """The type as it stands in a sentence, after "must be"."""
    if len(members(tp)) > 1:
        return " or ".join(expected(member) for member in members(tp))
    if get_origin(tp) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(tp))
    if is_list(tp):
        return f"a list such as [a, b] of type {type_text(tp)}"
    if is_dict(tp):
        return f"a mapping such as {{a: b}} of type {type_text(tp)}"
    return _PHRASES.get(tp) or f"a mapping of the fields of {type_text(tp)}"


def plain(value: Any) -> Any:
    """A value as JSON can hold it. Infinities and not-a-number become text, since JSON has no number for them."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in init_fields(type(value))}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Path):
        return str(value)
    assert value is None or isinstance(value, bool | int | float | str), f"a config cannot hold {value!r}"
    return value


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names as a sentence lists them: `a, b and c`."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end
