"""Local text as one long sequence of byte tokens, memory-mapped so that memory does not grow with the file.

A plain file is its own token file: it is mapped, never read into memory. Records are unpacked once, document by
document, into files of 16-bit tokens, which are then mapped in the same way.
"""

import hashlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import chain
from pathlib import Path

import numpy as np

from samestep.core.errors import UserError
from samestep.data.data_file import DataFile, existing_file
from samestep.data.records.reading import Records
from samestep.data.records.rows import Row
from samestep.data.split import TEST, TRAIN, VALIDATION, choose_parts

PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".7z", ".arrow", ".npy", ".npz")
UNPACKED = ".tokens"
"""What the names of the files end with that records are unpacked into."""
_CHUNK = 1 << 22


class TokenFile:
    """A span of tokens in a file, memory-mapped; pickled by name, so a worker process gets no copy of it."""

    def __init__(self, file: Path, dtype: str, start: int, stop: int, origin: DataFile | None = None) -> None:
        """`origin` is the part of the file that is hashed, which its spans share; by default the bytes of this span."""
        self.file, self.dtype, self.start, self.stop = file, dtype, start, stop
        size = np.dtype(dtype).itemsize
        self.origin = origin or DataFile(file, start * size, stop * size)
        empty = stop == start  # an empty file cannot be mapped
        self._tokens = np.empty(0, dtype) if empty else np.memmap(file, dtype=dtype, mode="r")[start:stop]

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


def open_text(path: str) -> TokenFile:
    """The bytes of a plain text file."""
    file = plain_file(path)
    return TokenFile(file.resolve(), "u1", 0, file.stat().st_size)


def plain_file(path: str) -> Path:
    """A file of plain text that a user named; refused if its name says that it is something else."""
    file = existing_file(path)
    if file.suffix.lower() in PACKED:
        raise UserError(f"Unpack {path} into a plain text file first; {file.suffix} files are not read as text.")
    return file


def open_documents(
    records: Records,
    *,
    separator: int,
    validation_fraction: float,
    test_fraction: float = 0.0,
    skip_invalid: bool,
    cache: Path | None = None,
) -> list[list[TokenFile]]:
    """By path, the texts of records for training, for validation and for a test (empty unless it has a share): their
    bytes, and `separator` between documents. Documents of all paths are split together.

    Files are kept in the folder `cache` for the other ranks and later runs; by default that is this user's own folder
    in the temporary directory.
    """
    cache = cache or _own_folder()
    stats = [file.stat() for file in records.files]
    # A file's ctime changes with its content, even if someone sets its mtime back.
    version = [(str(f.resolve()), s.st_ino, s.st_size, s.st_ctime_ns) for f, s in zip(records.files, stats)]
    shares = (validation_fraction, test_fraction) if test_fraction else (validation_fraction,)
    sources = [] if len(records.paths) == 1 else [len(files) for files in records.found_files]
    key = repr((version, sorted(records.renamed.items()), separator, *shares, skip_invalid, *sources))
    name = f"{records.files[0].stem}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    parts = ("train", "validation", "test")[: 1 + len(shares)]
    names = [f"{name}.{number}" for number in range(len(sources))] or [name]
    targets = [[cache / f"{each}.{part}{UNPACKED}" for part in parts] for each in names]
    if not all(target.exists() for each in targets for target in each):
        cache.mkdir(parents=True, exist_ok=True)
        _unpack(records, separator, shares, skip_invalid, targets)
    found = [[_token_file(target) for target in each] for each in targets]
    if not any(len(files[1]) for files in found):
        regions = (_regions(len(files[0]), validation_fraction, test_fraction) for files in found)
        return [[files[0].span(*edges) for edges in each] for files, each in zip(found, regions)]
    return [[*files, *([] if test_fraction else [files[0].span(0, 0)])] for files in found]


def _token_file(path: Path) -> TokenFile:
    return TokenFile(path.resolve(), "u2", 0, path.stat().st_size // 2)


def _unpack(
    records: Records,
    separator: int,
    shares: Sequence[float],
    skip_invalid: bool,
    targets: Sequence[Sequence[Path]],
) -> None:
    """Write the files, by path one for each part; all into the first where there are too few documents to keep a whole
    one for validation.

    Ranks may race here: each writes complete files under its own names; the last rename wins, with equal content.
    """
    digests = [document_digest(text) for text in documents(records, skip_invalid)]
    is_whole = len(digests) * shares[0] >= 1
    validation, test = (*shares, 0.0)[:2]
    part_of = choose_parts(digests, validation, test, seed=0) if is_whole else np.full(len(digests), TRAIN)
    end = np.array(separator, dtype="u2").tobytes()
    own = [[target.with_name(f"{target.name}.{secrets.token_hex(4)}.part") for target in each] for each in targets]
    try:
        with ExitStack() as stack:
            files = [
                {part: stack.enter_context(path.open("xb")) for part, path in zip((TRAIN, VALIDATION, TEST), each)}
                for each in own
            ]
            for part, (source, text) in zip(part_of.tolist(), documents_by_path(records, skip_invalid), strict=True):
                file = files[source][part]
                file.write(end if file.tell() else b"")
                file.write(np.frombuffer(text.encode("utf-8"), dtype="u1").astype("u2").tobytes())
        for path, target in zip(chain(*own), chain(*targets)):
            path.replace(target)
    finally:
        for path in chain(*own):
            path.unlink(missing_ok=True)


def documents(records: Records, skip_invalid: bool = False, column: str = "text") -> Iterator[str]:
    """The texts of records, in order, without empty ones; what is wrong with any of them is said at the end."""
    return (text for _, text in documents_by_path(records, skip_invalid, column))


def documents_by_path(records: Records, skip_invalid: bool, column: str = "text") -> Iterator[tuple[int, str]]:
    """The same, each with the number of its path."""
    records.expect([column])
    empty = True
    for row in records:
        if _is_empty(row, column):
            continue
        found = records.texts(row, [column])
        if found is not None:
            empty = False
            yield row.source, found[column]
    records.check(skip_invalid)
    if empty:
        raise UserError(f"Give records with text in the column {column!r}; it is empty in all of {records.path}.")


def _is_empty(row: Row, column: str) -> bool:
    """Whether a row has this column with nothing in it, which in a table is an empty cell."""
    value = row.values.get(column)
    if isinstance(value, str):
        return not value.strip()
    return value is None and row.is_cells and column in row.values


def document_digest(text: str) -> int:
    """A number that is the same for equal texts."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


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


def split(tokens: Tokens, validation: float, test: float = 0.0) -> list[Tokens]:
    """Three contiguous regions, of which no row is in two: the head for training, the tail for validation, and what is
    before the tail for a test, so that validation is the same with and without a test."""
    return [part(tokens, *edges) for edges in _regions(len(tokens), validation, test)]


def _regions(size: int, validation: float, test: float) -> list[tuple[int, int]]:
    tail = size - round(size * validation)
    head = max(0, tail - round(size * test))
    return [(0, head), (tail, size), (head, tail)]


def part(tokens: Tokens, start: int, stop: int) -> Tokens:
    """The tokens from `start` up to `stop`, or up to the end if that comes first; files stay on disk."""
    stop = min(stop, len(tokens))
    return tokens[start:stop] if isinstance(tokens, np.ndarray) else tokens.span(start, stop)


def _own_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"samestep-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UserError(f"Set TMPDIR to a folder of your own; {folder} belongs to another user or is a link.")
    return folder
