"""A file, or a part of one, that data comes from, with the hash of its bytes. Imports no torch."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.paths import expand_home

_CHUNK = 1 << 22


def existing_file(path: str) -> Path:
    """A file that a user named; refused if it cannot be read."""
    file = expand_home(path)
    if not file.exists():
        raise UserError(f"Give an existing file; {path} does not exist (from {Path.cwd()}).")
    if file.is_dir():
        inside = sorted(p.name for p in file.iterdir() if p.is_file())[:5]
        raise UserError(f"Name one file inside the folder {path}, such as {', '.join(inside) or 'a .txt file'}.")
    if not os.access(file, os.R_OK):
        raise UserError(f"Allow this user to read {path}; its permissions do not.")
    if file.stat().st_size == 0:
        raise UserError(f"Give a file with something in it; {path} is empty.")
    return file


class DataFile:
    """Bytes `start` to `stop` of a file. All data from one file shares this object, and so the hash."""

    def __init__(self, path: Path, start: int = 0, stop: int | None = None, sha256: str | None = None) -> None:
        """`sha256` is a hash from when the file was written; it is used until `read_sha256` computes it again."""
        self.path, self.start, self.stop = path, start, stop
        self.known = sha256
        self._read: str | None = None

    def sha256(self, moved: Callable[[], None] = lambda: None) -> str:
        """The known hash, or one computed now; `moved` is called regularly while the file is read."""
        return self.known or self.read_sha256(moved)

    def read_sha256(self, moved: Callable[[], None] = lambda: None) -> str:
        """The hash of what the file holds now, whatever was known before; the file is read once."""
        if self._read is None:
            self._read = self.known = _hash(self.path, self.start, self.stop, moved)
        return self._read


def _hash(path: Path, start: int, stop: int | None, moved: Callable[[], None]) -> str:
    digest = hashlib.sha256()
    left = float("inf") if stop is None else stop - start
    with open(path, "rb") as file:
        file.seek(start)
        while left > 0 and (chunk := file.read(int(min(left, _CHUNK)))):
            digest.update(chunk)
            left -= len(chunk)
            moved()
    return digest.hexdigest()
