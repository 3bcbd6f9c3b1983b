"""Typed configs: frozen dataclasses with a text under each field.

`build` makes one from plain data and refuses in one sentence what does not fit; `dump` is its inverse; `fields_of`
lists every field with its meaning; `changed` finds what a resumed run may not change.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from samestep.core.config.conversion import build
from samestep.core.config.schema import (
    MISSING,
    FieldDoc,
    defaults_of,
    fields_of,
    init_fields,
    is_marked_free,
    paths_of,
    plain,
    section,
    types_of,
)

__all__ = ["MISSING", "FieldDoc", "build", "changed", "defaults_of", "dump", "fields_of", "free", "paths_of"]


def free(default: Any = MISSING, *, factory: Callable[[], Any] | None = None) -> Any:
    """A field that may change when a run is resumed, since it does not shape the run's course."""
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata={"free": True})
    return dataclasses.field(default=default, metadata={"free": True})


def dump(config: Any) -> dict[str, Any]:
    """The config as plain data for a JSON file, from which `build` makes an equal config."""
    data = plain(config)
    assert isinstance(data, dict), f"{config!r} is not a config"
    return data


def changed(old: Mapping[str, Any], new: Mapping[str, Any], cls: type) -> list[str]:
    """Dotted names of the fixed fields that differ between two dumps.

    A field that a dump does not have, because the program has gained it since, counts as its default.
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
