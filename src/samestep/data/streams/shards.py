"""Shards whose rows are found by number: .tar files in the layout of webdataset, and .jsonl files.

An index of each shard says where its rows are (see index.py). It is made once, so any row is found at once, and each
process reads its own rows alone.
"""

import glob
import io
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.data import noise
from samestep.data.data_file import DataFile
from samestep.data.order import Order
from samestep.data.permutation import permute
from samestep.data.streams.index import ShardIndex, open_index
from samestep.data.windowed import WindowedOrder

KINDS = (".tar", ".jsonl")
_OPEN_FILES = 64
"""How many shards a process holds open."""
_COMPARED = 64
"""How many rows are compared at a resume, beside what the indexes say."""
_CHOICE = noise.purpose("data.shards compared")


def open_shards(paths: Sequence[str | Path], buffer: int, decode: Callable[[Any], Any] | None) -> "ShardRows":
    """The rows of the shards that these paths name, in ascending order where `*` stands for several."""
    files = [file for path in paths for file in _files(path)]
    if not files:
        raise UserError('samestep.stream was given no shards; name at least one, such as "shards/*.tar"')
    twice = [file for file in files if files.count(file) > 1] if len(set(files)) < len(files) else []
    if twice:
        raise UserError(f"the shard {twice[0]} is named twice; name each once")
    return ShardRows(files, buffer, decode)


def _files(path: str | Path) -> list[Path]:
    named = expand_home(path)
    found = [named] if named.exists() or not glob.has_magic(str(named)) else [Path(p) for p in _matching(str(named))]
    if not found:
        raise UserError(f"no file matches {path} (from {Path.cwd()}); give the paths of .tar or .jsonl files")
    for file in found:
        if not file.exists():
            raise UserError(f"the shard {file} does not exist (from {Path.cwd()}); look at its path")
        if file.is_dir():
            raise UserError(f'{file} is a folder; name the shards in it, such as "{file}/*.tar"')
        if file.suffix not in KINDS:
            unpack = "; unpack it first: rows cannot be found in a compressed file"
            is_packed = file.suffix in (".gz", ".tgz", ".bz2", ".xz", ".zst")
            raise UserError(f"{file} is no shard: samestep.stream reads .tar and .jsonl{unpack if is_packed else ''}")
    return found


def _matching(pattern: str) -> list[str]:
    return sorted(glob.glob(pattern, recursive=True))


class ShardRows:
    """The rows of all shards, one shard after the other.

    A row of a .tar is a dict: `__key__`, and the bytes of each of its members by extension; of a .jsonl it is what the
    line says.
    """

    def __init__(self, files: Sequence[Path], buffer: int, decode: Callable[[Any], Any] | None) -> None:
        self.files, self.buffer, self.decode = list(files), buffer, decode
        self._indexes: list[ShardIndex] = [open_index(file) for file in self.files]
        self.sizes = np.array([index.rows for index in self._indexes], dtype=np.int64)
        self._ends = np.cumsum(self.sizes)
        if not self._ends[-1]:
            raise UserError(f"the shards have no rows: {', '.join(map(str, self.files[:3]))}")
        self._handles: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Any:
        row = self._raw(index)
        return row if self.decode is None else self.decode(row)

    def own_order(self, batch: int, seed: int) -> Order:
        """Shards in a keyed order, rows shuffled in windows: what is read lies close together."""
        return WindowedOrder(self.sizes, batch, seed, self.buffer)

    def origins(self) -> list[DataFile | np.ndarray]:
        """The shards, each known by its index and not by all of its bytes, and the bytes of some rows."""
        shards = [_IndexedFile(file, index.sha256) for file, index in zip(self.files, self._indexes)]
        chosen = permute(np.arange(min(len(self), _COMPARED)), 0, len(self), 0, _CHOICE)
        rows = b"".join(self._bytes(*self._place(int(index)))[0] for index in np.sort(chosen))
        return [*shards, np.frombuffer(rows, dtype=np.uint8)]

    def _raw(self, index: int) -> Any:
        shard, row = self._place(index)
        content, start = self._bytes(shard, row)
        found = self._indexes[shard]
        if found.extensions is None:
            return _parsed(content, self.files[shard], row)
        sample: dict[str, Any] = {"__key__": found.key(row)}
        for extension, offset, size in found.members(row):
            sample[extension] = content[offset - start : offset - start + size]
        return sample

    def _place(self, index: int) -> tuple[int, int]:
        """The shard of a row, and its number in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"there is no row {index} among {len(self)}")
        shard = int(np.searchsorted(self._ends, index, side="right"))
        return shard, index - int(self._ends[shard] - self.sizes[shard])

    def _bytes(self, shard: int, row: int) -> tuple[bytes, int]:
        """The bytes from a row's first to its last, and where they begin."""
        start, stop = self._indexes[shard].span(row)
        content = os.pread(self._handle(shard), stop - start, start)
        if len(content) != stop - start:
            raise UserError(f"the shard {self.files[shard]} has become shorter while it was read; restore it")
        return content, start

    def _handle(self, shard: int) -> int:
        """The shard, opened for reading at any place; those that were not read for long are closed."""
        handle = self._handles.get(shard)
        if handle is None:
            handle = self._handles[shard] = os.open(self.files[shard], os.O_RDONLY | os.O_CLOEXEC)
            while len(self._handles) > _OPEN_FILES:
                os.close(self._handles.popitem(last=False)[1])
        self._handles.move_to_end(shard)
        return handle

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handles": OrderedDict()}


class _IndexedFile(DataFile):
    """A shard, known by its index: reading all of it at each launch would take minutes."""

    def __init__(self, path: Path, sha256: str) -> None:
        super().__init__(path, sha256=sha256)
        self._of_index = sha256

    def read_sha256(self, moved: Callable[[], None] = lambda: None) -> str:
        return self._of_index


def _parsed(line: bytes, file: Path, row: int) -> Any:
    try:
        return json.load(io.BytesIO(line))
    except ValueError as error:
        raise UserError(f"record {row + 1} of {file} is not JSON: {error}") from None
