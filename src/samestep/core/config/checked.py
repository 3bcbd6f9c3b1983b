"""The base of config classes: numbers out of their declared bounds are refused wherever a config is made.

`build` refuses them in what a user wrote; this does it in Python too, as in `Config(batch_size=0)`, with the same
sentence. A class declares its bounds in the types of its fields, and its `__post_init__` has only the conditions that
bounds cannot say, such as those between two fields.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

from samestep.core.config.bounds import bare
from samestep.core.config.conversion import FieldPath, convert
from samestep.core.config.schema import init_fields, is_dict, is_list, is_section, section, types_of, without_null


class CheckedConfig:
    """A config class, to inherit from: `@dataclass(frozen=True) class DataConfig(CheckedConfig)`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Put the check before the conditions of the class, so that these may rely on the bounds."""
        super().__init_subclass__(**options)
        own = cls.__dict__.get("__post_init__")
        if own is not None:
            cls.__post_init__ = _after_the_check(own)  # type: ignore[assignment, method-assign]

    def __post_init__(self) -> None:
        """Refuse numbers out of bounds."""
        _check_fields(self, FieldPath(type(self)))


def _after_the_check(conditions: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(conditions)
    def check(self: Any) -> None:
        _check_fields(self, FieldPath(type(self)))
        conditions(self)

    return check


def _check_fields(config: object, place: FieldPath) -> None:
    cls: type = type(config)
    for name, tp in _fields_with_numbers(cls).items():
        _check(getattr(config, name), tp, place.child(name))


@functools.cache
def _fields_with_numbers(cls: type) -> Mapping[str, Any]:
    types = types_of(cls)
    return {field.name: types[field.name] for field in init_fields(cls) if _has_numbers(types[field.name])}


def _has_numbers(tp: Any) -> bool:
    return _is_number(tp) or section(tp) is not None or _item_type(tp) is not None


def _is_number(tp: Any) -> bool:
    """Whether a field of this type holds nothing but a number, one of some words, or null."""
    kinds = [bare(each) for each in without_null(tp) if get_origin(each) is not Literal]
    return bool(kinds) and all(kind in (int, float) for kind in kinds)


def _words(tp: Any) -> list[Any]:
    """The words that a field of this type takes."""
    return [word for each in without_null(tp) if get_origin(each) is Literal for word in get_args(each)]


def _item_type(tp: Any) -> Any:
    """The type of the numbers in a list or mapping of this type; None if it is another type."""
    for each in without_null(tp):
        if (is_list(each) or is_dict(each)) and get_args(each):
            kind = get_args(each)[1 if is_dict(each) else 0]
            return kind if _is_number(kind) else None
    return None


def _check(value: Any, tp: Any, place: FieldPath) -> None:
    if _is_number(tp):
        if isinstance(value, str) and value not in _words(tp):  # here it would stay text, even where it is a number
            raise place.refuse(value, tp)
        convert(value, tp, place)
    elif is_section(type(value)):
        if not isinstance(value, CheckedConfig):  # that one was checked when it was made
            _check_fields(value, place)
    elif isinstance(value, list | tuple | Mapping):
        for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            _check(item, _item_type(tp), place.child(key))
