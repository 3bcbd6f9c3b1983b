"""YAML files with `defaults:` lists, as Hydra has them: a file names others whose settings come below its own.

Hydra itself is not used: a `defaults:` list would call OmegaConf's functions there, such as `${oc.env:NAME}`, and
whatever finds files for it reads them before they can be checked. Of its language this is read here:

    defaults:
      - other                  # other.yaml, beside this file
      - distributed: fsdp      # distributed/fsdp.yaml, as settings of `distributed`
      - optional site: mine    # nothing where there is no such file
      - data@train: c4         # data/c4.yaml, as settings of `train`
      - data: [c4, wiki]       # several files
      - _self_                 # this file's own settings; without it they come last
      - override model: large  # another option of a group that a file above chose

Paths are relative to the file, or begin with `/`; `# @package NAME` at the top of a file says what it has settings of.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.config.limits import read_config_text
from samestep.core.config.schema import listed
from samestep.core.errors import UserError

MAX_FILES = 1000
"""Files that the lists of one config may name; lists that each name two others soon name more."""
_SELF, _GLOBAL, _OPEN, _MISSING = "_self_", "_global_", "${", "???"
_HEADER = re.compile(r"#[ \t]*@package[ \t]+(\S+)")
_FLOAT = re.compile(
    r"[-+]?(\d[\d_]*\.[\d_]*([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d[\d_]*([eE][-+]?\d+)?|\.(inf|Inf|INF))$"
    r"|\.(nan|NaN|NAN)$"
)


def compose_yaml(
    folder: Path, name: str, choices: Mapping[str, str], search: Sequence[Path]
) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of the YAML file `name` below `folder`, with the files of its `defaults:` list merged in.

    `choices` replace entries of that list. Also returns the choice of every group. `${...}` in values is left as it is.
    """
    path = folder / name
    replaced = {group.replace(".", "/"): option for group, option in choices.items()}
    composer = _Composer(path, [folder, *search], replaced)
    group = name.rpartition("/")[0]
    settings: dict[str, Any] = {}
    for package, content in composer.expand(_Entry(name, group), "", ()):
        for part in reversed(package.split(".") if package else []):
            content = {part: content}
        settings = merged(settings, content)
    composer.check_all_used()
    settings.pop("hydra", None)
    return settings, {key.replace("/", "."): option for key, option in composer.chosen.items()}


def merged(below: Any, above: Any) -> Any:
    """Mappings are merged key by key; anything else replaces what is below, but a mark of a missing value."""
    if not (isinstance(below, Mapping) and isinstance(above, Mapping)):
        return above
    found = dict(below)
    for key, value in above.items():
        if key not in found or value != _MISSING:
            found[key] = merged(found.get(key), value)
    return found


@dataclass(frozen=True)
class _Entry:
    """One entry of a `defaults:` list."""

    name: str
    """File, or option of a group; its path is absolute by now."""
    relative: str = ""
    """The folder as the list names it, which is also what the file has settings of."""
    package: str | None = None
    """What it has settings of, where the list says so with `@`."""
    group: str | None = None
    """The group that it is an option of; None: it names a file."""
    is_optional: bool = False

    def package_in(self, parent: str, header: str | None) -> str:
        """The dotted name of what the file has settings of."""
        own = self.package if self.package is not None else header
        own = self.relative.replace("/", ".") if own is None else own
        parts = [part for part in f"{parent}.{own}".split(".") if part]
        if _GLOBAL in parts:
            parts = parts[len(parts) - parts[::-1].index(_GLOBAL) :]
        return ".".join(parts)


