"""The Python files that a model's folder names as its own (`auto_map`): read as text to be copied, never run.

Of a model of the Hub no code is downloaded: its auto_map then names the repository, as transformers has it.
Only regular files right in the folder count, those that auto_map names and those that they import relatively. If any of
that lies elsewhere, nothing is carried: a part of a model's code opens nothing.
"""

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import read_json_if_readable
from samestep.models.hub_download import cached_model

_NAMING = ("config.json", "tokenizer_config.json")
_MODULE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_CLASS = re.compile(rf"({_MODULE.pattern})\.{_MODULE.pattern}", re.ASCII)
# By lines, as transformers itself looks for them; `\s` across lines would take the square of their number.
_FROM = re.compile(r"^[^\S\n]*from[^\S\n]*\.(\S*)[^\S\n]+import[^\S\n]*(\([^)]{0,4000}\)|[^\n]*)", re.MULTILINE)
_IMPORT = re.compile(r"^[^\S\n]*import[^\S\n]+\.(\S+)", re.MULTILINE)
_MOST_BYTES, _MOST_FILES = 2**20, 100


class _Elsewhere(Exception):
    """Why the code of a folder is not carried."""


@dataclass(frozen=True)
class CarriedCode:
    """The code of a model's folder."""

    folder: str = ""
    """Its absolute path."""
    auto_map: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the file that has it."""
    sha256: dict[str, str] = field(default_factory=dict)
    """By Python file."""
    why_not: str = ""
    """Why nothing is carried."""
    repository: str = ""
    """The model of the Hub that has the code, as org/name@commit; then there are no files."""

    def contents(self) -> Mapping[str, bytes]:
        """The files, which must be what they were when this was recorded."""
        if self.repository:
            return {}
        found, contents = read_code(Path(self.folder))
        if found != self:
            names = sorted(self.sha256.keys() | found.sha256.keys())
            changed = [name for name in names if self.sha256.get(name) != found.sha256.get(name)]
            what = "the code" if found.why_not else ", ".join(changed) or "auto_map"
            why = f" ({found.why_not})" if found.why_not else ""
            raise UserError(
                f"Put {what} in {self.folder} back as it was when training began, or move that folder away to go on "
                f"without its code; it has changed since{why}."
            )
        return contents


def read_code(folder: Path) -> tuple[CarriedCode, Mapping[str, bytes]]:
    """The code of a folder as it is now, and its files."""
    place = str(folder.absolute())
    known = {name: read_json_if_readable(folder / name) for name in _NAMING}
    maps = {
        name: found["auto_map"] for name, found in known.items() if isinstance(found, dict) and found.get("auto_map")
    }
    model = cached_model(folder)
    try:
        if model is not None and maps:
            return CarriedCode(place, _on_hub(maps, model.name), repository=str(model)), {}
        contents = _reached(folder, maps)
    except _Elsewhere as why:
        return CarriedCode(place, why_not=str(why)), {}
    if not contents:
        return CarriedCode(place, why_not="no auto_map in config.json names any"), {}
    sha256 = {name: hashlib.sha256(contents[name]).hexdigest() for name in sorted(contents)}
    return CarriedCode(place, maps, sha256), contents


def _on_hub(maps: Mapping[str, Any], repository: str) -> dict[str, dict[str, Any]]:
    """The classes of auto_map with the repository that their files are in."""

    def named(value: Any) -> Any:
        return [named(one) for one in value] if isinstance(value, list) else value and f"{repository}--{value}"

    for file, table in maps.items():
        list(_named_modules(file, table))  # which refuses what is no class in a file of this model
    return {file: {auto: named(value) for auto, value in table.items()} for file, table in maps.items()}


def _reached(folder: Path, maps: Mapping[str, Any]) -> dict[str, bytes]:
    """All files that are reached, by name."""
    contents: dict[str, bytes] = {}
    waiting = [module for file, named in maps.items() for module in _named_modules(file, named)]
    while waiting:
        name = f"{waiting.pop()}.py"
        if name in contents:
            continue
        if len(contents) == _MOST_FILES:
            raise _Elsewhere(f"there are more than {_MOST_FILES} files")
        contents[name] = _read(folder / name)
        waiting += _imported_modules(name, contents[name])
    return contents


def _named_modules(file: str, named: Any) -> Iterable[str]:
    """The modules of an auto_map; a value is a class, or a list of classes and None."""
    if not isinstance(named, dict):
        raise _Elsewhere(f"auto_map in {file} is no table")
    for text in (text for value in named.values() for text in (value if isinstance(value, list) else [value])):
        found = _CLASS.fullmatch(text) if isinstance(text, str) else None
        if found is not None:
            yield found[1]
        elif text is not None:
            raise _Elsewhere(f"auto_map in {file} names {_shown(text)}, which is no class in a file beside it")


def _imported_modules(name: str, content: bytes) -> Iterable[str]:
    """The modules that a file imports relatively."""
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise _Elsewhere(f"{name} is no UTF-8 text") from None
    modules = _IMPORT.findall(text)
    for module, imported in _FROM.findall(text):
        parts = re.sub(r"#[^\n]*", "", imported).strip("() \t\n").split(",")
        modules += [module] if module else [part.split()[0] for part in parts if part.strip()]
    for module in modules:
        if not _MODULE.fullmatch(module):
            raise _Elsewhere(f"{name} imports {_shown('.' + module)}, which is no file beside it")
    return modules


def _read(path: Path) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        why = {errno.ELOOP: "is a link", errno.ENOENT: "is missing"}.get(error.errno or 0, "cannot be read")
        raise _Elsewhere(f"{path.name} {why}") from None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _Elsewhere(f"{path.name} is no file")
        with open(handle, "rb", closefd=False) as file:
            content = file.read(_MOST_BYTES + 1)
    except OSError:
        raise _Elsewhere(f"{path.name} cannot be read") from None
    finally:
        os.close(handle)
    if len(content) > _MOST_BYTES:
        raise _Elsewhere(f"{path.name} is larger than {_MOST_BYTES:,} bytes")
    return content


def _shown(value: Any) -> str:
    """What a folder says, so that it can stand in a card."""
    return re.sub(r"[^\w./@-]", "?", str(value), flags=re.ASCII)[:100]
