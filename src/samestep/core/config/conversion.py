"""From plain data to a typed config. Text is converted to the field's type and not interpreted in any other way.

A `${...}` in a prompt, for instance, is no interpolation here.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from samestep.core.config.bounds import bare, broken_bounds
from samestep.core.config.limits import check_yaml
from samestep.core.config.schema import (
    FALSE_WORDS,
    MISSING,
    NULL,
    NULL_WORDS,
    TRUE_WORDS,
    default_of,
    expected,
    init_fields,
    is_dict,
    is_list,
    is_section,
    mapping_form,
    members,
    paths_of,
    types_of,
    without_null,
)
from samestep.core.config.unknown_settings import unknown_setting
from samestep.core.errors import UserError
from samestep.core.near_names import did_you_mean

T = TypeVar("T")
_SHOWN = 80  # characters of a refused value that a message quotes
_EXACT = 2**53  # integers below it are exact as a float


@dataclass(frozen=True)
class FieldPath:
    """The dotted name of a value in the data, for error messages."""

    root: type
    path: str = ""

    def child(self, name: object) -> "FieldPath":
        return FieldPath(self.root, f"{self.path}.{name}" if self.path else str(name))

    def refuse(self, value: object, tp: Any) -> UserError:
        """The error for a value of the wrong type, or out of its bounds."""
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 3] + "..."
        words = [str(word) for each in members(tp) if get_origin(each) is Literal for word in get_args(each)]
        meant = did_you_mean(value, words) if isinstance(value, str) else ""
        return UserError(f"{self.path or 'The config'} must be {expected(tp)}, not {shown}{meant}.")


def build(cls: type[T], data: Mapping[str, Any]) -> T:
    """An instance of a (nested, frozen) config class; fields that `data` does not have keep their default."""
    return _section(data, cls, FieldPath(cls), None)


def parse_inline_yaml(text: str, typed: bool = False) -> Any:
    """A list or mapping written on one line, as in YAML or JSON; its scalars stay text unless `typed`."""
    import yaml

    check_yaml(text, f"{text[:20]!r}...")
    try:
        return yaml.load(text, Loader=yaml.SafeLoader if typed else yaml.BaseLoader)
    except (yaml.YAMLError, ValueError):
        return text


def _section(value: Any, cls: type[T], place: FieldPath, base: T | None) -> T:
    """A nested config: `value` overrides fields of `base`, the default that the parent gives this section."""
    if isinstance(value, cls):
        return value
    value = parse_inline_yaml(value) if isinstance(value, str) else value
    if not isinstance(value, Mapping):
        raise place.refuse(value, cls)
    data = {str(key): item for key, item in value.items()}
    kind: type = cls
    fields, kinds = init_fields(kind), types_of(kind)
    unknown = [key for key in data if key not in {field.name for field in fields}]
    if unknown:
        names = [*paths_of(place.root), *(place.child(field.name).path for field in fields)]
        raise unknown_setting(place.child(unknown[0]).path, dict.fromkeys(names))
    arguments = {
        field.name: _field(data.get(field.name, MISSING), field, kinds[field.name], place.child(field.name), base)
        for field in fields
    }
    try:
        return cls(**arguments)
    except ValueError as error:  # raised by a check in __post_init__
        raise UserError(f"{place.path + ': ' if place.path else ''}{error}") from None


def _field(value: Any, field: dataclasses.Field[Any], tp: Any, place: FieldPath, parent: Any) -> Any:
    default = default_of(field) if parent is None else getattr(parent, field.name)
    form = mapping_form(field.metadata)
    if form is not None and _is_mapping(value):
        return _section(value, form, place, None).value()
    if value is not MISSING:
        return convert(value, tp, place, None if default is MISSING else default)
    if default is MISSING and is_section(tp):
        return _section({}, tp, place, None)
    if default is MISSING:
        raise UserError(f"Set {place.path} to {expected(tp)}; it has no default.")
    return default


def _is_mapping(value: Any) -> bool:
    """Whether a value is a mapping, or text that is meant as one."""
    return value.lstrip().startswith("{") if isinstance(value, str) else isinstance(value, Mapping)


def convert(value: Any, tp: Any, place: FieldPath, base: Any = None) -> Any:
    """`value` as type `tp`. `base` is the default whose fields a nested config overrides."""
    if tp in (Any, object):
        return value
    if len(members(tp)) > 1:
        return _union(value, tp, place, base)
    if is_section(tp):
        return _section(value, tp, place, base if isinstance(base, tp) else None)
    if is_list(tp):
        return _list(value, tp, place)
    if is_dict(tp):
        return _dict(value, tp, place)
    kind = bare(tp)
    assert get_origin(kind) is Literal or kind in _SCALARS, f"{place.path}: a config field cannot be of type {tp}"
    try:
        found = _literal(value, kind) if get_origin(kind) is Literal else _SCALARS[kind](value)
    except (ValueError, OverflowError):
        raise place.refuse(value, tp) from None
    bounds = broken_bounds(found, tp)
    if bounds is not None:
        raise place.refuse(value, Annotated[kind, bounds])
    return found


def _union(value: Any, tp: Any, place: FieldPath, base: Any) -> Any:
    """The first alternative that accepts the value, the narrowest first, so that "3" for `int | str` is a number."""
    choices = sorted(without_null(tp), key=_width)
    if NULL in members(tp) and _means_null(value, choices):
        return None
    if len(choices) == 1 and _width(choices[0]) == _NESTED:
        return convert(value, choices[0], place, base)  # its own message names the part of the value that is wrong
    exact = [choice for choice in choices if type(value) is bare(choice)] if not isinstance(value, str) else []
    for choice in exact or choices:
        try:
            return convert(value, choice, place, base)
        except UserError:
            continue
    raise place.refuse(value, tp)


_NESTED = 4
_WIDTHS: dict[Any, int] = {int: 1, float: 2, bool: 3, Path: 5, str: 6, Any: 7, object: 7}


def _width(tp: Any) -> int:
    return 0 if get_origin(tp) is Literal else _WIDTHS.get(bare(tp), _NESTED)


def _means_null(value: Any, choices: Sequence[Any]) -> bool:
    """Null, or text for it. Where text is a legal value only `null` counts, so that a name may be "none"."""
    if not isinstance(value, str):
        return value is None
    if any(value in get_args(choice) for choice in choices if get_origin(choice) is Literal):
        return False
    return value == "null" if str in choices else value.lower() in NULL_WORDS


def _list(value: Any, tp: Any, place: FieldPath) -> Any:
    make = list if (get_origin(tp) or tp) is list else tuple
    kinds = get_args(tp) or (Any,)
    items = parse_inline_yaml(value, typed=Any in kinds) if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise place.refuse(value, tp)
    if make is tuple and Ellipsis not in kinds and get_origin(tp) is tuple:
        if len(items) != len(kinds):
            raise place.refuse(value, tp)
    else:
        kinds = kinds[:1] * len(items)
    return make(convert(item, kind, place.child(at)) for at, (item, kind) in enumerate(zip(items, kinds)))


def _dict(value: Any, tp: Any, place: FieldPath) -> dict[Any, Any]:
    key_type, item_type = get_args(tp) or (str, Any)
    items = parse_inline_yaml(value, typed=item_type is Any) if isinstance(value, str) else value
    if not isinstance(items, Mapping):
        raise place.refuse(value, tp)
    return {
        convert(key, key_type, place.child(key)): convert(item, item_type, place.child(key))
        for key, item in items.items()
    }


def _literal(value: Any, tp: Any) -> Any:
    """One of the choices. YAML reads a bare `on` or `no` as a boolean; this is undone where only one choice matches."""
    choices = get_args(tp)
    exact = [choice for choice in choices if type(choice) is type(value) and choice == value]
    spellings = (TRUE_WORDS if value else FALSE_WORDS) if isinstance(value, bool) else {str(value)}
    matching = exact or [choice for choice in choices if str(choice) in spellings or _spells(value, choice)]
    if len(matching) != 1:
        raise ValueError
    return matching[0]


def _spells(value: Any, choice: Any) -> bool:
    """Whether `value` is a spelling of `choice`, which is true or false."""
    return isinstance(choice, bool) and str(value).lower() in (TRUE_WORDS if choice else FALSE_WORDS)


def _boolean(value: Any) -> bool:
    text = str(value).lower() if isinstance(value, str | int) else ""
    if text not in TRUE_WORDS | FALSE_WORDS:
        raise ValueError
    return text in TRUE_WORDS


def _integer(value: Any) -> int:
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            value = float(value)  # 1e6 is an integer too
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError
    if isinstance(value, float) and not (value.is_integer() and abs(value) < _EXACT):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError
    return float(value)


def _text(value: Any) -> str:
    """Text, also from a number that YAML read; not from a boolean, whose text is lost (`no` arrives as False)."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Path):
        raise ValueError
    text = str(value)
    if "\0" in text:  # no path may have it
        raise ValueError
    text.encode()  # a UnicodeEncodeError is a ValueError
    return text


_SCALARS: dict[Any, Callable[[Any], Any]] = {
    bool: _boolean,
    int: _integer,
    float: _number,
    str: _text,
    Path: lambda value: Path(_text(value)),
}
