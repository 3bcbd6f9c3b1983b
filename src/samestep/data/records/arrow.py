"""Rows of Arrow: parquet files, and folders that `datasets.save_to_disk` wrote.

The library `datasets` would do more than read: it fetches an image whose row holds an address, takes files from
wherever `state.json` says, and makes whatever types and formats the folder names. Here the names of files in the folder
are all that is taken from its JSON.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError, first_line
from samestep.core.json_files import read_object_if_readable
from samestep.data.records.rows import Problem, Row, Rows, repeated

_ROWS = 1024
"""Rows that become Python objects at a time."""
_DATASET = "state.json"
_SPLITS = "dataset_dict.json"
_BITS = 8


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


def parquet_rows(file: Path) -> Rows:
    """The rows of a parquet file."""
    pyarrow = arrow_library("Parquet files need")
    from pyarrow.parquet import ParquetFile

    number = 0
    try:
        with ParquetFile(file) as opened:
            for batch in opened.iter_batches(batch_size=_ROWS):
                yield from _batch_rows(_without_categories(batch), number)
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


def _batch_rows(batch: Any, before: int) -> Rows:
    """The rows of a batch, of which `before` came earlier.

    Values become Python objects as they are stored: nothing that a column's type may say about decoding them is done.
    """
    if twice := repeated(batch.schema.names):
        yield Problem(f"row {before + 1}", f"there are two columns {', '.join(map(repr, twice))}")
        return
    columns = dict(zip(batch.schema.names, batch.columns))
    plain = {name: column for name, column in columns.items() if _is_plain(column.type)}
    others = {name: Unread(str(column.type)) for name, column in columns.items() if name not in plain}
    damaged = [problem for name, column in plain.items() if (problem := _damage(name, column, before))]
    yield from damaged
    if not damaged:
        values = {name: column.to_pylist() for name, column in plain.items()}
        for index in range(batch.num_rows):
            row = {name: values[name][index] if name in values else others[name] for name in columns}
            yield Row(f"row {before + index + 1}", row)


def _is_plain(kind: Any) -> bool:
    """Whether a type is text, numbers, or lists and structures of them, each value being stored for itself."""
    import pyarrow.types as types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _is_plain(kind.value_type)
    if types.is_struct(kind):
        return all(_is_plain(field.type) for field in kind)
    known = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return types.is_null(kind) or any(is_known(kind) for is_known in known)


def _damage(name: str, column: Any, before: int) -> Problem | None:
    """What is wrong with the bytes of a column, at the first row where it is; Arrow itself would trust them."""
    reason = _fault(column)
    if not reason:
        return None
    wrong = next((row for row in range(len(column)) if _fault(column.slice(row, 1))), 0)
    return Problem(f"row {before + wrong + 1}", f"{name!r} is damaged ({reason})")


def _fault(column: Any) -> str:
    from pyarrow import ArrowException

    try:
        column.validate(full=True)
    except ArrowException as problem:
        return first_line(problem).rstrip(".")
    return ""


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder has a dataset, or one with splits."""
    return any((folder / name).is_file() for name in (_DATASET, _SPLITS))


def dataset_files(folder: Path) -> list[Path]:
    """The files with the rows of a dataset, or of its only split, in their order."""
    folder = _split(folder)
    entries = _listed(folder, _DATASET, "_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries or [None]]
    if not all(map(_is_name, names)):
        raise _save_again(folder, f"its {_DATASET} does not name files in it")
    files = [folder / str(name) for name in names]
    missing = next((file.name for file in files if not file.is_file()), None)  # opening a pipe would wait forever
    if missing is not None:
        raise _save_again(folder, f"{missing} is no file")
    return files


def dataset_rows(files: Sequence[Path]) -> Rows:
    """The rows of a dataset in its files, numbered through all of them."""
    arrow_library(f"Reading {files[0].parent} needs")
    number = 0
    for file in files:
        number = yield from _file_rows(file, number)


def _file_rows(file: Path, number: int) -> Generator[Row | Problem, None, int]:
    """The rows of a file; returns their number and `number`, how many came before."""
    from pyarrow import ipc, memory_map

    try:
        with memory_map(str(file)) as opened, ipc.open_stream(opened) as batches:
            for batch in batches:
                _check_size(file, batch)
                for start in range(0, batch.num_rows, _ROWS):
                    part = batch.slice(start, _ROWS)
                    yield from _batch_rows(part, number)
                    number += part.num_rows
    except UserError:
        raise
    except Exception as problem:  # of Arrow, or of a library that reads types of its own out of the file
        reason = first_line(problem).rstrip(".")
        raise _save_again(file.parent, f"{file.name} cannot be read after row {number}: {reason}") from None
    return number


def _check_size(file: Path, batch: Any) -> None:
    """Refuse a file with more values than bits: empty values take no space, so a few bytes could fill the memory."""
    most = _BITS * file.stat().st_size
    if batch.num_rows > most or any(_values(column) > most for column in batch.columns if _is_plain(column.type)):
        raise _save_again(file.parent, f"{file.name} claims more values than it has")


def _values(column: Any) -> int:
    """How many values a column has, those inside of lists and structures included."""
    from pyarrow.types import is_struct

    if is_struct(column.type):
        return len(column) + sum(map(_values, column.flatten()))
    return len(column) + (_values(column.values) if hasattr(column.type, "value_type") else 0)


def _split(folder: Path) -> Path:
    if not (folder / _SPLITS).is_file():
        return folder
    splits = _listed(folder, _SPLITS, "splits")
    if splits is None or not all(map(_is_name, splits)):
        raise _save_again(folder, f"its {_SPLITS} does not list its splits")
    if len(splits) != 1:
        named = ", ".join(str(folder / split) for split in splits)
        raise UserError(f"Name one split of the dataset in {folder}: {named or 'it has none'}.")
    return folder / splits[0]


def _listed(folder: Path, file: str, key: str) -> Sequence[Any] | None:
    """A list in one of the folder's JSON files; None if there is none."""
    found = read_object_if_readable(folder / file).get(key)
    return found if isinstance(found, list) else None


def _is_name(name: Any) -> bool:
    """Whether this names something in a folder, and not elsewhere."""
    return isinstance(name, str) and name not in ("", ".", "..") and not {"/", "\\", "\0"} & set(name)


def _save_again(folder: Path, why: str) -> UserError:
    return UserError(f"Save the dataset in {folder} again; {why}.")
