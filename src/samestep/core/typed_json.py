"""Data that another process sent or wrote, with the types that its readers rely on."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from samestep.core.json_files import Json

T = TypeVar("T")


def from_json(cls: type[T], data: Json) -> T:
    """The dataclass that `dataclasses.asdict` made `data` from; ValueError if it is not of that shape.

    Fields may be numbers, texts, dataclasses, sequences, dicts with texts as keys, and unions with None. What no field
    has the name of is ignored, since another version may have written it.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"{cls.__name__} must have named fields")
    assert is_dataclass(cls)
    types = get_type_hints(cls)
    required = {field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING}
    if missing := sorted(required - data.keys()):
        raise ValueError(f"{cls.__name__} has no {missing[0]}")
    given = {field.name for field in fields(cls) if field.name in data}
    return cls(**{name: _value(types[name], data[name], f"{cls.__name__}.{name}") for name in given})


def _value(kind: Any, data: Json, where: str) -> Any:
    """`data` as a value of type `kind`."""
    options = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    if data is None and NoneType in options:
        return None
    kind = next(option for option in options if option is not NoneType)
    if get_origin(kind) is Sequence and isinstance(data, list):
        return [_value(get_args(kind)[0], item, where) for item in data]
    if get_origin(kind) is dict and isinstance(data, dict):
        of = get_args(kind)[1]
        return data if of is Any else {name: _value(of, item, where) for name, item in data.items()}
    if is_dataclass(kind):
        return from_json(kind, data)  # type: ignore[arg-type]  # a class, not an instance
    if kind is float and type(data) in (int, float) and abs(data) <= sys.float_info.max:
        return float(data)
    if type(data) is not kind or kind is float:
        raise ValueError(f"{where} cannot be {type(data).__name__}")
    return data
