"""Reading files of torch.save (`.pt`, `.bin`) that may come from anywhere."""

import zipfile
from pathlib import Path
from typing import Any

from samestep.core.errors import first_line


class UnreadableFile(Exception):
    """A file that is damaged, or that would run code."""


def read_pt(path: Path) -> Any:
    """The content of a file, memory-mapped if it can be, on the CPU. No code from it is run: torch's weights-only
    loader builds tensors and plain values, and refuses all else."""
    import torch

    try:
        is_mappable = zipfile.is_zipfile(path)  # files that torch.save wrote before 2020 are not
        if is_mappable:
            _require_plain(path)
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_mappable)
    except Exception as error:  # there is no error that hostile bytes cannot cause
        raise UnreadableFile(first_line(error)) from error


def _require_plain(path: Path) -> None:
    """Refuse compressed parts: torch would map them as they lie, and others become as large as they claim to be."""
    with zipfile.ZipFile(path) as file:
        parts = file.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise UnreadableFile("its parts are compressed, which torch.save does not do; unpack it and zip it with -0")
    if sum(part.file_size for part in parts) > path.stat().st_size:
        raise UnreadableFile("its parts overlap")


def is_weights(value: Any) -> bool:
    """Whether it is a dict of tensors by their names, and has any."""
    is_dict = isinstance(value, dict) and bool(value)
    return is_dict and all(isinstance(name, str) and is_plain_tensor(found) for name, found in value.items())


def is_plain_tensor(value: Any) -> bool:
    """Whether its values can be copied: a file may also hold tensors that are sparse, quantized or without values."""
    import torch

    is_tensor = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return is_tensor and value.device.type == "cpu" and not value.is_quantized and _is_stored_in_full(value)


def _is_stored_in_full(tensor: Any) -> bool:
    """Whether each of its numbers is in the file: one number can claim to be those of a huge tensor."""
    size: int = tensor.untyped_storage().nbytes()
    return int(tensor.numel()) * int(tensor.element_size()) <= size
