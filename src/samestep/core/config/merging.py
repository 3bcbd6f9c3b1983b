"""A run's config, merged from its layers: default < base group < preset < file < command line.

The command line is merged as data: any text is legal there, and means itself. A group option (`distributed=fsdp`)
stands for the settings of its file, in the layer that chooses it, and replaces the option that a lower layer chose.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from samestep.core.config.command_line import BACK_TO_DEFAULT, Alias, aliases_used, parse_settings
from samestep.core.config.conversion import build, parse_inline_yaml
from samestep.core.config.files import (
    PACKAGE_CONF,
    PACKAGE_SEARCH,
    ConfigFile,
    LoadedFile,
    find_config_file,
    load_config_file,
    load_group_option,
    search_path,
)
from samestep.core.config.interpolation import resolve_interpolations
from samestep.core.config.no_effect import TYPED, Given
from samestep.core.config.schema import (
    NULL,
    NULL_WORDS,
    default_of,
    defaults_of,
    init_fields,
    listed,
    locate,
    members,
    paths_of,
    plain,
    section,
    types_of,
)
from samestep.core.config.unknown_settings import unknown_setting
from samestep.core.errors import UserError
from samestep.core.near_names import nearest

T = TypeVar("T")
Settings = list[tuple[str, Any]]
Presets = Mapping[str, Mapping[str, Any]]
Aliases = Mapping[str, str | Alias]


def flatten(cls: type, data: Mapping[str, Any]) -> Settings:
    """Nested or dotted settings as (dotted name, value); names that do not exist are refused."""
    return _flatten(data, paths_of(cls), "")


def _flatten(data: Mapping[str, Any], paths: Mapping[str, Any], prefix: str) -> Settings:
    found: Settings = []
    for key, value in data.items():
        path = f"{prefix}{key}"
        if locate(paths, path) is None:
            raise unknown_setting(path, paths)
        found.append((path, {} if _nests(path, paths, value) else value))
        if _nests(path, paths, value):
            found += _flatten(value, paths, f"{path}.")
    return found


def _nests(path: str, paths: Mapping[str, Any], value: Any) -> bool:
    return path in paths and section(paths[path]) is not None and isinstance(value, Mapping)


def split_choices(cls: type, settings: Settings) -> tuple[dict[str, str], Settings]:
    """Separate choices of a group's option, such as ("distributed", "fsdp"), from settings of fields."""
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
            fields += _flatten({path: parse_inline_yaml(value)}, paths, "")
        else:
            choices[path] = value
    return choices, fields


class SettingsTree:
    """The settings merged so far, as nested data. `resolved` replaces `${...}`, except in text that was verbatim."""

    def __init__(self, cls: type) -> None:
        self.paths = paths_of(cls)
        self.defaults = defaults_of(cls)
        self.data: dict[str, Any] = {}
        self._protected: list[str] = []

    def update(self, settings: Settings, *, verbatim: bool) -> None:
        """Merge settings into the tree. A list or mapping replaces the old one; a section is merged field by field."""
        for path, value in settings:
            if verbatim:
                self._set(path, _map_text(value, self._protect))
            elif value != "???":  # the mark of a value that another layer must set
                self._set(path, _map_text(value, lambda text: self._protect(text) if "\0" in text else text))

    def _set(self, path: str, value: Any) -> None:
        found = locate(self.paths, path)
        assert found is not None, path
        field, key = found
        if value is BACK_TO_DEFAULT:
            self._remove(field, key)
            return
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

    def _remove(self, field: str, key: str | None) -> None:
        """Forget what was set so far; of a mapping field with a key, only this entry."""
        node: Any = self.data
        *parents, name = field.split(".")
        for parent in parents:
            node = node.get(parent) if isinstance(node, dict) else None
        if key is not None:
            entries = self._entries(node.get(name) if isinstance(node, dict) else None, field)
            if key not in entries:
                raise UserError(f"{field} has no entry {key!r} to remove; leave ~{field}.{key} out.")
            self._set(field, {name: entry for name, entry in entries.items() if name != key})
        elif isinstance(node, dict):
            node.pop(name, None)

    def _entries(self, value: Any, field: str) -> dict[str, Any]:
        """The entries of a mapping field to which one is added: those set so far, or else the default ones."""
        if isinstance(value, dict):
            return value
        if isinstance(value, str):
            value = parse_inline_yaml(self._restore(value))
        elif value is None:
            value = self.defaults
            for part in field.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, Mapping | None):
            raise UserError(f"{field} must be a mapping such as {{a: b}} before an entry can be added, not {value!r}.")
        return _map_text(dict(value or {}), self._protect)

    def _protect(self, text: str) -> str:
        """A placeholder for text that would be read as more than text."""
        if "${" not in text and "\0" not in text and text != "???":
            return text
        self._protected.append(text)
        return f"\0{len(self._protected) - 1}\0"

    def _restore(self, text: str) -> str:
        return re.sub("\0([0-9]+)\0", lambda placeholder: self._protected[int(placeholder[1])], text)

    def resolved(self, allow_env: Collection[str]) -> dict[str, Any]:
        """The settings as nested values, with every `${...}` of a YAML file replaced."""
        data = self.data
        if _has_interpolation(data):
            data = resolve_interpolations(data, _map_text(plain(self.defaults), self._protect), allow_env)
        found = _map_text(data, self._restore)
        assert isinstance(found, dict)
        return found


