"""Reading DCP's metadata, which is a pickle, without running code that somebody may have put into it.

A pickle names the classes and functions that build it. Only the few that DCP's own metadata needs are allowed; at any
other name the reading stops before anything is called.
"""

import io
import pickle
from collections.abc import Collection
from enum import EnumType
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata

from samestep.core.errors import UserError

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
    """A name that DCP's metadata does not need."""


class _RestrictedUnpickler(pickle.Unpickler):
    """Builds DCP's metadata and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function that a pickle names, if it is allowed."""
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise _Refused(f"{module}.{name}")


def _enum_member(owner: Any, name: Any) -> Any:
    """Replaces `getattr`, by which Python 3.11.0 to 3.11.3 pickles a member of an enum: it returns only members of an
    enum, and only allowed enums can be named."""
    if not isinstance(owner, EnumType) or name not in owner.__members__:
        raise _Refused("builtins.getattr")
    return owner[name]


def read_metadata(folder: Path, files: Collection[str]) -> Metadata:
    """The metadata of the tensors in a checkpoint, all of which must be in `files`."""
    path = folder / METADATA
    try:
        metadata = _RestrictedUnpickler(io.BytesIO(path.read_bytes())).load()
    except _Refused as error:
        raise _refusal(path, f"names {error}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise _refusal(path, f"cannot be read ({error})") from None
    if not isinstance(metadata, Metadata):
        raise _refusal(path, "does not describe tensors")
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise _refusal(path, f"describes {name!r} as something other than a tensor")
    for index, stored in metadata.storage_data.items():
        if stored.relative_path not in files or stored.transform_descriptors:
            raise _refusal(path, f"looks for {index.fqn!r} outside of the checkpoint, in {stored.relative_path!r}")
    return metadata


def _refusal(path: Path, how: str) -> UserError:
    return UserError(f"{path} {how}, which samestep never writes, so it was not read; use a checkpoint you can trust")