@dataclass
class _Composer:
    """One run through the lists of a file and of those that it names."""

    path: Path
    """The file, for messages."""
    folders: Sequence[Path]
    replaced: dict[str, str]
    """Options that replace those of the lists: of the command line, and of entries with `override`."""
    chosen: dict[str, str] = field(default_factory=dict)
    files: int = 0
    own_overrides: list[str] = field(default_factory=list)

    def expand(self, entry: _Entry, parent: str, above: tuple[str, ...]) -> list[tuple[str, dict[str, Any]]]:
        """What a file and those of its list hold, lowest first: each with what it has settings of."""
        if entry.name in above:
            raise self.refuse("defaults lists name each other in a circle")
        content, header = self._load(entry)
        if content is None:
            return []
        package = entry.package_in(parent, header)
        entries = content.pop("defaults", None)
        if not isinstance(entries, list | None):
            raise self.refuse("the defaults list must be a list")
        found: list[tuple[str, dict[str, Any]]] = []
        # From the end, because an `override` there counts for the lists of the files before it.
        for item in reversed(self._without_overrides(entries or [], entry.name.rpartition("/")[0])):
            if item == _SELF:
                found = [(package, content), *found]
                continue
            for child in reversed([*self._entries(item, entry.name.rpartition("/")[0], package)]):
                found = [*self.expand(child, package, (*above, entry.name)), *found]
        return found

    def check_all_used(self) -> None:
        """Refuse an `override` of what no list chooses."""
        for key in self.own_overrides:
            if key not in self.chosen:
                raise self.refuse(f"there is no {key} to override in a defaults list")

    def refuse(self, why: str) -> UserError:
        """The error for a list that cannot be read."""
        return UserError(f"{self.path} cannot be composed ({why}); fix it there.")

    def _load(self, entry: _Entry) -> tuple[dict[str, Any] | None, str | None]:
        self.files += 1
        if self.files > MAX_FILES:
            raise self.refuse(f"its defaults lists name more than {MAX_FILES} files")
        file = entry.name if entry.name.endswith(".yaml") else f"{entry.name}.yaml"
        path = next((folder / file for folder in self.folders if (folder / file).is_file()), None)
        if path is None and entry.is_optional:
            return None, None
        if path is None:
            raise self._no_file(entry)
        text = read_config_text(path)
        return load_mapping(text, path), _package_header(text)

    def _no_file(self, entry: _Entry) -> UserError:
        folders = [folder / entry.group for folder in self.folders] if entry.group is not None else []
        options = sorted({file.stem for folder in folders for file in folder.glob("*.yaml")})
        offer = f"choose {listed(options, 'or')}" if options else "fix the name or remove it"
        return UserError(f"The defaults list of {self.path} names {entry.name}, which does not exist; {offer}.")

    def _without_overrides(self, entries: list[Any], folder: str) -> list[Any]:
        """The entries of a list without those that override others, which are remembered; `_self_` is among them."""
        kept = []
        for item in entries:
            key = next(iter(item)) if isinstance(item, Mapping) and len(item) == 1 else ""
            if not str(key).startswith("override "):
                kept.append(item)
            elif not key.removeprefix("override ").strip().lstrip("/").startswith("hydra/"):
                group = _joined(folder, key.removeprefix("override ").strip())
                self.own_overrides.append(group)
                self.replaced.setdefault(group, self._option(item[key]) or "null")
        if kept.count(_SELF) > 1:
            raise self.refuse("_self_ is twice in a defaults list")
        return kept if _SELF in kept else [*kept, _SELF]

    def _entries(self, item: Any, folder: str, parent: str) -> Iterator[_Entry]:
        """What one item of a list in `folder` names; `parent` is what that file has settings of."""
        if isinstance(item, str):
            name, package = self._package(item, folder)
            yield _Entry(_joined(folder, name), _folder_of(name), package)
        elif isinstance(item, Mapping) and len(item) == 1 and isinstance(next(iter(item)), str):
            key, value = next(iter(item.items()))
            name, package = self._package(key.removeprefix("optional ").strip(), folder)
            if not name.lstrip("/").startswith("hydra/"):
                is_optional = key.startswith("optional ")
                yield from self._group(_Entry(name, name.lstrip("/"), package, "", is_optional), value, folder, parent)
        else:
            raise self.refuse(f"{str(item)[:80]!r} in a defaults list is neither a file nor GROUP: OPTION")

    def _group(self, entry: _Entry, value: Any, folder: str, parent: str) -> Iterator[_Entry]:
        group = _joined(folder, entry.name)
        package = entry.package_in(parent, None)
        key = group if package == group.replace("/", ".") else f"{group}@{package or _GLOBAL}"
        options = [self._option(each) for each in value] if isinstance(value, list) else [self._option(value)]
        if key in self.replaced:
            options = [None if self.replaced[key] == "null" else self.replaced[key]]
        elif isinstance(value, list):
            key = ""
        if key in self.chosen:
            raise self.refuse(f"{key} appears more than once in the defaults lists")
        if key:
            self.chosen[key] = str(options[0])
        for option in (option for option in options if option is not None):
            yield _Entry(f"{group}/{option}", entry.relative, entry.package, group, entry.is_optional)

    def _package(self, text: str, folder: str) -> tuple[str, str | None]:
        """A name and what follows its `@`."""
        if _OPEN in text:
            raise self.refuse(f"{text[:80]!r} in a defaults list refers to something; write the name itself")
        name, at, package = text.partition("@")
        package = package.replace("_group_", f"{_GLOBAL}.{_joined(folder, name).replace('/', '.')}")
        return name, ("" if package == "_here_" else package) if at else None

    def _option(self, value: Any) -> str | None:
        if value is None:
            return None
        if isinstance(value, list | Mapping | bool):
            raise self.refuse(f"{str(value)[:80]!r} in a defaults list is no name of an option")
        if _OPEN in str(value) or value == _MISSING:
            raise self.refuse(f"{str(value)[:80]!r} in a defaults list is left open; write the option itself")
        return str(value)


