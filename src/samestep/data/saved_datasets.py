"""Datasets of Hugging Face in folders that `save_to_disk` wrote."""

from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.records import parse_json
from samestep.data.table_formats import TableRow, TableRows

_DATASET = "state.json"
_SPLITS = "dataset_dict.json"


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder has a dataset, or one with splits."""
    return any((folder / name).is_file() for name in (_DATASET, _SPLITS))


def dataset_rows(folder: Path) -> TableRows:
    """The rows of a dataset, or of its only split."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise UserError(f'Reading {folder} needs the library datasets: pip install "samestep[datasets]"') from None
    folder = _split(folder)
    try:
        dataset = load_from_disk(str(folder)).with_format(None)
    except Exception as problem:  # a damaged folder raises whatever the library stumbles over
        raise UserError(f"Save the dataset in {folder} again; it cannot be read: {problem!r}.") from None
    for number, values in enumerate(dataset, start=1):
        yield TableRow(number, f"row {number}", values)


def _split(folder: Path) -> Path:
    if not (folder / _SPLITS).is_file():
        return folder
    try:
        splits = parse_json((folder / _SPLITS).read_bytes())["splits"]
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"Save the dataset in {folder} again; its {_SPLITS} does not list its splits.") from None
    if len(splits) != 1:
        named = ", ".join(str(folder / split) for split in splits)
        raise UserError(f"Name one split of the dataset in {folder}: {named or 'it has none'}.")
    return folder / splits[0]
