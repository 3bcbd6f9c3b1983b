"""A run's config out of its layers: default < base group < preset < file < command line.

Hydra composes the YAML files; the command line is merged as data, because Hydra's override grammar refuses everyday
text. A group option (`distributed=fsdp`) counts as the settings of its file, in the layer where it is chosen, and takes
the place of the option that a lower layer chose.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from samestep.core.config import files
from samestep.core.config.command_line import Alias, parse
from samestep.core.config.conversion import build, flow
from samestep.core.config.schema import (
    NULL,
    NULL_WORDS,
    default_of,
    defaults_of,
    init_fields,
    listed,
    locate,
    members,
    nearest,
    paths_of,
    plain,
    section,
    types_of,
    unknown,
)
from samestep.core.errors import UserError

Settings = list[tuple[str, Any]]


def flatten(cls: type, data: Mapping[str, Any]) -> Settings:
    """Nested settings, or dotted ones, or both, as (dotted name, value); names that do not exist are refused."""
    return _flatten(data, paths_of(cls), "")


def _flatten(data: Mapping[str, Any], paths: dict[str, Any], prefix: str) -> Settings:
    found: Settings = []
    for key, value in data.items():
        path = f"{prefix}{key}"
        if locate(paths, path) is None:
            raise unknown(path, paths)
        found.append((path, {} if _nests(path, paths, value) else value))
        if _nests(path, paths, value):
            found += _flatten(value, paths, f"{path}.")
    return found


def _nests(path: str, paths: dict[str, Any], value: Any) -> bool:
    return path in paths and section(paths[path]) is not None and isinstance(value, Mapping)


def split_choices(cls: type, settings: Settings) -> tuple[dict[str, str], Settings]:
    """Tell choices of a group's option, such as ("distributed", "fsdp"), from settings of fields."""
    paths = paths_of(cls)
    choices: dict[str, str] = {}
    fields: Settings = []
    for path, value in settings:
        kind = paths.get(path)
        if section(kind) is None or not isinstance(value, str):
            fields.append((path, value))
        elif NULL in members(kind) and value.lower() in NULL_WORDS:
            fields.append((path, None))
        elif value.lstrip().startswith("{"):
            fields += _flatten({path: flow(value)}, paths, "")
        else:
            choices[path] = value
    return choices, fields


class Tree:
    """The settings so far. Text is put in as it stands, or with `${...}` that `resolved` replaces by other settings."""

    def __init__(self, cls: type) -> None:
        self.paths = paths_of(cls)
        self.defaults = defaults_of(cls)
        self.data: dict[str, Any] = {}
        self._kept: list[str] = []

    def put(self, settings: Settings, *, verbatim: bool) -> None:
        """Lay settings over what is there. A whole list or mapping replaces; a section is merged field by field."""
        for path, value in settings:
            if verbatim:
                self._set(path, _each_text(value, self._keep))
            elif value != "???":  # OmegaConf's mark of a value that somebody else must give
                self._set(path, value)

    def _set(self, path: str, value: Any) -> None:
        place = locate(self.paths, path)
        assert place is not None, path
        field, key = place
        node = self.data
        *parents, name = field.split(".")
        for parent in parents:
            if not isinstance(node.get(parent), dict):
                node[parent] = {}
            node = node[parent]
        if key is not None:
            node[name] = {**self._entries(node.get(name), field), key: value}
        elif section(self.paths[field]) is not None and value == {}:
            if not isinstance(node.get(name), dict):
                node[name] = {}
        else:
            node[name] = value

    def _entries(self, value: Any, field: str) -> dict[str, Any]:
        """The entries of a mapping field that one more is added to: those set so far, or else the default ones."""
        if isinstance(value, dict):
            return value
        if isinstance(value, str):
            value = flow(self._restore(value))
        elif value is None:
            value = self.defaults
            for part in field.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping | None):
            raise UserError(f"{field} must be a mapping such as {{a: b}} for an entry to be added, not {value!r}.")
        return _each_text(dict(value or {}), self._keep)

    def _keep(self, text: str) -> str:
        """A mark in place of text that OmegaConf would read as more than text."""
        if "${" not in text and "\0" not in text and text != "???":
            return text
        self._kept.append(text)
        return f"\0{len(self._kept) - 1}\0"

    def _restore(self, text: str) -> str:
        return re.sub("\0([0-9]+)\0", lambda mark: self._kept[int(mark[1])], text)

    def resolved(self) -> dict[str, Any]:
        """The settings as nested values, with every `${...}` of a YAML file replaced."""
        data = self.data
        if _refers(data):
            data = _interpolated(data, _each_text(plain(self.defaults), self._keep))
        found = _each_text(data, self._restore)
        assert isinstance(found, dict)
        return found


def _refers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_refers(item) for item in value.values())
    return any(_refers(item) for item in value) if isinstance(value, list) else isinstance(value, str) and "${" in value