def _joined(folder: str, name: str) -> str:
    return name[1:] if name.startswith("/") else f"{folder}/{name}" if folder else name


def _folder_of(name: str) -> str:
    return name.lstrip("/").rpartition("/")[0]


def _package_header(text: str) -> str | None:
    """What a comment in the first line of a file says that it has settings of."""
    found = _HEADER.match(text.lstrip())
    return f"{_GLOBAL}.{found[1]}" if found else None


def load_mapping(text: str, path: Path) -> dict[str, Any]:
    """The `key: value` lines of a YAML file."""
    import yaml

    try:
        data = yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(_yaml_message(error, path)) from None
    if not isinstance(data, dict | None):
        raise UserError(f"{path} must hold settings as 'key: value' lines, not a single value or a list.")
    _check_types(data, path)
    return {str(key): value for key, value in (data or {}).items()}


def _loader() -> Any:
    """PyYAML's safe loader, but a key may not be there twice, 1e-3 is a number, and a date is text."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key in (key for key, _ in node.value if key.tag == "tag:yaml.org,2002:str"):
                if key.value in seen:
                    what = f"found duplicate key {key.value}"
                    raise yaml.constructor.ConstructorError(problem=what, problem_mark=key.start_mark)
                seen.add(key.value)
            return super().construct_mapping(node, deep=deep)

    Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))
    return Loader


def _check_types(data: Any, path: Path) -> None:
    """Refuse values that settings cannot have, such as sets and dates."""
    if isinstance(data, dict | list):
        for item in data.values() if isinstance(data, dict) else data:
            _check_types(item, path)
    elif not isinstance(data, str | int | float | None):
        raise UserError(f"{path} holds a value of type {type(data).__name__}, which no setting has; write it as text.")


def _yaml_message(error: Exception, path: Path) -> str:
    """One sentence that says what is wrong in a YAML file, and where."""
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return f"{path} is not YAML ({what}); fix it there."
    return f"{path} is not YAML: {what} in line {mark.line + 1}, column {mark.column + 1}; fix it there."
