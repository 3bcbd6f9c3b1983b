"""How the rows of a table are written in each kind of file."""

import csv
import gzip
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from samestep.core.errors import UserError, first_line
from samestep.data.json_records import BadJson, json_records
from samestep.data.text import JSONL

GZIP = ".gz"
_LONGEST_LINE = 64 << 20
_UNPACKED, _TIMES = 64 << 20, 200
"""What a packed file may hold: so much, and so many times its size. Text becomes about a fifth."""
LINES = (".csv", ".tsv", *JSONL)
"""Kinds that are read line by line, and may be packed."""
ARROW_ROWS = 1024
"""Rows of Arrow that become Python objects at a time."""


@dataclass(frozen=True)
class TableRow:
    """A row, and where it is."""

    line: int
    """The line that it begins on, or its number where there are no lines."""
    where: str
    values: dict[str, Any]


@dataclass(frozen=True)
class RowProblem:
    """Why a row cannot be read, and where it is."""

    line: int
    text: str


TableRows = Generator[TableRow | RowProblem, None, None]
Format = Callable[[Path], TableRows]


def inner_suffix(file: Path) -> str:
    """What a file's name ends with; of a packed one, what it is when unpacked."""
    suffixes = [suffix.lower() for suffix in file.suffixes[-2:]]
    if len(suffixes) == 2 and suffixes[-1] == GZIP and suffixes[0] in LINES:
        return suffixes[0]
    return suffixes[-1] if suffixes else ""


def _bounded(opened: IO[bytes] | gzip.GzipFile, file: Path) -> Iterator[bytes]:
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


def _lines(file: Path) -> Iterator[tuple[int, str] | RowProblem]:
    """The lines of a file with their numbers, of which some may not be UTF-8."""
    number = 0
    try:
        with gzip.open(file) if file.suffix.lower() == GZIP else file.open("rb") as opened:
            for line in (part for ended in _bounded(opened, file) for part in ended.splitlines(keepends=True)):
                number += 1
                try:
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError as problem:
                    yield RowProblem(number, f"line {number}: not UTF-8 at byte {problem.start + 1}")
    except (gzip.BadGzipFile, zlib.error, EOFError):
        raise UserError(f"Pack {file} again, with gzip; it cannot be unpacked after line {number}.") from None


def _jsonl_rows(file: Path) -> TableRows:
    for line in _lines(file):
        if isinstance(line, RowProblem):
            yield line
        elif line[1].strip():
            yield _json_row(*line)


def _json_row(number: int, line: str) -> TableRow | RowProblem:
    where = f"line {number}"
    try:
        value = _DECODER.decode(line.rstrip("\r\n"))
    except json.JSONDecodeError as error:
        return RowProblem(number, f"{where}: not JSON, {error.msg} at column {error.colno}")
    except _RepeatedKey as error:
        return RowProblem(number, f"{where}: the key {error} comes twice")
    except (ValueError, RecursionError):
        return RowProblem(
            number, f"{where}: not JSON that can be read: a number is too long, or it is nested too deeply"
        )
    if not isinstance(value, dict):
        return RowProblem(number, f"{where}: not a JSON object")
    return TableRow(number, where, value)


class _RepeatedKey(Exception):
    pass


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are different; json would keep the last one in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKey(repr(_repeated([key for key, _ in pairs])[0]))
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeats)


def _json_list_rows(file: Path) -> TableRows:
    for number, (where, value) in enumerate(json_records(file), start=1):
        if isinstance(value, dict):
            yield TableRow(number, where, value)
        else:
            reason = value.reason if isinstance(value, BadJson) else "not a JSON object"
            yield RowProblem(number, f"{where}: {reason}")


def _csv_rows(file: Path, delimiter: str) -> TableRows:
    lines = list(_lines(file))
    unreadable = [line for line in lines if isinstance(line, RowProblem)]
    yield from unreadable
    if not unreadable:  # a row may go over several lines, so one that is unreadable spoils what follows
        with _fields_of_any_length():
            yield from _split_rows([line[1] for line in lines if not isinstance(line, RowProblem)], delimiter)


