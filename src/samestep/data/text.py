"""Local text as one long sequence of byte tokens, memory-mapped so that memory does not grow with the file.

A plain file is its own token file: it is mapped, never read into memory. A JSONL file is unpacked once, document by
document, into a file of 16-bit tokens, which is then mapped in the same way.
"""

import hashlib
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.core.records import parse_json
from samestep.data.data_file import DataFile

JSONL = (".jsonl", ".ndjson")
PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".7z", ".parquet", ".arrow", ".npy", ".npz")
_CHUNK = 1 << 22


class TokenFile:
    """A span of tokens in a file, memory-mapped; pickled by name, so a worker process gets no copy of it."""

    def __init__(self, file: Path, dtype: str, start: int, stop: int, origin: DataFile | None = None) -> None:
        """`origin` is the part of the file that is hashed, which its spans share; by default the bytes of this span."""
        self.file, self.dtype, self.start, self.stop = file, dtype, start, stop
        size = np.dtype(dtype).itemsize
        self.origin = origin or DataFile(file, start * size, stop * size)
        self._tokens = np.memmap(file, dtype=dtype, mode="r")[start:stop]

    def __reduce__(self) -> tuple[type["TokenFile"], tuple[Path, str, int, int]]:
        """How to open it again."""
        return TokenFile, (self.file, self.dtype, self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, where: slice | np.ndarray) -> np.ndarray:
        """Tokens in memory: those of a slice, or those at an array of positions."""
        return np.array(self._tokens[where])

    def span(self, start: int, stop: int) -> "TokenFile":
        return TokenFile(self.file, self.dtype, self.start + start, self.start + stop, self.origin)

    def with_own_hash(self) -> "TokenFile":
        """The same tokens, with a hash of these tokens only and not of the rest of the file."""
        return TokenFile(self.file, self.dtype, self.start, self.stop)

    @property
    def is_whole_origin(self) -> bool:
        """Whether the origin's hash covers these tokens and no others."""
        size = np.dtype(self.dtype).itemsize
        return (self.origin.start, self.origin.stop) == (self.start * size, self.stop * size)


class TokenFiles:
    """One sequence of tokens that is spread over several files, in their order."""

    def __init__(self, files: Sequence[TokenFile]) -> None:
        assert files
        self.files = list(files)
        self._starts = np.cumsum([0, *map(len, self.files)])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, where: slice | np.ndarray) -> np.ndarray:
        """Tokens in memory: those of a slice, or those at an array of positions."""
        if isinstance(where, slice):
            start, stop, step = where.indices(len(self))
            assert step == 1, "a slice of tokens has no stride"
            return np.concatenate([file[:] for file in self.span(start, stop).files])
        which = np.searchsorted(self._starts, where, side="right") - 1
        found = np.empty(np.shape(where), dtype=self.files[0].dtype)
        for number in np.unique(which):
            here = which == number
            found[here] = self.files[number][where[here] - self._starts[number]]
        return found

    def span(self, start: int, stop: int) -> "TokenFiles":
        """A part of this sequence."""
        inside = [
            file.span(max(0, start - first), min(len(file), max(0, start - first, stop - first)))
            for file, first in zip(self.files, self._starts.tolist())
            if first < stop and start < first + len(file)
        ]
        return TokenFiles(inside or [self.files[0].span(0, 0)])


Tokens = TokenFile | TokenFiles | np.ndarray
"""A sequence of tokens: on disk, or in memory if it is small."""


