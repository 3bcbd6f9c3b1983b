"""The fields of a config class: names, types, defaults and meanings."""

import ast
import dataclasses
import inspect
import math
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Protocol, TypeGuard, Union, cast, get_args, get_origin

from samestep.core.config.bounds import bare, bounds_of

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


@cache
def types_of(cls: type) -> Mapping[str, Any]:
    """The type of every field, with its bounds; annotations written as text are resolved."""
    return types.MappingProxyType(typing.get_type_hints(cls, include_extras=True))


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a field, or MISSING."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def members(tp: Any) -> tuple[Any, ...]:
    """The alternatives of a union; a type that is not a union is its only alternative."""
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
    """The type as a table shows it: `int >= 1`, `int | null`, `none | bf16 | fp16`, `list[int]`."""
    bounds = bounds_of(tp)
    if bounds is not None:
        return f"{type_text(bare(tp))} {bounds.signs()}".rstrip()
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
    """The type as a message names it, after "must be"."""
    bounds = bounds_of(tp)
    if bounds is not None:
        return f"{expected(bare(tp))} {bounds.text()}".rstrip()
    if len(members(tp)) > 1:
        return " or ".join(expected(member) for member in members(tp))
    if get_origin(tp) is Literal:
        choices = [str(choice) for choice in get_args(tp)]
        return choices[0] if len(choices) == 1 else "one of " + ", ".join(choices)
    if is_list(tp):
        return f"a list such as [a, b] of type {type_text(tp)}"
    if is_dict(tp):
        return f"a mapping such as {{a: b}} of type {type_text(tp)}"
    return _PHRASES.get(tp) or f"a mapping of the fields of {type_text(tp)}"


def plain(value: Any) -> Any:
    """A value as JSON can hold it. Infinities and NaN become text, because JSON has no number for them."""
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
    """Names as text: `a, b and c`."""
    *first, end = names
    return f"{', '.join(first)} {last} {end}" if first else end


@dataclass(frozen=True)
class FieldDoc:
    """One field that can be set: its path, type, default and meaning."""

    path: str
    """Dotted name."""
    type: str
    """Type, as text for people."""
    default: Any
    """Default value; MISSING if the field must be set."""
    doc: str
    """Meaning: the text under the field in the source."""
    free: bool
    """Whether it may change when a run is resumed."""


def fields_of(cls: type) -> list[FieldDoc]:
    """Every field of a config class, nested and inherited ones too, in the order of the source."""
    return list(_walk(cls, "", None, False))


def _walk(cls: type, prefix: str, base: Any, free: bool) -> Iterator[FieldDoc]:
    kinds, docs = types_of(cls), field_docs(cls)
    for field in init_fields(cls):
        path, kind = prefix + field.name, kinds[field.name]
        default = default_of(field) if base is None else getattr(base, field.name)
        is_free = free or is_marked_free(field.metadata)
        inner = section(kind)
        if inner is not None:
            yield from _walk(inner, f"{path}.", default if isinstance(default, inner) else None, is_free)
        else:
            yield FieldDoc(path, type_text(kind), default, docs.get(field.name, ""), is_free)


class MappingForm(Protocol):
    """A config class whose fields are another way to write one setting: `value` is what they amount to."""

    def value(self) -> Any:
        """The value of the setting."""


def mapping_form(metadata: Any) -> type[MappingForm] | None:
    """The config class whose fields may be written in place of a field's value, if the field's metadata names one."""
    return cast("type[MappingForm] | None", metadata.get("mapping_form"))


def is_marked_free(metadata: Any) -> bool:
    """Whether a field's metadata says that it may change when a run is resumed."""
    return bool(metadata.get("free", False))


@cache
def paths_of(cls: type) -> Mapping[str, Any]:
    """The type of every dotted name; sections, and the fields of mapping forms, included."""
    found: dict[str, Any] = {}
    kinds = types_of(cls)
    for field in init_fields(cls):
        found[field.name] = kinds[field.name]
        inner = section(kinds[field.name]) or mapping_form(field.metadata)
        if inner is not None:
            found |= {f"{field.name}.{path}": kind for path, kind in paths_of(inner).items()}
    return types.MappingProxyType(found)


def locate(paths: Mapping[str, Any], path: str) -> tuple[str, str | None] | None:
    """The field that `path` names, and the key in it when the field is a mapping (`mix.wiki`: `mix`, `wiki`)."""
    if path in paths:
        return path, None
    parts = path.split(".")
    for cut in range(1, len(parts)):
        field, key = ".".join(parts[:cut]), ".".join(parts[cut:])
        if field in paths and holds_dict(paths[field]):
            return field, key
    return None


def field_docs(cls: type) -> dict[str, str]:
    """The text under each field. A field that a subclass only gives another default keeps its parent's text."""
    docs: dict[str, str] = {}
    for owner in reversed(cls.__mro__):
        docs |= _docs_in_source(owner)
    return docs


def _docs_in_source(cls: type) -> dict[str, str]:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # built in, created at run time, or typed into a prompt
        return {}
    return texts_under_fields(tree.body[0].body) if tree.body and isinstance(tree.body[0], ast.ClassDef) else {}


def texts_under_fields(body: Sequence[ast.stmt]) -> dict[str, str]:
    """The text under each field in the source of a class."""
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def defaults_of(cls: type, base: Any = None) -> dict[str, Any]:
    """The defaults of a config class as nested values; fields that must be set are absent."""
    kinds, found = types_of(cls), {}
    for field in init_fields(cls):
        value = default_of(field) if base is None else getattr(base, field.name)
        inner = section(kinds[field.name])
        if inner is not None and value is not None:
            found[field.name] = defaults_of(inner, None if value is MISSING else value)
        elif value is not MISSING:
            found[field.name] = value
    return found