def _split_rows(lines: Sequence[str], delimiter: str) -> TableRows:
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
                if repeated := _repeated([name for name in header if name]):
                    yield RowProblem(line, f"the header has {', '.join(map(repr, repeated))} twice")
                    return
                continue
            number += 1
            where = f"row {number} (line {line})"
            if len(values) == len(header):
                yield TableRow(line, where, dict(zip(header, values)))
            else:
                yield RowProblem(line, f"{where}: {len(values)} values for {len(header)} columns")
    except csv.Error as problem:
        yield RowProblem(first_line, f"row {number + 1} (line {first_line}): {problem}")


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, times in Counter(names).items() if times > 1]


@contextmanager
def _fields_of_any_length() -> Iterator[None]:
    """Python's limit of 128 KiB is less than a long story."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _parquet_rows(file: Path) -> TableRows:
    pyarrow = arrow_library("Parquet files need")
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=ARROW_ROWS):
                yield from arrow_rows(_without_categories(batch), number)
                number += batch.num_rows
    except (pyarrow.ArrowException, OSError, ValueError) as problem:
        reason = first_line(problem).rstrip(".")
        raise UserError(f"Give another parquet file; {file} cannot be read after row {number}: {reason}.") from None


def _without_categories(batch: Any) -> Any:
    """The same batch with each value in its row, where pandas stored a column as numbers of categories."""
    from pyarrow import RecordBatch
    from pyarrow.types import is_dictionary

    columns = [column.dictionary_decode() if is_dictionary(column.type) else column for column in batch.columns]
    return RecordBatch.from_arrays(columns, names=batch.schema.names)


def arrow_library(need: str) -> Any:
    """The library pyarrow; `need` begins the sentence that is said without it."""
    try:
        import pyarrow
    except ImportError:
        raise UserError(f'{need} the library pyarrow: pip install "samestep[datasets]"') from None
    return pyarrow


@dataclass(frozen=True)
class Unread:
    """In the place of a value that is neither a text nor a number, such as an image: its type, and nothing of it."""

    type: str

    def __str__(self) -> str:
        return self.type


def arrow_rows(batch: Any, before: int) -> Iterator[TableRow | RowProblem]:
    """The rows of a batch of Arrow, of which `before` came earlier.

    Values become Python objects as they are stored: nothing that a column's type may say about decoding them is done.
    """
    if repeated := _repeated(batch.schema.names):
        yield RowProblem(before + 1, f"row {before + 1}: there are two columns {', '.join(map(repr, repeated))}")
        return
    columns = dict(zip(batch.schema.names, batch.columns))
    plain = {name: column for name, column in columns.items() if is_plain(column.type)}
    others = {name: Unread(str(column.type)) for name, column in columns.items() if name not in plain}
    damaged = [problem for name, column in plain.items() if (problem := _damage(name, column, before))]
    yield from damaged
    if not damaged:
        values = {name: column.to_pylist() for name, column in plain.items()}
        for index in range(batch.num_rows):
            number = before + index + 1
            row = {name: values[name][index] if name in values else others[name] for name in columns}
            yield TableRow(number, f"row {number}", row)


def is_plain(kind: Any) -> bool:
    """Whether a type of Arrow is text, numbers or lists of them, each value being stored for itself."""
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return is_plain(kind.value_type)
    known = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return types.is_null(kind) or any(is_known(kind) for is_known in known)


def _damage(name: str, column: Any, before: int) -> RowProblem | None:
    """What is wrong with the bytes of a column, at the first row where it is; Arrow itself would trust them."""
    reason = _fault(column)
    if not reason:
        return None
    wrong = next((row for row in range(len(column)) if _fault(column.slice(row, 1))), 0)
    number = before + wrong + 1
    return RowProblem(number, f"row {number}: {name!r} is damaged ({reason})")


def _fault(column: Any) -> str:
    from pyarrow import ArrowException

    try:
        column.validate(full=True)
    except ArrowException as problem:
        return first_line(problem).rstrip(".")
    return ""


FORMATS: dict[str, Format] = {
    ".csv": partial(_csv_rows, delimiter=","),
    ".tsv": partial(_csv_rows, delimiter="\t"),
    ".json": _json_list_rows,
    ".parquet": _parquet_rows,
    **dict.fromkeys(JSONL, _jsonl_rows),
}
"""How a file is read, by what its name ends with."""
