"""The fingerprint of data, by which a resumed run notices that its data has changed.

Rows that come from files name them in a method `origins()`. The fingerprint then holds each file's size, modification
time and hash, and a file is read again only if its size or time have changed. For other rows it is a digest of a few
rows, always the same ones. So two changes go unnoticed: an edit that keeps a file's size and modification time, and a
change in rows that are not among the few. Random rows are refused in both cases (see chosen_rows.py).
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.data.chosen_rows import ROWS, ReadOptions, digest_rows, refuse_random_rows
from samestep.data.data_file import DataFile
from samestep.data.loading import Rows
from samestep.data.row_digest import RowDigest

Origin = DataFile | Path | str | np.ndarray
"""Where rows come from: a file, or an array in memory."""


@dataclass(frozen=True)
class FingerprintComparison:
    """The difference between data and its recorded fingerprint."""

    record: dict[str, Json]
    """The fingerprint to keep from now on."""
    difference: str = ""
    """What differs; empty when nothing does."""
    is_new: bool = False
    """Whether the fingerprint was of another kind, so that only the number of rows could be compared."""


def take_fingerprint(rows: Rows, options: ReadOptions) -> dict[str, Json]:
    """The fingerprint, as JSON; refuses random rows."""
    origins = _origins(rows)
    if not origins:
        return {"rows": len(rows), "digest": digest_rows(rows, options).to_json()}
    refuse_random_rows(rows, options)
    return {"rows": len(rows), "files": [_file_record(origin, options) for origin in origins]}


def compare_fingerprint(known: Mapping[str, Json], rows: Rows, options: ReadOptions) -> FingerprintComparison:
    """Compare data with its recorded fingerprint; refuses random rows."""
    if known["rows"] != len(rows):
        return FingerprintComparison(dict(known), f"it has {len(rows)} rows now, and had {known['rows']}")
    origins = _origins(rows)
    if ("files" in known) != bool(origins):
        return FingerprintComparison(take_fingerprint(rows, options), is_new=True)
    if not origins:
        return _compare_rows(known, rows, options)
    found = _compare_files(known, origins, options)
    if not found.difference:
        refuse_random_rows(rows, options)
    return found


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
    if RowDigest(**known["digest"]).same_as(digest_rows(rows, options)):
        return FingerprintComparison(dict(known))
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
