"""Rows of text files: JSON lines, JSON, and tables with commas or tabs; packed or not."""

import bz2
import csv
import gzip
import json
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import IO, Any

from samestep.core.errors import UserError
from samestep.core.json_files import parse_json
from samestep.data.records.arrow import arrow_library
from samestep.data.records.rows import Problem, Row, Rows, repeated

JSONL = (".jsonl", ".ndjson")
_LONGEST_LINE = 64 << 20
_UNPACKED, _TIMES = 64 << 20, 200
"""What a packed file may hold: so much, and so many times its size. Text becomes about a fifth."""
_DAMAGED = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""What the libraries raise for packed files that are not whole."""


_KINDS = {
    b"PAR1": "a parquet file",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "packed with gzip",
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
}
"""What a file is that begins so."""


def _open_zstd(file: Path) -> IO[bytes]:
    pyarrow = arrow_library(f"Reading {file} needs")
    return BufferedReader(pyarrow.input_stream(str(file), compression="zstd"))


PACKINGS: dict[str, Callable[[Path], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": _open_zstd,
}
"""How a packed file is opened, by what its name ends with."""


def ending(file: Path) -> str:
    """What a file's name ends with; of a packed one, what it ends with when it is unpacked."""
    name = file.with_suffix("") if file.suffix.lower() in PACKINGS else file
    return name.suffix.lower()


def is_record_file(file: Path) -> bool:
    """Whether a file's name says that it holds records."""
    kind = ending(file)
    return kind in LINE_FORMATS or (kind == ".parquet" and file.suffix.lower() not in PACKINGS)


def _bounded(opened: IO[bytes], file: Path) -> Iterator[bytes]:
    """The lines of a file that is not made to fill the memory: with a line without an end, or with much in little."""
    size, most = 0, _UNPACKED + _TIMES * file.stat().st_size
    while line := opened.readline(_LONGEST_LINE + 1):
        size += len(line)
        if len(line) > _LONGEST_LINE:
            raise UserError(f"Split the rows of {file}: a line has more than {_LONGEST_LINE >> 20} MiB.")
        if size > most:
            raise UserError(
                f"Unpack {file} yourself if you trust it: it has more than {_TIMES} times as many bytes when it is "
                "unpacked."
            )
        yield line


def _refuse_other_kinds(file: Path) -> None:
    with file.open("rb") as opened:
        head = opened.read(4)
    if kind := next((kind for start, kind in _KINDS.items() if head.startswith(start)), None):
        raise UserError(f"Convert {file} to text in UTF-8, or correct its name: it is {kind}.")


def _lines(file: Path) -> Iterator[tuple[int, str] | Problem]:
    """The lines of a file with their numbers, of which some may not be UTF-8."""
    number, unpack = 0, PACKINGS.get(file.suffix.lower())
    if unpack is None:
        _refuse_other_kinds(file)
    try:
        with unpack(file) if unpack else file.open("rb") as opened:
            for line in (part for ended in _bounded(opened, file) for part in ended.splitlines(keepends=True)):
                number += 1
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as problem:
                    yield Problem(f"line {number}", f"it is not UTF-8 at byte {problem.start + 1}")
    except _DAMAGED as problem:
        if unpack is None:
            raise UserError(f"Give another file; {file} cannot be read after line {number}: {problem}.") from None
        raise UserError(f"Pack {file} again; it cannot be unpacked after line {number}.") from None


def _jsonl_rows(file: Path) -> Rows:
    for line in _lines(file):
        if isinstance(line, Problem):
            yield line
        elif line[1].strip():
            yield _json_row(f"line {line[0]}", line[1])


def _json_row(where: str, text: str) -> Row | Problem:
    try:
        return _row(where, parse_json(text.rstrip("\r\n"), unique_keys=True))
    except json.JSONDecodeError as error:
        return Problem(where, f"it is not JSON: {error.msg} at column {error.colno}")
    except ValueError as error:
        reason = "a number has too many digits" if "digits" in str(error) else str(error)
        return Problem(where, f"it cannot be read as JSON: {reason}")


def _row(where: str, value: Any) -> Row | Problem:
    if isinstance(value, dict):
        return Row(where, value)
    return Problem(where, 'it is no JSON object such as {"text": ...}')


def _json_rows(file: Path) -> Rows:
    """A list of records, a single record that may go over several lines, or one record a line."""
    lines = list(_lines(file))
    text = "".join(line[1] for line in lines if not isinstance(line, Problem))
    if unreadable := [line for line in lines if isinstance(line, Problem)]:
        yield from unreadable
        return
    try:
        found = parse_json(text, unique_keys=True)
    except ValueError as problem:
        if text.lstrip().startswith("["):
            raise UserError(f"Fix {file}, which is no JSON list: {problem}.") from None
        yield from _jsonl_rows(file)
        return
    values = found if isinstance(found, list) else [found]
    yield from (_row(f"record {number}", value) for number, value in enumerate(values, start=1))


def _table_rows(file: Path, delimiter: str) -> Rows:
    unreadable: list[Problem] = []

    def readable() -> Iterator[str]:
        for line in _lines(file):
            if isinstance(line, Problem):
                unreadable.append(line)
            elif not unreadable:  # a row may go over several lines, so one that is unreadable spoils what follows
                yield line[1]

    with _fields_of_any_length():
        yield from _split_rows(readable(), delimiter)
    yield from unreadable


def _split_rows(lines: Iterator[str], delimiter: str) -> Rows:
    reader = csv.reader(lines, strict=True, delimiter=delimiter)
    header: list[str] | None = None
    number, first_line = 0, 1
    try:
        for values in reader:
            line, first_line = first_line, reader.line_num + 1
            if not values:
                continue
            if header is None:
                header = values
                if twice := repeated([name for name in header if name]):
                    yield Problem("the header", f"it has {', '.join(map(repr, twice))} twice")
                    return
                continue
            number += 1
            where = f"row {number} (line {line})"
            if len(values) == len(header):
                # An empty cell is how a table says that there is no value.
                yield Row(where, {name: value or None for name, value in zip(header, values)}, is_cells=True)
            else:
                yield Problem(where, f"it has {len(values)} values for {len(header)} columns")
    except csv.Error as problem:
        yield Problem(f"row {number + 1} (line {first_line})", f"it cannot be read: {problem}")


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Python's limit of 128 KiB is less than a long story."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


LINE_FORMATS: dict[str, Callable[[Path], Rows]] = {
    **dict.fromkeys(JSONL, _jsonl_rows),
    ".json": _json_rows,
    ".csv": partial(_table_rows, delimiter=","),
    ".tsv": partial(_table_rows, delimiter="\t"),
}
"""How a file is read, by what its name ends with, packed or not."""
