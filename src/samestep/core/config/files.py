"""Finding and reading config files: JSON as it is, YAML with the groups of its `defaults:` list."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.config.limits import check_depth, read_config_text
from samestep.core.config.schema import listed
from samestep.core.config.yaml_files import compose_yaml, load_mapping
from samestep.core.errors import UserError
from samestep.core.paths import expand_home

PACKAGE_CONF = Path(__file__).parents[2] / "conf"
PACKAGE_SEARCH = (f"file://{PACKAGE_CONF}",)
_SHOWN = 12  # names that a sentence lists at most


@dataclass(frozen=True)
class ConfigFile:
    """A config file: `name` below `folder`; its groups are below that folder too."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        return self.folder / self.name


@dataclass(frozen=True)
class LoadedFile:
    """The content of a config file."""

    data: Mapping[str, Any]
    """Settings, nested as in the file."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """The choices of its `defaults:` list, which are already merged into the data."""
    verbatim: bool = False
    """Whether text is used as it is; otherwise `${...}` in it still has to be resolved."""


def find_config_file(config: Path | None, config_path: Path | None, config_name: str | None) -> ConfigFile | None:
    """The file that the options name, relative to the working directory, or None without such an option."""
    if config is not None and (config_path is not None or config_name is not None):
        raise UserError("Give either --config FILE or --config-path and --config-name, not both.")
    if config is not None:
        path = _absolute(config)
        source = ConfigFile(path.parent, path.name)
        if path.suffix not in (".yaml", ".json"):
            raise UserError(f"{config} may be YAML or JSON; give the file a name that ends in .yaml or .json.")
    elif config_path is not None or config_name is not None:
        name = config_name or "config"
        source = ConfigFile(
            _absolute(config_path or Path()), name if name.endswith((".yaml", ".json")) else f"{name}.yaml"
        )
    else:
        return None
    if not source.path.is_file():
        raise UserError(_no_file(source))
    return source


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(expand_home(path)))


def _no_file(source: ConfigFile) -> str:
    folder = source.path.parent
    if not folder.is_dir():
        return f"There is no folder {folder}; name one that holds {source.path.name}."
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".json") and entry.is_file())
    offer = f"it holds {listed(names[:_SHOWN])}" if names else "it holds no .yaml or .json file"
    return f"There is no file {source.path.name} in {folder}; {offer}."


def load_config_file(source: ConfigFile, replaced: Mapping[str, str], search: Sequence[str]) -> LoadedFile:
    """Read a file. `replaced` are group choices from the command line that replace those of its defaults list."""
    if source.path.suffix == ".json":
        return LoadedFile(_json(read_config_text(source.path), source.path), verbatim=True)
    data, groups = compose_yaml(source.folder, source.name, {}, _folders(search))
    choices = {group: replaced[group] for group in groups if group in replaced}
    for group, option in choices.items():
        _find_option(group, option, search)
    if choices:
        data, groups = compose_yaml(source.folder, source.name, choices, _folders(search))
    return LoadedFile(data, groups)


def load_group_option(group: str, option: str, search: Sequence[str]) -> LoadedFile:
    """The settings of one option of a group, from the first folder that has it."""
    return load_config_file(_find_option(group, option, search), {}, search)


def _find_option(group: str, option: str, search: Sequence[str]) -> ConfigFile:
    for folder in _folders(search):
        source = ConfigFile(folder, f"{group.replace('.', '/')}/{option}.yaml")
        if source.path.is_file():
            return source
    found = group_options(group, search)
    if not found:
        raise UserError(f"{group} is a section, not a setting; set one of its fields with {group}.FIELD=VALUE.")
    raise UserError(f"There is no {group}={option}; choose {listed(found, 'or')}, or set {group}.FIELD=VALUE.")


def group_options(group: str, search: Sequence[str] = PACKAGE_SEARCH) -> list[str]:
    """The options of a group: the names of the YAML files in its folders."""
    folders = [folder / group.replace(".", "/") for folder in _folders(search)]
    return sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})


def search_path(source: ConfigFile | None) -> list[str]:
    """Where groups are searched: beside the file, in the file's own `hydra.searchpath`, and in the package."""
    if source is None:
        return list(PACKAGE_SEARCH)
    own = _own_search_path(source.path) if source.path.suffix == ".yaml" else []
    return [f"file://{source.folder}", *own, *PACKAGE_SEARCH]


def copies_of(source: ConfigFile, reads: Mapping[Path, str], folder: Path) -> dict[Path, str]:
    """The files that were read for `source`, as they have to lie in `folder` to be found there first; those of the
    package are left out."""
    roots = [root for root in _folders(search_path(source)) if root != PACKAGE_CONF]
    found = {}
    for path, text in ((_absolute(path), text) for path, text in reads.items()):
        root = next((root for root in roots if path.is_relative_to(root)), None)
        if root is not None:
            found[folder / path.relative_to(root)] = text
    return found


def _own_search_path(path: Path) -> list[str]:
    text = read_config_text(path)
    try:
        found = load_mapping(text, path)["hydra"]["searchpath"]
    except (UserError, TypeError, KeyError):  # no search path; a wrong file is reported when loaded
        return []
    entries = [str(entry) for entry in found] if isinstance(found, list) else []
    for entry in entries:
        if "://" in entry.removeprefix("file://") or "${" in entry:
            raise UserError(
                f"The search path of {path} names {entry}; only folders are searched: write file:///FOLDER."
            )
    return entries


def _folders(search: Sequence[str]) -> list[Path]:
    return [_absolute(Path(entry.removeprefix("file://"))) for entry in search]


def _json(text: str, path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); fix it there.") from None
    except RecursionError:
        raise UserError(f"{path} nests lists and mappings too deeply; make it flatter.") from None
    check_depth(data, str(path))
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a mapping of settings, as {{...}}, not a {type(data).__name__}.")
    return data