def _has_interpolation(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(_has_interpolation(item) for item in value.values())
    if isinstance(value, list):
        return any(_has_interpolation(item) for item in value)
    return isinstance(value, str) and "${" in value


def _map_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _map_text(item, change) for key, item in value.items()}
    return [_map_text(item, change) for item in value] if isinstance(value, list | tuple) else value


def compose(
    cls: type[T],
    *,
    presets: Presets | None = None,
    aliases: Aliases | None = None,
    preset: str | None = None,
    config: Path | None = None,
    config_path: Path | None = None,
    config_name: str | None = None,
    args: Sequence[str] = (),
    allow_env: Collection[str] = (),
) -> T:
    """The typed config from a preset, a file and args. `allow_env`: environment variables that the file may read."""
    source = find_config_file(config, config_path, config_name)
    return build(cls, merge(cls, presets or {}, aliases or {}, preset, source, args, allow_env))


@dataclass(frozen=True)
class _Layer:
    """Settings from one source."""

    settings: Settings
    choices: Mapping[str, str] = field(default_factory=dict)  # options of groups that still have to be loaded
    loaded: Mapping[str, str] = field(default_factory=dict)  # options that are merged into the settings already
    verbatim: bool = True


@dataclass(frozen=True)
class Layers:
    """What a config is merged from."""

    cls: type
    layers: Sequence[_Layer]
    """Lowest first."""
    search: Sequence[str]
    given: Given
    """What the user gave."""

    def merged(self, allow_env: Collection[str] = ()) -> dict[str, Any]:
        """The settings of all layers as nested plain data; fields that no layer sets are absent."""
        return _merge_layers(self.cls, self.layers, self.search, allow_env)


def read_layers(
    cls: type, presets: Presets, aliases: Aliases, preset: str | None, source: ConfigFile | None, args: Sequence[str]
) -> Layers:
    """The layers of a config, read from the file and the args."""
    command_line = _layer(cls, parse_settings(args, cls, aliases))
    search = search_path(source)
    file = _Layer([])
    if source is not None:
        loaded = load_config_file(source, command_line.choices, search)
        file = _file_layer(cls, replace(loaded, data=_without_aliases(cls, loaded.data, aliases)))
    name = _preset_name(cls, presets, preset, command_line, file)
    reset = _reset(command_line)
    given = {path: value for path, value in (*file.settings, *command_line.settings) if path not in reset}
    preset_layer = _preset_layer(cls, presets.get(name or "", {}), given)
    layers = [_base_layer(cls), preset_layer, file, command_line]
    if name is not None and "preset" in types_of(cls):
        layers.append(_Layer([("preset", name)]))
    in_file = {path: f"in {source.name}" for path, _ in file.settings if path not in reset} if source else {}
    return Layers(cls, layers, search, {**in_file, **given_by_args(cls, aliases, args)})


def given_by_args(cls: type, aliases: Aliases, args: Sequence[str]) -> Given:
    """What the user gave on the command line."""
    other_names = aliases_used(args, cls, aliases)
    given = _layer(cls, parse_settings(args, cls, aliases))
    paths = [path for path in dict(given.settings) if path not in _reset(given)]
    return {path: f"--{other_names[path]}" if path in other_names else TYPED for path in paths}


def _reset(layer: _Layer) -> set[str]:
    """The settings that a command line puts back to their defaults."""
    return {path for path, value in dict(layer.settings).items() if value is BACK_TO_DEFAULT}


def merge(
    cls: type,
    presets: Presets,
    aliases: Aliases,
    preset: str | None,
    source: ConfigFile | None,
    args: Sequence[str],
    allow_env: Collection[str] = (),
) -> dict[str, Any]:
    """The settings of all layers as nested plain data; fields that no layer sets are absent."""
    return read_layers(cls, presets, aliases, preset, source, args).merged(allow_env)


