"""Config files as plain data: JSON as it is, YAML through Hydra's compose API with the package's own groups at hand."""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.config.schema import listed
from samestep.core.errors import UserError

PACKAGE_CONF = Path(__file__).parents[2] / "conf"
PACKAGE_SEARCH = (f"file://{PACKAGE_CONF}",)
_SHOWN = 12  # names that a sentence lists at most


@dataclass(frozen=True)
class ConfigFile:
    """A config file: `name` below `folder`, which is the place of its groups too."""

    folder: Path
    name: str

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / self.name


@dataclass(frozen=True)
class Loaded:
    """What a file says."""

    data: Mapping[str, Any]
    """Its settings."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """The choices of its `defaults:` list, merged into the data already."""
    verbatim: bool = False
    """Whether text is taken as it stands; otherwise `${...}` in it is still to be resolved."""


def find(config: Path | None, config_path: Path | None, config_name: str | None) -> ConfigFile | None:
    """The file that the options name, relative to the working directory, or None when they name none."""
    if config is not None and (config_path is not None or config_name is not None):
        raise UserError("Give either --config FILE or --config-path and --config-name, not both.")
    if config is not None:
        path = _absolute(config)
        source = ConfigFile(path.parent, path.name)
        if path.suffix not in (".yaml", ".json"):
            raise UserError(
                f"{config} cannot be told YAML from JSON; give the file a name that ends in .yaml or .json."
            )
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
    return Path(os.path.abspath(Path(path).expanduser()))


def _no_file(source: ConfigFile) -> str:
    folder = source.path.parent
    if not folder.is_dir():
        return f"There is no folder {folder}; name one that holds {source.path.name}."
    names = sorted(entry.name for entry in folder.iterdir() if entry.suffix in (".yaml", ".json") and entry.is_file())
    offer = f"it holds {listed(names[:_SHOWN])}" if names else "it holds no .yaml or .json file"
    return f"There is no file {source.path.name} in {folder}; {offer}."


def load(source: ConfigFile, replaced: Mapping[str, str], search: Sequence[str]) -> Loaded:
    """Read a file. `replaced` are group choices from the command line that stand in for those of its defaults list."""
    text = _read(source.path)
    if source.path.suffix == ".json":
        return Loaded(_json(text, source.path), verbatim=True)
    _require_mapping(text, source.path)
    loaded = _compose(source, [], search)
    chosen = {group: replaced[group] for group in loaded.groups if group in replaced}
    for group, option in chosen.items():
        _find_option(group, option, search)
    overrides = [f"{group.replace('.', '/')}={_quoted(option)}" for group, option in chosen.items()]
    return _compose(source, overrides, search) if overrides else loaded


def load_option(group: str, option: str, search: Sequence[str]) -> Loaded:
    """The settings of one option of a group, from the first folder that has it."""
    return load(_find_option(group, option, search), {}, search)


def _find_option(group: str, option: str, search: Sequence[str]) -> ConfigFile:
    for folder in _folders(search):
        source = ConfigFile(folder, f"{group.replace('.', '/')}/{option}.yaml")
        if source.path.is_file():
            return source
    found = options_of(group, search)
    if not found:
        raise UserError(f"{group} is a section, not a setting; set one of its fields with {group}.FIELD=VALUE.")
    raise UserError(f"There is no {group}={option}; choose {listed(found, 'or')}, or set {group}.FIELD=VALUE.")


def options_of(group: str, search: Sequence[str] = PACKAGE_SEARCH) -> list[str]:
    """The options of a group: the names of the YAML files in its folders."""
    folders = [folder / group.replace(".", "/") for folder in _folders(search)]
    return sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})


def search_path(source: ConfigFile | None) -> list[str]:
    """Where groups are looked for: beside the file, where the file sends Hydra itself, and in the package."""
    if source is None:
        return list(PACKAGE_SEARCH)
    own = _own_search_path(source.path) if source.path.suffix == ".yaml" else []
    return [f"file://{source.folder}", *own, *PACKAGE_SEARCH]


def _own_search_path(path: Path) -> list[str]:
    import yaml

    try:
        found = yaml.safe_load(_read(path))["hydra"]["searchpath"]
    except (yaml.YAMLError, ValueError, TypeError, KeyError):  # it sets none; if the file is wrong, `load` will say so
        return []
    return [str(entry) for entry in found] if isinstance(found, list) else []


def _folders(search: Sequence[str]) -> list[Path]:
    """The folders of a search path; Hydra knows modules too (`pkg://`), which are left to it."""
    return [_absolute(Path(entry.removeprefix("file://"))) for entry in search if not entry.startswith("pkg://")]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text; save it as UTF-8.") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); mend the path or the permissions.") from None


def _json(text: str, path: Path) -> Mapping[str, Any]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}); mend it there.") from None
    if not isinstance(data, dict):
        raise UserError(f"{path} must hold a mapping of settings, as {{...}}, not a {type(data).__name__}.")
    return data


def _require_mapping(text: str, path: Path) -> None:
    """Refuse a YAML file that is not made of `key: value` lines."""
    import yaml

    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise UserError(_yaml_sentence(error, path)) from None
    if node is not None and not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path} must hold settings as 'key: value' lines, not a single value or a list.")


def _compose(source: ConfigFile, overrides: list[str], search: Sequence[str]) -> Loaded:
    from hydra import compose
    from omegaconf import OmegaConf

    path = f"hydra.searchpath=[{','.join(_quoted(entry) for entry in search)}]"
    try:
        with _own_hydra(source.folder), warnings.catch_warnings():
            # A list without `_self_` is read as if it ended with it: what the file says itself comes last.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`")
            config = compose(source.name, [*overrides, path], return_hydra_config=True)
        groups = {key.replace("/", "."): str(choice) for key, choice in config.hydra.runtime.choices.items()}
        data = OmegaConf.to_container(config, resolve=False)
    except Exception as error:  # whatever a user's file makes Hydra, OmegaConf or the YAML reader say
        raise UserError(_sentence(error, source.path)) from error
    assert isinstance(data, dict)
    data.pop("hydra", None)
    return Loaded(data, {key: choice for key, choice in groups.items() if not key.startswith("hydra.")})


@contextmanager
def _own_hydra(folder: Path) -> Iterator[None]:
    """Hydra set up on `folder`, and put back as it was: the caller may be a Hydra app or a notebook that uses Hydra."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.utils import JobRuntime
    from hydra.version import VersionBase

    state, version, job = GlobalHydra.instance(), VersionBase.instance(), JobRuntime.instance()
    before = state.hydra, version.version_base, job.get("name")
    state.clear()
    try:
        with initialize_config_dir(str(folder), version_base="1.3"):
            yield
    finally:
        GlobalHydra.set_instance(state)
        state.hydra, version.version_base = before[:2]
        job.set("name", before[2])


def _quoted(text: str) -> str:
    """Text as a quoted string of Hydra's override grammar."""
    return "'" + text.replace("'", "\\'") + "'"


def _sentence(error: Exception, path: Path) -> str:
    """One sentence out of what Hydra, OmegaConf or the YAML reader say over many lines."""
    import yaml
    from hydra.errors import MissingConfigException

    if isinstance(error, yaml.YAMLError):
        return _yaml_sentence(error, path)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        wanted = error.missing_cfg_file
        offer = f"choose {listed(sorted(error.options), 'or')}" if error.options else "mend the name or take it out"
        return f"The defaults list of {path} names {wanted}, which does not exist; {offer}."
    lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    where = next((line.strip() for line in lines if line.strip().startswith("full_key:")), "")
    return f"{path} cannot be composed ({'; '.join(filter(None, [lines[0].rstrip('.'), where]))}); mend it there."


def _yaml_sentence(error: Exception, path: Path) -> str:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return f"{path} is not YAML ({what}); mend it there."
    file = path if not os.path.isabs(str(mark.name)) else mark.name
    return f"{file} is not YAML: {what} in line {mark.line + 1}, column {mark.column + 1}; mend it there."
