"""Safetensors, in one file or in several with an index: read tensor by tensor, written file by file.

The files are mapped, not read: all processes of a machine share one copy in the page cache.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samestep.checkpoint.files import write_file
from samestep.checkpoint.weight_sources import Slices, WeightSource, copy_into
from samestep.core.errors import UserError
from samestep.core.json_files import parse_json, sync_folder
from samestep.core.safe_files import open_new, temporary_folder

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


class SafetensorsFiles:
    """The weights of a file, or of a folder with one file or one index."""

    def __init__(self, path: Path) -> None:
        self.layout: dict[str, Tensor] = {}
        self._files: dict[str, Path] = {}
        for file, expected in _files_of(path).items():
            with _open(file) as content:
                for name in content.keys():  # noqa: SIM118 (not a dict)
                    self._add(name, file, content)
                absent = sorted(expected - set(content.keys()))
            if absent:
                raise UserError(f"{file} lacks {first_few(absent)}, which the index puts there; fetch or copy it again")

    def _add(self, name: str, file: Path, content: Any) -> None:
        if name in self._files:
            raise UserError(f"{name} is both in {self._files[name]} and in {file.name}; keep one of these files")
        self._files[name] = file
        self.layout[name] = torch.empty_like(content.get_tensor(name), device="meta")

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy them from the files. Each is mapped again, so that what was read no longer counts as used memory."""
        for name, target in targets.items():
            with _open(self._files[name]) as content:

                def read(part: Slices | None) -> Tensor:
                    found = content.get_tensor(name) if part is None else content.get_slice(name)[part]  # noqa: B023
                    assert isinstance(found, Tensor)
                    return found

                copy_into(target, read)


def write_safetensors(
    folder: Path, source: WeightSource, names: Sequence[str], dtype: torch.dtype, limit: int
) -> list[Path]:
    """Write the named weights in one type, in files of at most `limit` bytes each, with an index where there are more.

    Only the weights of one file are in memory at a time. A weight that is larger than `limit` has a file of its own.
    """
    sizes = {name: source.layout[name].numel() * dtype.itemsize for name in names}
    parts = _split_by_limit(sizes, limit)
    files = {_file_name(number, len(parts)): part for number, part in enumerate(parts)}
    for file, part in files.items():
        weights = {name: torch.empty(source.layout[name].shape, dtype=dtype) for name in part}
        source.fill(weights)
        save_safetensors(folder / file, weights)
        del weights  # before the next ones are made
    if len(files) > 1:
        where = {name: file for file, part in files.items() for name in part}
        index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where}
        write_file(folder / INDEX, (json.dumps(index, indent=2) + "\n").encode())
    return [folder / file for file in files]


def write_safetensors_file(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write weights to one file, each in its own type, atomically."""
    with temporary_folder(path) as folder:
        save_safetensors(folder / path.name, {name: weight.contiguous() for name, weight in weights.items()})
        os.replace(folder / path.name, path)
    sync_folder(path.parent)


def _split_by_limit(sizes: Mapping[str, int], limit: int) -> list[list[str]]:
    """The names in order, in lists of at most `limit` bytes, or of one name."""
    parts: list[list[str]] = [[]]
    room = limit
    for name, size in sizes.items():
        if size > room and parts[-1]:
            parts.append([])
            room = limit
        parts[-1].append(name)
        room -= size
    return parts


def _file_name(number: int, total: int) -> str:
    return SINGLE if total == 1 else f"model-{number + 1:05d}-of-{total:05d}.safetensors"


def save_safetensors(path: Path, weights: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write weights, none of which share memory, to one file. Raises OSError if that is not possible."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with open_new(path) as file:
        mode = os.fstat(file.fileno()).st_mode
    try:
        save_file(dict(weights), path, metadata={"format": "pt", **(metadata or {})})
    except SafetensorError as error:  # raised for a full disk, too
        raise OSError(str(error)) from error
    path.chmod(mode & 0o777)  # the library makes it readable by its owner only
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def read_safetensors_metadata(file: Path) -> dict[str, str]:
    with _open(file) as content:
        return dict(content.metadata() or {})


@contextmanager
def _open(file: Path) -> Iterator[Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as content:
            yield content
    except (SafetensorError, OSError) as error:
        raise UserError(f"{file} cannot be read ({error}); fetch or copy it again") from error


def _files_of(path: Path) -> dict[Path, set[str]]:
    """The files to read, each with the weights it must hold: `path`, those in a folder's index, or its only file."""
    if path.is_file():
        return {path: set()}
    indices = sorted(path.glob("*.safetensors.index.json"))
    if len(indices) == 1:
        files = _read_index(indices[0])
        absent = [file.name for file in files if not file.is_file()]
        if absent:
            raise UserError(f"{path} lacks {first_few(absent)}, which {indices[0].name} names; fetch the missing files")
        return files
    found = sorted(path.glob("*.safetensors"))
    if len(indices) > 1 or len(found) != 1:
        raise UserError(
            f"{path} has {len(found)} safetensors files and {len(indices)} index files; give the path of the one file, "
            "or of a folder with one file or one index"
        )
    return {found[0]: set()}


def _read_index(index: Path) -> dict[Path, set[str]]:
    """The files that an index names, and the weights it lists for each; only files of its own folder are read."""
    try:
        where = parse_json(index.read_bytes())["weight_map"]
        files: dict[Path, set[str]] = {index.parent / Path(name).name: set() for name in sorted(set(where.values()))}
        for name, file in where.items():
            files[index.parent / Path(file).name].add(name)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{index} is not an index of safetensors files; fetch or copy it again") from None
    return files


def first_few(names: Sequence[str]) -> str:
    """The first names, for a message."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
