"""Typed configs: frozen dataclasses with a docstring under each field. Import from here.

`compose` makes a config from presets, files and the command line; `override` changes one that was dumped. `build` makes
one from plain data and refuses wrong values with one sentence; `dump` is its inverse. `fields_of` lists every field
with its meaning. `changed` finds fields that a resumed run may not change; `free` declares those that it may, and
`or_mapping` those whose value has a second way to be written. `NoEffect` declares settings that have no effect beside
others. The type of a number declares its bounds: `Count`, `Positive`, or `Annotated[float, Bounds(above=0, most=2)]`.
A class that inherits from `CheckedConfig` refuses numbers out of bounds wherever it is made.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from samestep.core.config.bounds import Bounds, Count, CountOrZero, Decay, NotNegative, PartialShare, Positive, Share
from samestep.core.config.checked import CheckedConfig
from samestep.core.config.command_line import Alias, parse_settings, split_args, split_options, switch_takes, takes_any
from samestep.core.config.conversion import build
from samestep.core.config.files import group_options
from samestep.core.config.merging import (
    Aliases,
    Layers,
    Presets,
    compose,
    flatten,
    given_by_args,
    merge,
    override,
    read_layers,
)
from samestep.core.config.no_effect import Given, NoEffect
from samestep.core.config.schema import (
    MISSING,
    FieldDoc,
    MappingForm,
    defaults_of,
    fields_of,
    init_fields,
    is_flag,
    is_marked_free,
    listed,
    paths_of,
    plain,
    section,
    types_of,
)

__all__ = [
    "MISSING",
    "Alias",
    "Aliases",
    "Bounds",
    "CheckedConfig",
    "Count",
    "CountOrZero",
    "Decay",
    "FieldDoc",
    "Given",
    "Layers",
    "NoEffect",
    "NotNegative",
    "PartialShare",
    "Positive",
    "Presets",
    "Share",
    "build",
    "changed",
    "compose",
    "defaults_of",
    "dump",
    "fields_of",
    "flatten",
    "free",
    "given_by_args",
    "group_options",
    "is_flag",
    "listed",
    "merge",
    "or_mapping",
    "override",
    "parse_settings",
    "paths_of",
    "plain",
    "read_layers",
    "split_args",
    "split_options",
    "switch_takes",
    "takes_any",
]


def free(default: Any = MISSING, *, factory: Callable[[], Any] | None = None) -> Any:
    """A field that may change when a run is resumed, because it does not affect the results."""
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata={"free": True})
    return dataclasses.field(default=default, metadata={"free": True})


def or_mapping(default: Any, form: type[MappingForm]) -> Any:
    """A field whose value may also be written as a mapping: with the fields of the config class `form`."""
    return dataclasses.field(default=default, metadata={"mapping_form": form})


def dump(config: Any) -> dict[str, Any]:
    """The config as plain data for a JSON file, from which `build` makes an equal config."""
    data = plain(config)
    assert isinstance(data, dict), f"{config!r} is not a config"
    return data


def changed(old: Mapping[str, Any], new: Mapping[str, Any], cls: type) -> list[str]:
    """Dotted names of the fixed fields that differ between two dumps.

    A field that a recipe's author added since, and so the old dump lacks, counts as its default.
    """
    return _changed(old, new, cls, plain(defaults_of(cls)), "")


def _changed(
    old: Mapping[str, Any], new: Mapping[str, Any], cls: type, defaults: Mapping[str, Any], prefix: str
) -> list[str]:
    kinds, found = types_of(cls), []
    for field in init_fields(cls):
        if is_marked_free(field.metadata):
            continue
        name = field.name
        default = defaults.get(name)
        before, after = old.get(name, default), new.get(name, default)
        inner = section(kinds[name])
        if inner is not None and isinstance(before, Mapping) and isinstance(after, Mapping):
            inner_defaults = default if default is not None else plain(defaults_of(inner))
            found += _changed(before, after, inner, inner_defaults, f"{prefix}{name}.")
        elif before != after:
            found.append(prefix + name)
    return found
