"""A run's config out of its layers: default < base group < preset < file < command line.

Hydra composes the YAML files; the command line is merged as data, because Hydra's override grammar refuses everyday
text. A group option (`distributed=fsdp`) counts as the settings of its file, in the layer where it is chosen, and takes
the place of the option that a lower layer chose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from samestep.core import compose_files as files
from samestep.core.compose_tree import Settings, Tree, flatten, split_choices
from samestep.core.config_build import build
from samestep.core.config_fields import nearest
from samestep.core.config_types import default_of, init_fields, listed, section, types_of
from samestep.core.errors import UserError
from samestep.core.overrides import Alias, parse

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
    source: files.Source | None,
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
    loaded = files.load(files.Source(files.PACKAGE_CONF, "base.yaml"), {}, files.PACKAGE_SEARCH)
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
