"""Everything that needs Hydra or OmegaConf: composing YAML files.

Hydra finds nothing but files of settings here, and each is checked before it is read. Both are imported inside the
functions, because importing them takes longer than the rest of the command line.
"""

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samestep.core.config.limits import read_config_text
from samestep.core.config.schema import listed
from samestep.core.errors import UserError


def compose_yaml(
    folder: Path, name: str, choices: Mapping[str, str], search: Sequence[str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of the YAML file `name` below `folder`, with the groups of its `defaults:` list merged in.

    `choices` replace entries of that list. Also returns the choice of every group. `${...}` in values is left as it is.
    """
    from hydra import compose
    from omegaconf import OmegaConf

    overrides = [f"{group.replace('.', '/')}={_quoted(option)}" for group, option in choices.items()]
    overrides.append(f"hydra.searchpath=[{','.join(_quoted(entry) for entry in search)}]")
    try:
        with _temporary_hydra(folder), _without_resolvers(), _checked_files(), warnings.catch_warnings():
            # A list without `_self_` is read as if it ended with it: the file's own settings come last.
            warnings.filterwarnings("ignore", message=".*Defaults list is missing `_self_`")
            config = compose(name, overrides, return_hydra_config=True)
        groups = {key.replace("/", "."): str(choice) for key, choice in config.hydra.runtime.choices.items()}
        data = OmegaConf.to_container(config, resolve=False)
    except UserError:
        raise
    except Exception as error:  # any error that a user's file causes in Hydra, OmegaConf or the YAML reader
        raise UserError(_hydra_message(error, folder / name)) from error
    assert isinstance(data, dict)
    settings = {str(key): value for key, value in data.items() if key != "hydra"}
    return settings, {key: choice for key, choice in groups.items() if not key.startswith("hydra.")}


@contextmanager
def _temporary_hydra(folder: Path) -> Iterator[None]:
    """Hydra initialized on `folder`, then restored: the caller may be a Hydra app or a notebook that uses Hydra."""
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


@contextmanager
def _without_resolvers() -> Iterator[None]:
    """OmegaConf without functions such as `${oc.env:NAME}`, which would be called in a `defaults:` list."""
    from omegaconf.basecontainer import BaseContainer

    resolvers = BaseContainer._resolvers
    before = dict(resolvers)
    resolvers.clear()
    try:
        yield
    finally:
        resolvers.clear()
        resolvers.update(before)


@contextmanager
def _checked_files() -> Iterator[None]:
    """Every file is checked before Hydra reads it: also those that a `defaults:` list names."""
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    load = FileConfigSource.load_config

    def check_and_load(self: FileConfigSource, config_path: str) -> Any:
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.is_file():
            read_config_text(path)
        return load(self, config_path)

    FileConfigSource.load_config = check_and_load
    try:
        yield
    finally:
        FileConfigSource.load_config = load


def _quoted(text: str) -> str:
    """Text as a quoted string of Hydra's override grammar."""
    return "'" + text.replace("'", "\\'") + "'"


def _hydra_message(error: Exception, path: Path) -> str:
    """One sentence from the many lines of an error of Hydra, OmegaConf or the YAML reader."""
    import yaml
    from hydra.errors import MissingConfigException

    if isinstance(error, yaml.YAMLError):
        return yaml_message(error, path)
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        wanted = error.missing_cfg_file
        offer = f"choose {listed(sorted(error.options), 'or')}" if error.options else "fix the name or remove it"
        return f"The defaults list of {path} names {wanted}, which does not exist; {offer}."
    if isinstance(error, RecursionError):
        return f"{path} cannot be composed, because defaults lists name each other in a circle; remove one of them."
    lines = str(error.__cause__ or error).strip().splitlines() or [type(error).__name__]
    where = next((line.strip() for line in lines if line.strip().startswith("full_key:")), "")
    return f"{path} cannot be composed ({'; '.join(filter(None, [lines[0].rstrip('.'), where]))}); fix it there."


def yaml_message(error: Exception, path: Path) -> str:
    """One sentence that says what is wrong in a YAML file, and where."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return f"{path} is not YAML ({what}); fix it there."
    file = path if not os.path.isabs(str(mark.name)) else mark.name
    return f"{file} is not YAML: {what} in line {mark.line + 1}, column {mark.column + 1}; fix it there."
