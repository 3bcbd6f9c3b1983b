"""The format of an array artifact: a folder with one .npy file for each field, and what is in them.

artifacts/STAGE/NAME/
  arrays.json      the number of rows; of each field its shape, type and digest
  embedding.npy    [rows, *shape]; bfloat16 is stored as int16 of the same bits
  .steps.npy       the step that wrote each row, plus one

A digest is a hash of a file's size and content; of a file above 16 MiB, of 256 blocks that are spread evenly over it,
because artifacts may be huge. So a small damage in a large file may go unnoticed.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from samestep.core.errors import UserError
from samestep.core.json_files import Json, expected_content, find_object, read_object

LAYOUT = "arrays.json"
STEPS = ".steps.npy"
STEP_TYPE = np.dtype("uint32")
BLOCK, BLOCKS = 1 << 16, 256
"""Bytes of a block, and how many blocks of a large file are hashed."""
_TYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
_FIELD = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True)
class ArrayField:
    """One array: the shape of a row, and the type."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type of its tensors."""
        found = getattr(torch, self.dtype)
        assert isinstance(found, torch.dtype)
        return found

    @property
    def stored(self) -> np.dtype[Any]:
        """The type in the file; numpy has no bfloat16."""
        return np.dtype("int16" if self.dtype == "bfloat16" else self.dtype)

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.stored.itemsize


@dataclass(frozen=True)
class ArrayLayout:
    """What an array artifact holds."""

    rows: int
    fields: dict[str, ArrayField]

    @classmethod
    def make(cls, name: str, rows: int, fields: Mapping[str, tuple[Sequence[int], str]], proof: bool) -> "ArrayLayout":
        """Checked; in a run that computes in float64 for a `proof`, floating-point fields are stored in float64, or
        rounding to fewer bits would hide or magnify what is compared."""
        if rows < 1 or not fields:
            raise UserError(f"the array artifact {name!r} needs at least one row and one field")
        for field, (shape, dtype) in fields.items():
            if not _FIELD.fullmatch(field) or dtype not in _TYPES or any(size < 1 for size in shape):
                raise UserError(
                    f"field {field!r} of the array artifact {name!r} cannot have shape {tuple(shape)} and type "
                    f"{dtype!r}; a name is letters and digits, sizes are positive, types are {', '.join(_TYPES)}"
                )
        made = {field: ArrayField(tuple(shape), dtype) for field, (shape, dtype) in fields.items()}
        if proof:
            made = {
                field: ArrayField(found.shape, "float64") if found.torch_dtype.is_floating_point else found
                for field, found in made.items()
            }
        return cls(rows, made)

    @classmethod
    def read(cls, folder: Path) -> "ArrayLayout | None":
        """The layout of the artifact in `folder`; None when there is none."""
        path = folder / LAYOUT
        found = find_object(path)
        if found is None:
            return None
        with expected_content(path):
            fields = {name: ArrayField(tuple(each["shape"]), each["dtype"]) for name, each in found["fields"].items()}
            return cls(int(found["rows"]), fields)

    def to_json(self, digests: Mapping[str, str] | None = None) -> dict[str, Json]:
        """For arrays.json; without digests while the arrays are being written."""
        fields = {name: {"shape": list(each.shape), "dtype": each.dtype} for name, each in self.fields.items()}
        for name, digest in (digests or {}).items():
            fields[name]["digest"] = digest
        return {"rows": self.rows, "fields": fields}

    @property
    def bytes(self) -> int:
        """The size of all files, without their headers."""
        return self.rows * (sum(field.row_bytes for field in self.fields.values()) + STEP_TYPE.itemsize)


def create_arrays(folder: Path, layout: ArrayLayout) -> None:
    """Make the files at their full size, all zero; the disk gives room as rows are written."""
    for name, field in layout.fields.items():
        np.lib.format.open_memmap(
            array_path(folder, name), mode="w+", dtype=field.stored, shape=(layout.rows, *field.shape)
        )
    np.lib.format.open_memmap(folder / STEPS, mode="w+", dtype=STEP_TYPE, shape=(layout.rows,))


def array_path(folder: Path, field: str) -> Path:
    return folder / f"{field}.npy"


def digest_of(path: Path, moved: Callable[[], None] = lambda: None) -> str:
    """The digest of a file; `moved` is called regularly."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    whole = size <= BLOCK * BLOCKS
    count = -(-size // BLOCK) if whole else BLOCKS
    with open(path, "rb") as file:
        for number in range(count):
            file.seek(number * BLOCK if whole else number * (size - BLOCK) // (BLOCKS - 1))
            found.update(file.read(BLOCK))
            moved()
    return found.hexdigest()


def damage_of(folder: Path, moved: Callable[[], None] = lambda: None) -> str:
    """What is wrong with a finished artifact; empty when nothing is."""
    try:
        fields = dict(read_object(folder / LAYOUT)["fields"])
    except (ValueError, TypeError, KeyError):
        return f"{LAYOUT} cannot be read"
    for name, record in fields.items():
        path = array_path(folder, name)
        try:
            if digest_of(path, moved) != record.get("digest"):
                return f"{path.name} is not what was written"
        except OSError as error:
            return f"{path.name} cannot be read ({error.strerror})"
    return ""
