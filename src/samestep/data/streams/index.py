"""The index of a shard: where each of its rows is. Made by one pass over it, then kept in the user's cache.

It is found again by the shard's path, size and modification time. It holds numbers and names, and nothing of it is ever
executed. It is kept only where nobody else can write, since another's index would be other rows.
"""

import fcntl
import hashlib
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np

from samestep.core.errors import UserError
from samestep.core.paths import cache_folder
from samestep.core.safe_files import make_private_folder, open_new, others_may_write, temporary_name

_FORMAT = 1
_BLOCK = 512
_CHUNK = 1 << 22
_FIELDS = ("first", "offsets", "sizes", "extension", "extensions", "keys", "sha256")


@dataclass(frozen=True)
class ShardIndex:
    """Where the rows of a shard are; a row is one member or several, which follow each other."""

    first: np.ndarray
    """The first member of each row, and at the end the number of all members."""
    offsets: np.ndarray
    sizes: np.ndarray
    """Of each member, in bytes."""
    extension: np.ndarray
    """Which of the extensions each member has."""
    extensions: list[str] | None
    """None: a shard of lines, which have no names."""
    keys: np.ndarray
    sha256: str
    """Of all that the index says; of a shard of lines, of its bytes."""

    @property
    def rows(self) -> int:
        return len(self.first) - 1

    def key(self, row: int) -> str:
        return bytes(self.keys[row]).decode()

    def span(self, row: int) -> tuple[int, int]:
        """The first byte of a row, and the one behind its last."""
        last = int(self.first[row + 1]) - 1
        return int(self.offsets[self.first[row]]), int(self.offsets[last] + self.sizes[last])

    def members(self, row: int) -> Iterator[tuple[str, int, int]]:
        """Extension, offset and size of each."""
        assert self.extensions is not None, "lines have no members"
        for member in range(int(self.first[row]), int(self.first[row + 1])):
            yield self.extensions[self.extension[member]], int(self.offsets[member]), int(self.sizes[member])

    def save(self, path: Path) -> None:
        """As arrays; appears complete or not at all."""
        names = np.array(self.extensions if self.extensions is not None else [], dtype=np.str_)
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _FIELDS}
        arrays |= {"extensions": names, "sha256": np.array(self.sha256)}
        temporary = temporary_name(path)
        with open_new(temporary, private=True) as file:
            np.savez(file, is_tar=np.array(self.extensions is not None), **arrays)
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path) -> "ShardIndex":
        with np.load(path, allow_pickle=False) as found:
            fields = {name: found[name] for name in _FIELDS}
            extensions = fields["extensions"].tolist() if found["is_tar"] else None
        return cls(**{**fields, "extensions": extensions, "sha256": str(fields["sha256"])})


def open_index(file: Path) -> ShardIndex:
    """The index of a shard, from the cache or made now; one process of a host makes it, and the others wait."""
    make = _index_tar if file.suffix == ".tar" else _index_lines
    folder = _folder()
    if folder is None:
        return make(file)
    found = file.stat()
    key = f"{_FORMAT} {file.resolve()} {found.st_size} {found.st_mtime_ns}"
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:40]}.npz"
    index = _kept(path)
    if index is not None:
        return index
    with _locked(folder):
        index = _kept(path)
        if index is None:
            index = make(file)
            try:
                index.save(path)
            except OSError:  # a full disk: it is made again the next time
                return index
    return index


def _kept(path: Path) -> ShardIndex | None:
    try:
        return ShardIndex.load(path)
    except (OSError, ValueError, KeyError, BadZipFile):  # none, or damaged
        return None


def _folder(env: Mapping[str, str] = os.environ) -> Path | None:
    """Where indexes are kept; None where there is no place that only this user can write to."""
    cache = cache_folder(env)
    if cache is None:
        return None
    try:
        make_private_folder(cache / "shards")
    except OSError:
        return None
    return None if others_may_write(cache / "shards") else cache / "shards"


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _index_lines(file: Path) -> ShardIndex:
    """Every line that is not blank is a row."""
    content, offsets, sizes, start = hashlib.sha256(), list[int](), list[int](), 0
    with open(file, "rb") as lines:
        for line in lines:
            content.update(line)
            if line.strip():
                offsets.append(start)
                sizes.append(len(line))
            start += len(line)
    none = np.zeros(0, dtype=np.int64)
    first = np.arange(len(offsets) + 1)
    return ShardIndex(first, _array(offsets), _array(sizes), none, None, none, content.hexdigest())


