"""Reading DCP's metadata, which is a pickle, without running what somebody may have put into it.

A pickle names the classes and functions that build it. Only the handful that DCP's own metadata needs are admitted; any
other name ends the reading before anything is called.
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
_ADMITTED = {
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
    """A name that DCP's metadata has no use for."""


class _RestrictedUnpickler(pickle.Unpickler):
    """Builds DCP's metadata and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The thing a pickle names, if it is one of the few admitted."""
        if (module, name) in _ADMITTED:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        raise _Refused(f"{module}.{name}")


def _enum_member(owner: Any, name: Any) -> Any:
    """What stands for `getattr`, by which Python 3.11.0 to 3.11.3 pickles a member of an enum: of anything but an enum
    (only admitted ones can be named) it gets nothing, and of an enum only its members."""
    if not isinstance(owner, EnumType) or name not in owner.__members__:
        raise _Refused("builtins.getattr")
    return owner[name]


def read_metadata(folder: Path, files: Collection[str]) -> Metadata:
    """The metadata of the tensors in a checkpoint, all of which must lie in `files`."""
    path = folder / METADATA
    try:
        metadata = _RestrictedUnpickler(io.BytesIO(path.read_bytes())).load()
    except _Refused as error:
        raise _not_ours(path, f"names {error}") from None
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise _not_ours(path, f"cannot be read ({error})") from None
    if not isinstance(metadata, Metadata):
        raise _not_ours(path, "does not describe tensors")
    if metadata.storage_meta is None:
        metadata.storage_meta = StorageMeta()
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise _not_ours(path, f"describes {name!r} as something else than a tensor")
    for index, place in metadata.storage_data.items():
        if place.relative_path not in files or place.transform_descriptors:
            raise _not_ours(path, f"looks for {index.fqn!r} outside of the checkpoint, in {place.relative_path!r}")
    return metadata


def _not_ours(path: Path, how: str) -> UserError:
    return UserError(f"{path} {how}, which samestep never writes, so it was not read; use a checkpoint you can trust")
