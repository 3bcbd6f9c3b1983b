"""The one atomic writer and the one reader of JSON files, and JSON-lines files that can be truncated."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO

from samestep.core.disk_space import naming_file
from samestep.core.safe_files import open_file, open_new, temporary_name

Json = Any  # None, bool, int, float, str, and lists and string-keyed dicts of them


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


def read_json(path: Path) -> Json:
    """The value in `path`, or None when there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


def read_json_if_readable(path: Path) -> Json:
    """The value in `path`, or None when the file is missing, unreadable or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def parse_json_lines(lines: Iterable[str]) -> Iterator[dict[str, Json]]:
    """The JSON objects in `lines`; an incomplete line, which a kill or a full disk leaves, is skipped."""
    for line in lines:
        try:
            row = json.loads(line)
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
        if not self.path.exists():
            return
        with open(self.path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)

    def keep(self, wanted: Callable[[dict[str, Json]], bool]) -> None:
        """Drop the rows that are not `wanted`: rows after a checkpoint are written again, and must not appear twice."""
        self.close()
        if self.path.exists():
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
