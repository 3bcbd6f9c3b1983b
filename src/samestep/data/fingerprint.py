"""The fingerprint of data: by it a resumed run notices that it would go on with other data than it was started on.

Rows that come out of files say so by a method `origins()`; the fingerprint is then that of the files, each with size,
time of change and hash, and a file is read again only if size or time have changed. Of other rows it is a digest of a
few of them, always the same ones. So two things escape: an edit that keeps a file's size and time of change, and a
change in rows that are not among the few.
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from samestep.core.errors import UserError
from samestep.core.records import Json
from samestep.data import noise
from samestep.data.loading import Rows, from_a_worker, gives_batches
from samestep.data.permutation import permute
from samestep.data.row_digest import RowDigest, digest_of

_CHUNK = 1 << 22


class DataFile:
    """Bytes `start` to `stop` of a file. All data that comes out of one file shares this object, and so the hash."""

    def __init__(self, path: Path, start: int = 0, stop: int | None = None, sha256: str | None = None) -> None:
        """`sha256` is a hash that was taken when the file was written: it is believed as long as nobody doubts it."""
        self.path, self.start, self.stop = path, start, stop
        self.known = sha256
        self._read: str | None = None

    def sha256(self, moved: Callable[[], None] = lambda: None) -> str:
        """The hash as it is known, or as it is read now; `moved` is called now and then while it is read."""
        return self.known or self.read_sha256(moved)

    def read_sha256(self, moved: Callable[[], None] = lambda: None) -> str:
        """The hash of what the file holds, whatever was known before; read once."""
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


ROWS = 64
"""How many rows are looked at, where rows do not come out of files."""
_BATCH = 8
CHOICE = noise.purpose("data.fingerprint")
Origin = DataFile | Path | str | np.ndarray
"""What rows come out of: a file, or an array in memory."""


@dataclass(frozen=True)
class Reading:
    """How data is read for its fingerprint."""

    seed: int
    """Of the run; it chooses the rows."""
    in_worker: bool = False
    """Whether rows are read by a loader process, as they will be in training: what a dataset opens when it is first
    read must not be open when loader processes are forked."""
    moved: Callable[[], None] = lambda: None
    """Called now and then while a long file, or many rows, are read."""


@dataclass(frozen=True)
class FingerprintComparison:
    """What became of data since its fingerprint was taken."""

    record: dict[str, Json]
    """The fingerprint to keep from now on."""
    difference: str = ""
    """What differs; empty when nothing does."""
    is_new: bool = False
    """Whether the fingerprint was of another kind, so that only the number of rows could be compared."""
    is_random: bool = False
    """Whether rows were found, just now, to differ each time they are read."""


def take(rows: Rows, reading: Reading) -> dict[str, Json]:
    """The fingerprint, as JSON."""
    origins = _origins(rows)
    if not origins:
        return {"rows": len(rows), "digest": _digests(rows, reading, [0])[0].to_json()}
    return {"rows": len(rows), "files": [_file_record(origin, reading) for origin in origins]}


def compare(known: Mapping[str, Json], rows: Rows, reading: Reading) -> FingerprintComparison:
    """The data as it is now against the fingerprint that was taken of it."""
    if known["rows"] != len(rows):
        return FingerprintComparison(dict(known), f"it has {len(rows)} rows now, and had {known['rows']}")
    origins = _origins(rows)
    if ("files" in known) != bool(origins):
        return FingerprintComparison(take(rows, reading), is_new=True)
    return _compare_files(known, origins, reading) if origins else _compare_rows(known, rows, reading)


def _compare_files(
    known: Mapping[str, Json], origins: Sequence[DataFile | np.ndarray], reading: Reading
) -> FingerprintComparison:
    before = known["files"]
    if len(before) != len(origins):
        return FingerprintComparison(
            dict(known), f"it comes out of {len(origins)} files now, and did out of {len(before)}"
        )
    now = []
    for record, origin in zip(before, origins):
        now.append(_file_now(record, origin, reading))
        if now[-1]["sha256"] != record["sha256"]:
            return FingerprintComparison(dict(known), f"{now[-1]['name']} holds something else than before")
    return FingerprintComparison({**known, "files": now})


def _compare_rows(known: Mapping[str, Json], rows: Rows, reading: Reading) -> FingerprintComparison:
    if known.get("random"):
        return FingerprintComparison(dict(known))
    if RowDigest(**known["digest"]).same_as(_digests(rows, reading, [0])[0]):
        return FingerprintComparison(dict(known))
    one, other = _digests(rows, reading, [0, 0])  # with the generators as they were: rows that differ now are random
    if not one.same_as(other):
        return FingerprintComparison({**known, "random": True}, is_random=True)
    return FingerprintComparison(dict(known), f"rows differ among the {min(ROWS, len(rows))} that were compared")


def _origins(rows: Rows) -> list[DataFile | np.ndarray]:
    """What the rows say that they come out of; nothing when they do not say."""
    say = getattr(rows, "origins", None)
    told: Sequence[Origin] = say() if callable(say) else ()
    return [DataFile(Path(origin)) if isinstance(origin, str | Path) else origin for origin in told]


def _file_record(origin: DataFile | np.ndarray, reading: Reading) -> dict[str, Json]:
    """Of a file whose hash is known already, nothing is read."""
    if isinstance(origin, np.ndarray):
        content = hashlib.sha256(f"{origin.dtype} {origin.shape}".encode())
        content.update(np.ascontiguousarray(origin).data)
        return {"name": "an array in memory", "size": origin.nbytes, "sha256": content.hexdigest()}
    return {**_stat(origin.path), "sha256": origin.sha256(reading.moved)}


def _file_now(record: Mapping[str, Json], origin: DataFile | np.ndarray, reading: Reading) -> dict[str, Json]:
    """The record as it is now; a file of the same size and time of change is taken for unchanged."""
    if isinstance(origin, np.ndarray):
        return _file_record(origin, reading)
    stat = _stat(origin.path)
    is_doubtful = origin.known not in (None, record["sha256"])  # whoever wrote the file says that it is another one
    if not is_doubtful and all(record.get(key) == stat[key] for key in ("size", "mtime_ns")):
        origin.known = record["sha256"]
        return {**stat, "sha256": origin.known}
    return {**stat, "sha256": origin.read_sha256(reading.moved)}


def _stat(path: Path) -> dict[str, Json]:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UserError(f"put the file {path} back, which the data comes out of and which is gone") from None
    return {"name": path.name, "size": found.st_size, "mtime_ns": found.st_mtime_ns}


def _digests(rows: Rows, reading: Reading, looks: Sequence[int]) -> list[RowDigest]:
    """The rows as one look after the other finds them. Nobody's random numbers are used up by it."""
    dataset = _Looks(rows, reading)
    if reading.in_worker:
        return from_a_worker(dataset, looks)
    with _random_state_kept():
        return dataset[looks]