def override(cls: type[T], data: Mapping[str, Any], *, aliases: Aliases | None = None, args: Sequence[str] = ()) -> T:
    """The config that was dumped as `data`, with the settings that command-line args override."""
    command_line = _layer(cls, parse_settings(args, cls, aliases))
    return build(cls, _merge_layers(cls, [_Layer(flatten(cls, data)), command_line], PACKAGE_SEARCH))


def _merge_layers(
    cls: type, layers: Sequence[_Layer], search: Sequence[str], allow_env: Collection[str] = ()
) -> dict[str, Any]:
    """Merge the layers, lowest first. The option of a group is left out when a higher layer chooses another."""
    tree = SettingsTree(cls)
    for at, layer in enumerate(layers):
        later = {group for above in layers[at + 1 :] for group in (*above.choices, *above.loaded)}
        for group, option in layer.choices.items():
            if group not in later:
                loaded = load_group_option(group, option, search)
                tree.update(flatten(cls, loaded.data), verbatim=loaded.verbatim)
        tree.update(layer.settings, verbatim=layer.verbatim)
    return tree.resolved(allow_env)


def _layer(cls: type, settings: Settings) -> _Layer:
    choices, fields = split_choices(cls, settings)
    return _Layer(fields, choices)


def _file_layer(cls: type, loaded: LoadedFile) -> _Layer:
    choices, fields = split_choices(cls, flatten(cls, loaded.data))
    return _Layer(fields, choices, loaded.groups, loaded.verbatim)


def _without_aliases(cls: type, data: Mapping[str, Any], aliases: Aliases) -> dict[str, Any]:
    """The content of a file, with the settings themselves in place of names that people know from other programs."""
    found, fields = deepcopy(dict(data)), paths_of(cls)
    for name, given in aliases.items():
        value = None if name in fields else _taken(found, name)
        if value is None:
            continue
        alias = Alias(given) if isinstance(given, str) else given
        *parents, field_name = alias.path.split(".")
        node = found
        for parent in parents:
            inner = node.get(parent, {})
            if not isinstance(inner, Mapping):
                raise UserError(f"{parent} must be a section with settings, not {inner!r}")
            node[parent] = node = dict(inner)
        node.setdefault(field_name, value[0] if alias.values is None else alias.translate(name, _as_text(value[0])))
    return found


def _taken(data: dict[str, Any], name: str) -> tuple[Any] | None:
    """The value of a name, which may be dotted, taken out of nested data; a section that had no other is gone too."""
    if name in data:
        return (data.pop(name),)
    first, _, rest = name.partition(".")
    inner = data.get(first)
    found = _taken(inner, rest) if rest and isinstance(inner, dict) else None
    if found and not inner:
        del data[first]
    return found


def _as_text(value: Any) -> str | bool:
    return value if isinstance(value, bool) else str(value)


def _base_layer(cls: type) -> _Layer:
    """The package's own defaults list, for configs with a section `distributed`. It is always the lowest layer, because
    options name only what they change."""
    if section(types_of(cls).get("distributed")) is None:
        return _Layer([])
    loaded = load_config_file(ConfigFile(PACKAGE_CONF, "base.yaml"), {}, PACKAGE_SEARCH)
    return _file_layer(cls, loaded)


def _preset_layer(cls: type, preset: Mapping[str, Any], given: Mapping[str, Any]) -> _Layer:
    """The settings of a preset. A class with a function `left_out_of_preset(given)` names those that do not hold beside
    the settings of file and command line."""
    choose = getattr(cls, "left_out_of_preset", None)
    left_out = choose(given) if choose else ()
    return _layer(cls, [(path, value) for path, value in flatten(cls, preset) if path not in left_out])


def _preset_name(cls: type, presets: Presets, given: str | None, command_line: _Layer, file: _Layer) -> str | None:
    """The preset that the command line, the caller, the file or the class chooses, in this order, if one does. A class
    with a function `default_preset(settings)` chooses by the other settings of file and command line."""
    by_file, by_line = dict(file.settings), dict(command_line.settings)
    for path in _reset(command_line):
        del by_line[path]
        by_file.pop(path, None)
    own = next((default_of(field) for field in init_fields(cls) if field.name == "preset"), None)
    choose = getattr(cls, "default_preset", None)
    own = choose({**by_file, **by_line}) if choose else own
    chosen = by_line.get("preset") or given or by_file.get("preset") or own
    if chosen is None or chosen == own or str(chosen) in presets:
        return None if chosen is None else str(chosen)
    chosen = str(chosen)
    if not presets:
        raise UserError(f"There is no preset {chosen!r}; this recipe has no presets, so leave it out.")
    order = [*nearest(chosen, presets), *(name for name in presets if name not in nearest(chosen, presets))]
    raise UserError(f"There is no preset {chosen!r}; choose {listed(order, 'or')}.")
