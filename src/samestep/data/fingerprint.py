"""The fingerprint of data, by which a resumed run notices that its data has changed.

Rows that come from files name them in a method `origins()`. The fingerprint then holds each file's size, modification
time and hash, and a file is read again only if its size or time have changed. For other rows it is a digest of a few
rows, always the same ones. So two changes go unnoticed: an edit that keeps a file's size and modification time, and a
change in rows that are not among the few.
"""

import hashlib
import os
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
from samestep.data.data_file import DataFile
from samestep.data.loading import Rows, gives_batches, read_in_worker
from samestep.data.permutation import permute
from samestep.data.row_digest import RowDigest, digest_of

ROWS = 64
"""How many rows are compared, if rows do not come from files."""
_BATCH = 8
CHOICE = noise.purpose("data.fingerprint")
Origin = DataFile | Path | str | np.ndarray
"""Where rows come from: a file, or an array in memory."""


@dataclass(frozen=True)
class ReadOptions:
    """How data is read for its fingerprint."""

    seed: int
    """The run's seed; it chooses the rows."""
    in_worker: bool = False
    """Whether rows are read by a loader process, as they will be in training: what a dataset opens when it is first
    read must not be open when loader processes are forked."""
    moved: Callable[[], None] = lambda: None
    """Called regularly while a long file, or many rows, are read, to show the watchdog that there is progress."""


@dataclass(frozen=True)
class FingerprintComparison:
    """The difference between data and its recorded fingerprint."""

    record: dict[str, Json]
    """The fingerprint to keep from now on."""
    difference: str = ""
    """What differs; empty when nothing does."""
    is_new: bool = False
    """Whether the fingerprint was of another kind, so that only the number of rows could be compared."""
    is_random: bool = False
    """Whether this comparison found that rows differ each time they are read."""


def take_fingerprint(rows: Rows, options: ReadOptions) -> dict[str, Json]:
    """The fingerprint, as JSON."""
    origins = _origins(rows)
    if not origins:
        return {"rows": len(rows), "digest": _digests(rows, options, [0])[0].to_json()}
    return {"rows": len(rows), "files": [_file_record(origin, options) for origin in origins]}


def compare_fingerprint(known: Mapping[str, Json], rows: Rows, options: ReadOptions) -> FingerprintComparison:
    """Compare data with its recorded fingerprint."""
    if known["rows"] != len(rows):
        return FingerprintComparison(dict(known), f"it has {len(rows)} rows now, and had {known['rows']}")
    origins = _origins(rows)
    if ("files" in known) != bool(origins):
        return FingerprintComparison(take_fingerprint(rows, options), is_new=True)
    return _compare_files(known, origins, options) if origins else _compare_rows(known, rows, options)