class _Looks(Dataset):
    """Looks at the chosen rows of some data, as a dataset, so that a loader process can take them.

    Random numbers that rows draw from the usual generators are those of the look, wherever it is taken.
    """

    def __init__(self, rows: Rows, reading: Reading) -> None:
        self._rows, self._reading = rows, reading

    def __getitem__(self, looks: Sequence[int]) -> list[RowDigest]:
        return [self._look(number) for number in looks]

    def _look(self, number: int) -> RowDigest:
        random.seed(number)
        np.random.seed(number)
        torch.default_generator.manual_seed(number)  # and no device's: rows are read on the CPU
        return digest_of(self._samples())

    def _samples(self) -> Iterator[Any]:
        """The chosen rows, or batches of them."""
        indices = chosen_rows(len(self._rows), self._reading.seed)
        for start in range(0, len(indices), _BATCH):
            some = indices[start : start + _BATCH]
            if gives_batches(self._rows):
                yield self._rows.rows(some)  # type: ignore[attr-defined]
            else:
                yield from (self._rows[int(index)] for index in some)
            self._reading.moved()


def chosen_rows(size: int, seed: int) -> np.ndarray:
    """The rows to look at, in ascending order: all of a few, or as many of them as the seed chooses."""
    return np.sort(permute(np.arange(min(size, ROWS)), 0, size, seed, CHOICE))


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Afterwards the usual generators go on as if nothing had been drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
