"""The one atomic writer and the one reader of JSON files, and JSON-lines files that can be truncated.

Any file may be damaged: half-written, replaced by a folder, not readable, or other JSON than what was written. Who
needs it lets `DamagedFile` end the command with its sentence; who can go on without it catches it as a ValueError.
"""

import errno
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from samestep.core.disk_space import naming_file
from samestep.core.errors import UserError
from samestep.core.safe_files import open_file, open_new, temporary_name

Json = Any  # None, bool, int, float, str, and lists and string-keyed dicts of them
MAX_DEPTH = 100
"""How deep JSON may nest. Nothing that we write comes near it, and Python cannot follow much deeper data."""


class DamagedFile(UserError, ValueError):
    """A file of ours that cannot be read, or is not what was written."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is damaged: {why}; restore it from a copy, or use another run")
        self.why = why


@contextmanager
def atomic_file(path: Path, *, sync: bool = True, private: bool = False) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the end. After a kill at any moment, the old or the new one is there.

    `sync`: have it on the disk, too, when this ends; not needed for what a crash of the machine makes useless.
    `private`: only its owner may read it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with naming_file(path), open_new(temporary, private=private) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)  # it may be what fills the disk
        raise
    if sync:
        sync_folder(path.parent)


def write_atomically(path: Path, text: str, *, private: bool = False) -> None:
    """Replace the content of `path`; with `private`, only its owner may read it."""
    with atomic_file(path, private=private) as file:
        file.write(text.encode())


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_folder(new: Path, folder: Path) -> None:
    """Rename the finished folder `new` to `folder`. An older one stays complete until then, and is then removed."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    new.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, value: Json, *, private: bool = False) -> None:
    """Replace `path` by `value` as readable JSON."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n", private=private)


def parse_json(text: str | bytes, *, unique_keys: bool = False) -> Json:
    """JSON of any origin; ValueError if it is none, or nests too deeply.

    `unique_keys`: also if an object has a key twice, of which Python would keep the last one in silence.
    """
    try:
        text = text.decode() if isinstance(text, bytes) else text
        value = json.loads(text, object_pairs_hook=_without_repeats if unique_keys else None)
    except RecursionError:
        raise ValueError("it nests too deeply") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_too_deep(value):
        raise ValueError("it nests too deeply")
    return value


def _without_repeats(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} comes twice")
    return found


def _is_too_deep(value: Json) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for outer in level
            if isinstance(outer, dict | list)
            for item in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def read_json(path: Path) -> Json:
    """The value in `path`, or None when there is no such file."""
    content = _read(path)
    return None if content is None else _parse(path, content)


def find_object(path: Path) -> dict[str, Json] | None:
    """The JSON object in `path`, or None when there is no such file; by one look, since it may appear any moment."""
    content = _read(path)
    if content is None:
        return None
    found = _parse(path, content)
    if not isinstance(found, dict):
        raise DamagedFile(path, f"it must hold a JSON object, and holds {_KINDS[type(found)]}")
    return found


def read_object(path: Path) -> dict[str, Json]:
    """The JSON object in `path`; an empty one when there is no such file."""
    return find_object(path) or {}


def read_sized_object(path: Path, most: int) -> dict[str, Json]:
    """The JSON object in a file of anybody, which may have `most` bytes; an empty one when there is no such file."""
    with suppress(OSError):  # reading it says what is wrong
        if path.stat().st_size > most:
            raise UserError(f"Use another folder than {path.parent}: {path.name} has more than {most >> 20} MiB.")
    try:
        return read_object(path)
    except DamagedFile as error:
        raise UserError(f"Download or make {path} again: {error.why}.") from None


def _parse(path: Path, content: bytes) -> Json:
    try:
        return parse_json(content)
    except ValueError as error:
        why = "it is empty" if not content.strip() else f"it is not JSON ({error})"
        raise DamagedFile(path, why) from None


_KINDS = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list"}


def _read(path: Path) -> bytes | None:
    """The content of a file; None when there is none, also for a name that no file can have."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:  # no pipe waits
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DamagedFile(path, "it is not a file")
            return file.read()
    except IsADirectoryError:  # Python opens no folder as a file
        raise DamagedFile(path, "it is a folder, where a file was") from None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return None
        raise DamagedFile(path, f"it cannot be read ({error.strerror})") from None
    except DamagedFile:
        raise
    except ValueError:  # a name with a NUL, or with a character that cannot be encoded
        return None


def damage_of_file(path: Path) -> str:
    """Why there is no JSON object in a file; empty when there is one, or no such file."""
    try:
        read_object(path)
    except DamagedFile as error:
        return error.why
    return ""


@contextmanager
def expected_content(path: Path) -> Iterator[None]:
    """Around taking JSON of `path` apart: where it is not of the expected shape, the file is damaged."""
    try:
        yield
    except UserError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise DamagedFile(path, f"its content is not what was written ({type(error).__name__}: {error})") from error


def read_json_if_readable(path: Path) -> Json:
    """The value in `path`, or None when the file is missing, unreadable or not JSON."""
    try:
        return read_json(path)
    except DamagedFile:
        return None


def read_object_if_readable(path: Path) -> dict[str, Json]:
    """The JSON object in `path`; an empty one when there is none that can be read."""
    try:
        return read_object(path)
    except DamagedFile:
        return {}


def parse_json_lines(lines: Iterable[str]) -> Iterator[dict[str, Json]]:
    """The JSON objects in `lines`; an incomplete line, which a kill or a full disk leaves, is skipped."""
    for line in lines:
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


class JsonLines:
    """An append-only file with one JSON object per line; a half-written last line of a killed writer is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def append(self, row: Mapping[str, Json]) -> None:
        """Add one row; it reaches the operating system before this returns, so a killed process loses no row."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _remove_incomplete_line(self.path)
            self._file = open_file(self.path, "a", encoding="utf-8")
        try:
            with naming_file(self.path):
                self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
                self._file.flush()
        except OSError:
            with suppress(OSError):  # what could not be written is tried again, and fails again
                self._file.close()
            self._file = None
            raise

    def __iter__(self) -> Iterator[dict[str, Json]]:
        content = _read(self.path) or b""
        for number, line in enumerate(content.splitlines(keepends=True), 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise DamagedFile(self.path, f"line {number} is not one that was written (delete the line)")
            yield row

    def keep(self, wanted: Callable[[dict[str, Json]], bool]) -> None:
        """Drop the rows that are not `wanted`: rows after a checkpoint are written again, and must not appear twice."""
        self.close()
        if self.path.exists():
            with expected_content(self.path):
                rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in self if wanted(row)]
            write_atomically(self.path, "".join(rows))

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _remove_incomplete_line(path: Path) -> None:
    """Remove an incomplete last line, which a full disk or a power cut leaves: the next row would be appended to it."""
    try:
        with open_file(path, "rb+") as file:
            content = file.read()
            if content and not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
    except FileNotFoundError:
        return