def _interpolated(data: dict[str, Any], defaults: dict[str, Any]) -> Any:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        whole = OmegaConf.to_container(OmegaConf.create(_over(defaults, data)), resolve=True)
    except OmegaConfBaseException as error:
        what = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(
            f"The setting {error.full_key or '?'} cannot be resolved ({what}); mend it in the file."
        ) from None
    return _like(data, whole)


def _over(below: Any, above: Any) -> Any:
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    return {**below, **{key: _over(below.get(key), value) for key, value in above.items()}}


def _like(shape: Any, whole: Any) -> Any:
    """The part of `whole` that `shape` has too."""
    return {key: _like(value, whole[key]) for key, value in shape.items()} if isinstance(shape, dict) else whole


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_text(item, change) for key, item in value.items()}
    return [_each_text(item, change) for item in value] if isinstance(value, list | tuple) else value


T = TypeVar("T")
Presets = Mapping[str, Mapping[str, Any]]
Aliases = Mapping[str, str | Alias]


def compose(
    cls: type[T],
    *,
    presets: Presets | None = None,
    aliases: Aliases | None = None,
    preset: str | None = None,
    config: Path | None = None,
    config_path: Path | None = None,
    config_name: str | None = None,
    words: Sequence[str] = (),
) -> T:
    """The typed config that a preset, a file and the words of a command line make."""
    source = files.find(config, config_path, config_name)
    return build(cls, merge(cls, presets or {}, aliases or {}, preset, source, words))


@dataclass(frozen=True)
class _Layer:
    """Settings of one origin."""

    settings: Settings
    choices: Mapping[str, str] = field(default_factory=dict)  # options of groups, yet to be loaded
    loaded: Mapping[str, str] = field(default_factory=dict)  # options that Hydra has merged into the settings
    verbatim: bool = True


def merge(
    cls: type,
    presets: Presets,
    aliases: Aliases,
    preset: str | None,
    source: files.ConfigFile | None,
    words: Sequence[str],
) -> dict[str, Any]:
    """The settings of all layers as nested plain data; what no layer sets is absent."""
    line = _layer(cls, parse(words, cls, aliases))
    search = files.search_path(source)
    file = _file_layer(cls, files.load(source, line.choices, search)) if source else _Layer([])
    name = _preset_name(cls, presets, preset, line, file)
    layers = [_base_layer(cls), _layer(cls, flatten(cls, presets.get(name or "", {}))), file, line]
    if name is not None and "preset" in types_of(cls):
        layers.append(_Layer([("preset", name)]))
    return _lay(cls, layers, search)


def amend(cls: type[T], data: Mapping[str, Any], *, aliases: Aliases | None = None, words: Sequence[str] = ()) -> T:
    """A config that was dumped as `data`, with what the words of a command line change in it."""
    line = _layer(cls, parse(words, cls, aliases))
    return build(cls, _lay(cls, [_Layer(flatten(cls, data)), line], files.PACKAGE_SEARCH))


def _lay(cls: type, layers: Sequence[_Layer], search: Sequence[str]) -> dict[str, Any]:
    """Lay the layers over each other. The option of a group that a higher layer chooses again is left out."""
    tree = Tree(cls)
    for at, layer in enumerate(layers):
        later = {group for above in layers[at + 1 :] for group in (*above.choices, *above.loaded)}
        for group, option in layer.choices.items():
            if group not in later:
                loaded = files.load_option(group, option, search)
                tree.put(flatten(cls, loaded.data), verbatim=loaded.verbatim)
        tree.put(layer.settings, verbatim=layer.verbatim)
    return tree.resolved()


def _layer(cls: type, settings: Settings) -> _Layer:
    choices, fields = split_choices(cls, settings)
    return _Layer(fields, choices)


def _file_layer(cls: type, loaded: files.Loaded) -> _Layer:
    choices, fields = split_choices(cls, flatten(cls, loaded.data))
    return _Layer(fields, choices, loaded.groups, loaded.verbatim)


def _base_layer(cls: type) -> _Layer:
    """The package's own defaults list, for configs that have what it is about. Options name only what they change, so
    this layer always stays at the bottom."""
    if section(types_of(cls).get("distributed")) is None:
        return _Layer([])
    loaded = files.load(files.ConfigFile(files.PACKAGE_CONF, "base.yaml"), {}, files.PACKAGE_SEARCH)
    return _file_layer(cls, loaded)


def _preset_name(cls: type, presets: Presets, given: str | None, line: _Layer, file: _Layer) -> str | None:
    """The preset that the line, the caller, the file or the class chooses, in this order; None: none."""
    own = next((default_of(field) for field in init_fields(cls) if field.name == "preset"), None)
    chosen = dict(line.settings).get("preset") or given or dict(file.settings).get("preset") or own
    if chosen is None or chosen == own or str(chosen) in presets:
        return None if chosen is None else str(chosen)
    chosen = str(chosen)
    if not presets:
        raise UserError(f"There is no preset {chosen!r}; this recipe has none, so leave it out.")
    order = [*nearest(chosen, presets), *(name for name in presets if name not in nearest(chosen, presets))]
    raise UserError(f"There is no preset {chosen!r}; choose {listed(order, 'or')}.")