def _array(numbers: list[int]) -> np.ndarray:
    return np.array(numbers, dtype=np.int64)


def _index_tar(file: Path) -> ShardIndex:
    """Members of one key, which follow each other, are a row; the key is the path up to the first dot of the name."""
    rows = _TarRows(file)
    try:
        with tarfile.open(file, "r:") as tar:
            while (member := tar.next()) is not None:
                rows.add(member)
                tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            end = tar.offset
    except tarfile.TarError as error:
        raise UserError(f"the shard {file} is damaged ({error}); make it again, or leave it out") from None
    rows.check_end(end)
    return rows.index()


class _TarRows:
    """Collects the rows of a .tar."""

    def __init__(self, file: Path) -> None:
        self._file, self._size = file, file.stat().st_size
        self._keys: list[bytes] = []
        self._seen: set[bytes] = set()
        self._first: list[int] = []
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._extension: list[int] = []
        self._extensions: dict[str, int] = {}
        self._of_row: set[str] = set()
        self._digest = hashlib.sha256()

    def add(self, member: tarfile.TarInfo) -> None:
        folder, _, name = member.name.rpartition("/")
        if not member.isreg() or name.startswith("."):  # folders, and what macOS adds
            return
        if member.issparse():
            raise UserError(f"{member.name} in the shard {self._file} is a sparse file; pack it without --sparse")
        key, dot, extension = name.partition(".")
        if not dot or not extension:
            raise UserError(
                f"{member.name} in the shard {self._file} has no extension; name members KEY.EXTENSION, such as "
                "000001.jpg and 000001.json"
            )
        if member.offset_data + member.size > self._size:
            raise UserError(f"the shard {self._file} is cut short inside {member.name}; make it again, or leave it out")
        self._begin(f"{folder}/{key}" if folder else key)
        if extension in self._of_row:
            raise UserError(f"the shard {self._file} has {member.name} twice in one sample; give each its own name")
        self._of_row.add(extension)
        self._offsets.append(member.offset_data)
        self._sizes.append(member.size)
        self._extension.append(self._extensions.setdefault(extension, len(self._extensions)))
        self._digest.update(f"{member.name}\n{member.offset_data} {member.size} {member.mtime}\n".encode())

    def _begin(self, text: str) -> None:
        """The row of this key, which is the last one or a new one."""
        key = text.encode()
        if self._keys and self._keys[-1] == key:
            return
        if key in self._seen:
            raise UserError(
                f"the shard {self._file} has two samples with the key {text}; the members of a sample must follow each "
                "other (tar --sort=name), and each sample needs a key of its own"
            )
        self._seen.add(key)
        self._keys.append(key)
        self._first.append(len(self._offsets))
        self._of_row = set()

    def check_end(self, offset: int) -> None:
        """Refuse a .tar without its end, or with another one behind it, whose rows would be missing."""
        with open(self._file, "rb") as file:
            file.seek(offset)
            rest = file.read(_CHUNK)
            if len(rest) < _BLOCK:
                raise UserError(f"the shard {self._file} is cut short: its end is missing; make it again")
            while rest:
                if rest.strip(b"\0"):
                    raise UserError(
                        f"the shard {self._file} goes on behind its end, as where two were joined by cat; give "
                        "each as a file of its own"
                    )
                rest = file.read(_CHUNK)

    def index(self) -> ShardIndex:
        first = _array([*self._first, len(self._offsets)])
        keys = np.array(self._keys, dtype=np.bytes_) if self._keys else np.zeros(0, dtype=np.bytes_)
        extension = np.array(self._extension, dtype=np.int32)
        names = list(self._extensions)
        return ShardIndex(
            first, _array(self._offsets), _array(self._sizes), extension, names, keys, self._digest.hexdigest()
        )
