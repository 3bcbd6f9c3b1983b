"""Small files written so that a kill leaves either the old content or the new, and JSON lines that can be cut back."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

Json = Any  # None, bool, int, float, str, and lists and string-keyed dicts of them


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` by `text`: a reader, or a kill at any instant, sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.tmp")  # always the same, so that the next write takes away what a kill left
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def put_in_place(fresh: Path, folder: Path) -> None:
    """Give a finished folder its name; one that had it before stays whole until then, and goes after."""
    aside = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
    fresh.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(aside, ignore_errors=True)


def write_json(path: Path, value: Json) -> None:
    """Replace `path` by `value` as readable JSON."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Json:
    """The value in `path`, or None when there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


class JsonLines:
    """A file of one JSON object a line, appended to; a half-written last line of a killed writer is ignored."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIO | None = None

    def append(self, row: Mapping[str, Json]) -> None:
        """Add one row; it reaches the operating system before this returns, so a killed process loses no row."""
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _cut_half_line(self.path)
            self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115 (kept open over many rows)
        self._file.write(json.dumps(row, ensure_ascii=False) + "\n")
        self._file.flush()

    def __iter__(self) -> Iterator[dict[str, Json]]:
        if not self.path.exists():
            return
        with open(self.path, encoding="utf-8") as file:
            for line in file:
                if line.endswith("\n"):
                    yield json.loads(line)

    def keep(self, wanted: Callable[[dict[str, Json]], bool]) -> None:
        """Drop the rows that are not `wanted`: what lies beyond a checkpoint is written again, not twice."""
        self.close()
        if self.path.exists():
            rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in self if wanted(row)]
            write_atomically(self.path, "".join(rows))

    def close(self) -> None:
        """Close the file; the next append opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _cut_half_line(path: Path) -> None:
    """Remove what a full disk or a power cut left of a last line, or the next row would be written behind it."""
    try:
        with open(path, "rb+") as file:
            content = file.read()
            if content and not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
    except FileNotFoundError:
        return
