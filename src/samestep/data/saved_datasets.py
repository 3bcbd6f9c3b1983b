"""Datasets of Hugging Face in folders that `save_to_disk` wrote, read as the Arrow files that they are.

The library `datasets` would do more than read: it fetches an image whose row holds an address, takes files from
wherever `state.json` says, and makes whatever types and formats the folder names. Here the names of files in the folder
are all that is taken from its JSON.
"""

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError, first_line
from samestep.core.records import read_object_if_readable
from samestep.data.table_formats import ARROW_ROWS, RowProblem, TableRow, TableRows, arrow_library, arrow_rows, is_plain

_DATASET = "state.json"
_SPLITS = "dataset_dict.json"
_BITS = 8


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


def dataset_rows(folder: Path) -> TableRows:
    """The rows of a dataset, or of its only split."""
    arrow_library(f"Reading {folder} needs")
    number = 0
    for file in dataset_files(folder):
        number = yield from _file_rows(file, number)


def _file_rows(file: Path, number: int) -> Generator[TableRow | RowProblem, None, int]:
    """The rows of a file; returns their number and `number`, how many came before."""
    from pyarrow import ipc, memory_map

    try:
        with memory_map(str(file)) as opened, ipc.open_stream(opened) as batches:
            for batch in batches:
                _check_size(file, batch)
                for start in range(0, batch.num_rows, ARROW_ROWS):
                    part = batch.slice(start, ARROW_ROWS)
                    yield from arrow_rows(part, number)
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
    if batch.num_rows > most or any(_values(column) > most for column in batch.columns if is_plain(column.type)):
        raise _save_again(file.parent, f"{file.name} claims more values than it has")


def _values(column: Any) -> int:
    """How many values a column has, those inside of lists included."""
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
