"""Reading DCP's metadata, which is a pickle, without running code that somebody may have put into it.

A pickle names the classes and functions that build it. Only the few that DCP's own metadata needs are allowed; at any
other name the reading stops before anything is called. What was built must fit the files of the checkpoint.
"""

import importlib
import io
import math
import pickle
from collections.abc import Mapping
from enum import EnumType
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)

from samestep.checkpoint.files import FileRecord
from samestep.core.errors import UserError, first_line

METADATA = ".metadata"
_DCP = "torch.distributed.checkpoint."
_ALLOWED = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    (f"{_DCP}filesystem", "_StorageInfo"),
    *(
        (f"{_DCP}metadata", name)
        for name in (
            "ChunkStorageMetadata",
            "Metadata",
            "MetadataIndex",
            "StorageMeta",
            "TensorProperties",
            "TensorStorageMetadata",
            "_MEM_FORMAT_ENCODING",
        )
    ),
}


class _Refused(pickle.UnpicklingError):
    """Something that DCP's metadata does not need, or that does not fit the checkpoint."""


class _Restricted:
    """An unpickler that builds DCP's metadata and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function that a pickle names, if it is allowed."""
        if (module, name) in _ALLOWED:
            return getattr(importlib.import_module(module), name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise _Refused(f"names {module}.{name}")


class _FastUnpickler(_Restricted, pickle.Unpickler):
    """For what this process has written itself: a few bytes can make it allocate 64 GB."""


class _BoundedUnpickler(_Restricted, pickle._Unpickler):
    """The same in Python: a third as fast, and takes memory only for what is there."""


def _enum_member(owner: Any, name: Any) -> Any:
    """Replaces `getattr`, by which Python 3.11.0 to 3.11.3 pickles a member of an enum: it returns only members of an
    enum, and only allowed enums can be named."""
    if not isinstance(owner, EnumType) or name not in owner.__members__:
        raise _Refused("names builtins.getattr")
    return owner[name]


def read_metadata(folder: Path, files: Mapping[str, FileRecord], *, own: bool = False) -> Metadata:
    """The metadata of the tensors in a checkpoint, all of which must be in `files`. `own`: written by this process."""
    path, unpickler = folder / METADATA, _FastUnpickler if own else _BoundedUnpickler
    try:
        metadata = unpickler(io.BytesIO(path.read_bytes())).load()
        _check(metadata, files)
    except OSError:
        raise
    except _Refused as error:
        raise _refusal(path, str(error)) from None
    except Exception as error:  # there is no error that hostile bytes cannot cause
        raise _refusal(path, f"cannot be read ({first_line(error)})") from None
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    return metadata


def _check(metadata: Any, files: Mapping[str, FileRecord]) -> None:
    """Refuse what the tensors in these files cannot be."""
    if not isinstance(metadata, Metadata):
        raise _Refused("does not describe tensors")
    room = sum(record.size for record in files.values())
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(name, str) or not isinstance(entry, TensorStorageMetadata):
            raise _Refused(f"describes {name!r} as something other than a tensor")
        size, dtype = entry.size, entry.properties.dtype
        if not isinstance(size, torch.Size) or not isinstance(dtype, torch.dtype):
            raise _Refused(f"gives {name!r} no shape or no type")
        if min(size, default=0) < 0 or math.prod(size) * dtype.itemsize > room:
            raise _Refused(f"describes {name!r} as larger than the checkpoint")
        if sum(_chunk_size(name, entry, chunk, metadata) for chunk in entry.chunks) != math.prod(size):
            raise _Refused(f"does not describe all of {name!r}")
    for index, stored in metadata.storage_data.items():
        where = stored.relative_path
        if where not in files or stored.transform_descriptors:
            raise _Refused(f"looks for {index.fqn!r} outside of the checkpoint, in {where!r}")
        if not 0 <= stored.offset <= stored.offset + stored.length <= files[where].size:
            raise _Refused(f"looks for {index.fqn!r} beyond the end of {where}")


def _chunk_size(name: str, entry: TensorStorageMetadata, chunk: ChunkStorageMetadata, metadata: Metadata) -> int:
    """How many numbers a chunk has, which must be a part of its tensor and be stored."""
    ends = [start + length for start, length in zip(chunk.offsets, chunk.sizes, strict=True)]
    is_part = all(0 <= start <= end <= size for start, end, size in zip(chunk.offsets, ends, entry.size, strict=True))
    if not is_part or MetadataIndex(name, chunk.offsets) not in metadata.storage_data:
        raise _Refused(f"describes a part of {name!r} that is not there")
    return math.prod(chunk.sizes)


def _refusal(path: Path, how: str) -> UserError:
    return UserError(f"{path} {how}, which samestep never writes, so it was not read; use a checkpoint you can trust")