def recorded_file_difference(record: Mapping[str, Json], path: Path, moved: Callable[[], None]) -> str:
    """How the file at `path` differs from a record of a file; empty when it does not. Of a file of which only a part
    was data, any change counts. `moved` is called regularly while it is read."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return f"{path} is gone"
    if (found.st_size, found.st_mtime_ns) == (record["size"], record["mtime_ns"]):
        return ""
    is_same = found.st_size == record["size"] and DataFile(path).sha256(moved) == record["sha256"]
    return "" if is_same else f"the content of {path.name} has changed"


def _compare_files(
    known: Mapping[str, Json], origins: Sequence[DataFile | np.ndarray], options: ReadOptions
) -> FingerprintComparison:
    before = known["files"]
    if len(before) != len(origins):
        return FingerprintComparison(
            dict(known), f"it comes from {len(origins)} files now, and came from {len(before)}"
        )
    now = []
    for record, origin in zip(before, origins):
        now.append(_file_now(record, origin, options))
        if now[-1]["sha256"] != record["sha256"]:
            return FingerprintComparison(dict(known), f"the content of {now[-1]['name']} has changed")
    return FingerprintComparison({**known, "files": now})


def _compare_rows(known: Mapping[str, Json], rows: Rows, options: ReadOptions) -> FingerprintComparison:
    if known.get("random"):
        return FingerprintComparison(dict(known))
    if RowDigest(**known["digest"]).same_as(_digests(rows, options, [0])[0]):
        return FingerprintComparison(dict(known))
    one, other = _digests(rows, options, [0, 0])  # with the same seeds: rows that differ now are random
    if not one.same_as(other):
        return FingerprintComparison({**known, "random": True}, is_random=True)
    return FingerprintComparison(dict(known), f"rows differ among the {min(ROWS, len(rows))} that were compared")


def _origins(rows: Rows) -> list[DataFile | np.ndarray]:
    """Where the rows come from, if they have a method `origins()`; else an empty list."""
    method = getattr(rows, "origins", None)
    named: Sequence[Origin] = method() if callable(method) else ()
    return [DataFile(Path(origin)) if isinstance(origin, str | Path) else origin for origin in named]


def _file_record(origin: DataFile | np.ndarray, options: ReadOptions) -> dict[str, Json]:
    """The record of a file or array; a file whose hash is known is not read."""
    if isinstance(origin, np.ndarray):
        content = hashlib.sha256(f"{origin.dtype} {origin.shape}".encode())
        content.update(np.ascontiguousarray(origin).data)
        return {"name": "an array in memory", "size": origin.nbytes, "sha256": content.hexdigest()}
    return {**_stat(origin.path), "sha256": origin.sha256(options.moved)}


def _file_now(record: Mapping[str, Json], origin: DataFile | np.ndarray, options: ReadOptions) -> dict[str, Json]:
    """The current record; a file of the same size and modification time is assumed to be unchanged."""
    if isinstance(origin, np.ndarray):
        return _file_record(origin, options)
    stat = _stat(origin.path)
    is_doubtful = origin.known not in (None, record["sha256"])  # the hash from when it was written is another one
    if not is_doubtful and all(record.get(key) == stat[key] for key in ("size", "mtime_ns")):
        origin.known = record["sha256"]
        return {**stat, "sha256": origin.known}
    return {**stat, "sha256": origin.read_sha256(options.moved)}


def _stat(path: Path) -> dict[str, Json]:
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UserError(f"put the file {path} back: the data comes from it, and it is gone") from None
    return {
        "name": path.name,
        "path": os.path.abspath(path),
        "size": found.st_size,
        "mtime_ns": found.st_mtime_ns,
    }


def _digests(rows: Rows, options: ReadOptions, seeds: Sequence[int]) -> list[RowDigest]:
    """A digest of the chosen rows for each of the seeds. The process's random state is left unchanged."""
    dataset = _ChosenRows(rows, options)
    if options.in_worker:
        return read_in_worker(dataset, seeds)
    with _random_state_kept():
        return dataset[seeds]


class _ChosenRows(Dataset):
    """Digests of the chosen rows, as a dataset, so that a loader process can compute them.

    The global generators are seeded before, so rows that draw random numbers get the same ones in any process.
    """

    def __init__(self, rows: Rows, options: ReadOptions) -> None:
        self._rows, self._options = rows, options

    def __getitem__(self, seeds: Sequence[int]) -> list[RowDigest]:
        return [self._digest(seed) for seed in seeds]

    def _digest(self, seed: int) -> RowDigest:
        random.seed(seed)
        np.random.seed(seed)
        torch.default_generator.manual_seed(seed)  # and no device's: rows are read on the CPU
        return digest_of(self._samples())

    def _samples(self) -> Iterator[Any]:
        """The chosen rows, or batches of them."""
        indices = chosen_rows(len(self._rows), self._options.seed)
        for start in range(0, len(indices), _BATCH):
            some = indices[start : start + _BATCH]
            if gives_batches(self._rows):
                yield self._rows.rows(some)  # type: ignore[attr-defined]
            else:
                yield from (self._rows[int(index)] for index in some)
            self._options.moved()


def chosen_rows(size: int, seed: int) -> np.ndarray:
    """The rows to compare, in ascending order: all rows of small data, else as many as `ROWS`, chosen by the seed."""
    return np.sort(permute(np.arange(min(size, ROWS)), 0, size, seed, CHOICE))


@contextmanager
def _random_state_kept() -> Iterator[None]:
    """Restores the global generators afterwards."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
