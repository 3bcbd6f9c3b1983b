"""A file, or a part of one, that data comes from, with the hash of its bytes. Imports no torch."""

import hashlib
from collections.abc import Callable
from pathlib import Path

_CHUNK = 1 << 22


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