def open_text(path: str, *, field: str, separator: int, cache: Path | None = None) -> TokenFile:
    """The tokens of a local file: bytes, and `separator` between JSONL documents.

    An unpacked JSONL file is kept in the folder `cache` for the other ranks and later runs; by default that is this
    user's own folder in the temporary directory.
    """
    file = existing_file(path)
    dtype = "u1"
    if file.suffix.lower() in JSONL:
        file, dtype = _unpacked(file, field, separator, cache or _own_folder()), "u2"
    return TokenFile(file.resolve(), dtype, 0, file.stat().st_size // np.dtype(dtype).itemsize)


def fingerprint(tokens: Tokens) -> str:
    """SHA-256 of the tokens, in hexadecimal; for a plain text file, of the file."""
    if isinstance(tokens, TokenFile) and tokens.is_whole_origin:
        return tokens.origin.sha256()
    digest = hashlib.sha256()
    for start in range(0, len(tokens), _CHUNK):
        digest.update(tokens[start : start + _CHUNK].tobytes())
    return digest.hexdigest()


def origins(tokens: Tokens) -> list[DataFile | np.ndarray]:
    """Where tokens come from: files, or an array in memory."""
    if isinstance(tokens, TokenFiles):
        return [file.origin for file in tokens.files]
    return [tokens.origin] if isinstance(tokens, TokenFile) else [tokens]


def split(tokens: Tokens, validation_fraction: float) -> tuple[Tokens, Tokens]:
    """Two contiguous regions: the head for training, the tail for validation. No row is in both."""
    edge = len(tokens) - round(len(tokens) * validation_fraction)
    return part(tokens, 0, edge), part(tokens, edge, len(tokens))


def part(tokens: Tokens, start: int, stop: int) -> Tokens:
    """The tokens from `start` up to `stop`, or up to the end if that comes first; files stay on disk."""
    stop = min(stop, len(tokens))
    return tokens[start:stop] if isinstance(tokens, np.ndarray) else tokens.span(start, stop)


def existing_file(path: str, packed: Sequence[str] = PACKED) -> Path:
    """A file that a user named; refused if it cannot be read, as those that end with one of `packed`."""
    file = expand_home(path)
    if not file.exists():
        raise UserError(f"Give an existing file; {path} does not exist (from {Path.cwd()}).")
    if file.is_dir():
        inside = sorted(p.name for p in file.iterdir() if p.is_file())[:5]
        raise UserError(f"Name one file inside the folder {path}, such as {', '.join(inside) or 'a .txt file'}.")
    if file.suffix.lower() in packed:
        raise UserError(f"Unpack {path} into a plain text or JSONL file first; {file.suffix} files are not read.")
    if not os.access(file, os.R_OK):
        raise UserError(f"Allow this user to read {path}; its permissions do not.")
    if file.stat().st_size == 0:
        raise UserError(f"Give a file with text in it; {path} is empty.")
    return file


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"samestep-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UserError(f"Set TMPDIR to a folder of your own; {folder} belongs to another user or is a link.")
    return folder


def _unpacked(file: Path, field: str, separator: int, cache: Path) -> Path:
    stat = file.stat()
    key = f"{file.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{field}|{separator}"
    target = cache / f"{file.stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}.tokens"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        # Ranks may race here: each writes a complete file under its own name; the last rename wins, with equal content.
        part = cache / f"{target.name}.{secrets.token_hex(4)}.part"
        try:
            with part.open("xb") as out:
                _unpack(file, field, separator, out)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    return target


def _unpack(file: Path, field: str, separator: int, target: BinaryIO) -> None:
    empty = True
    for document in documents(file, field):
        if not empty:
            target.write(np.array(separator, dtype="u2").tobytes())
        target.write(np.frombuffer(document, dtype="u1").astype("u2").tobytes())
        empty = False
    if empty:
        raise UserError(f"Give a JSONL file with text in its field {field!r}; that of {file} is empty on every line.")


def documents(file: Path, field: str) -> Iterator[bytes]:
    """The texts of a JSONL file, in order, without empty ones."""
    for where, record in records(file):
        text = string(record, field, where)
        if text:
            yield text.encode("utf-8")


def records(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSONL file, each with its line and file, for messages."""
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"line {number} of {file}"
                yield where, _record(line, where)


def string(record: dict[str, Any], field: str, where: str) -> str:
    if field not in record:
        chat = "messages" in record or {"prompt", "answer"} <= record.keys()
        hint = ", or read chats with samestep data prepare" if chat else ""
        raise UserError(
            f"Set the field (data.field, or --field of samestep data prepare) to one of {', '.join(record) or '(none)'}"
            f"{hint}; {where} has no field {field!r}."
        )
    if not isinstance(record[field], str):
        raise UserError(f"Make the field {field!r} a string on {where}; it is {json.dumps(record[field])[:40]}.")
    try:
        record[field].encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"Fix the field {field!r} on {where}, which holds half of a surrogate pair.") from None
    return str(record[field])


def _record(line: bytes, where: str) -> dict[str, Any]:
    try:
        record = parse_json(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise UserError(f"Save the JSONL file as UTF-8; {where} is not.") from None
    except json.JSONDecodeError as problem:
        raise UserError(f"Fix {where}, which is not JSON: {problem.msg} at column {problem.colno}.") from None
    except ValueError as problem:
        raise UserError(f"Fix {where}, which is no record: {problem}.") from None
    if not isinstance(record, dict):
        raise UserError(f'Make {where} a JSON object such as {{"text": ...}}; it is something else.')
    return record
