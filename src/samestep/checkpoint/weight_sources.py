"""Weights on disk that are read into existing tensors, one after the other: never a second copy of a whole model.

For a sharded tensor only this rank's shard is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from samestep.checkpoint.loading import verified_manifest
from samestep.checkpoint.manifest import read_manifest
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.state import join_keys, unescape_key
from samestep.checkpoint.tensors import fill_tensors
from samestep.core.errors import UserError

Slices = tuple[slice, ...]
"""A part of a tensor: one slice for each dimension."""


class WeightSource(Protocol):
    """Weights that can be read by name."""

    @property
    def layout(self) -> Mapping[str, Tensor]:
        """A tensor of each weight's shape and type; its values are not used."""

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy weights into tensors of the same shapes, on any device, of any type, full or sharded."""


def read_all(source: WeightSource) -> dict[str, Tensor]:
    """All weights of a source, in memory."""
    found = {name: torch.empty_like(like, device="cpu") for name, like in source.layout.items()}
    source.fill(found)
    return found


def copy_into(target: Tensor, read: Callable[[Slices | None], Tensor]) -> None:
    """Copy what `read` returns into `target`. `read` is called with the slices of this rank's shard, or with None if
    the target is not sharded."""
    if not isinstance(target, DTensor):
        target.detach().copy_(read(None))
        return
    (chunk,) = target.__create_chunk_list__()
    mine = target.to_local().detach()
    if mine.numel():  # with more ranks than rows some shards are empty
        offsets = zip(chunk.offsets, chunk.sizes, strict=True)
        mine.copy_(read(tuple(slice(start, start + size) for start, size in offsets)))


@dataclass(frozen=True)
class InMemoryWeights:
    """Weights in memory, or memory-mapped."""

    layout: Mapping[str, Tensor]

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        for name, target in targets.items():
            weight = self.layout[name]
            copy_into(target, lambda part: weight if part is None else weight[part])  # noqa: B023 (called at once)


@dataclass(frozen=True)
class RenamedWeights:
    """Weights under other names."""

    source: WeightSource
    names: Mapping[str, str]
    """The name in the source of each weight."""

    @property
    def layout(self) -> Mapping[str, Tensor]:
        """Shapes and types, by the new names."""
        return {name: self.source.layout[original] for name, original in self.names.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        self.source.fill({self.names[name]: target for name, target in targets.items()})


@dataclass(frozen=True)
class LayeredWeights:
    """Weights of which some are replaced by others."""

    source: WeightSource
    others: WeightSource
    """Those that replace the weights of the same names."""

    @property
    def layout(self) -> Mapping[str, Tensor]:
        """Shapes and types."""
        return {**self.source.layout, **self.others.layout}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy them, those that replace last: one tensor may have two names, and only one of them is replaced."""
        self.source.fill({name: target for name, target in targets.items() if name not in self.others.layout})
        self.others.fill({name: target for name, target in targets.items() if name in self.others.layout})


class CheckpointWeights:
    """The tensors under one prefix of a checkpoint: those under `learner/model` are a model's weights."""

    def __init__(self, path: Path, prefix: str, *, verify: bool = True) -> None:
        """`verify`: read every byte first and refuse a damaged checkpoint."""
        self._path, self._start = path, f"{prefix}/"
        manifest = verified_manifest(path) if verify else read_manifest(path)
        self.about = manifest.about
        """What the manifest says of the run that saved it."""
        self._metadata = read_metadata(path, manifest.files)
        self.layout = {}
        for name, entry in self._metadata.state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata)
            if name.startswith(self._start):
                like = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
                self.layout[unescape_key(name.removeprefix(self._start))] = like
        if not self.layout:
            groups = sorted({name.rpartition("/")[0] for name in self._metadata.state_dict_metadata})
            raise UserError(
                f"the checkpoint {path} has no tensors under {prefix!r}; it has some under {', '.join(groups)}"
            )

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read them; not collective."""
        tensors = {self._start + join_keys([name]): target.detach() for name, target in targets.items()}
        fill_tensors(self._path, self._metadata, tensors)
