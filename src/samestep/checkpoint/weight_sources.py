"""Weights on disk as a source that fills tensors in place, one after the other: never a second copy of a whole model.

A sharded tensor takes only its own part, so a rank reads no more than it holds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.tensor import DTensor

from samestep.checkpoint.loading import whole
from samestep.checkpoint.manifest import STATE, read_manifest
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.state import plain_key, pointer
from samestep.checkpoint.tensors import fill_tensors
from samestep.core.errors import UserError

Part = tuple[slice, ...]
"""A part of a tensor, a slice a dimension."""


class WeightSource(Protocol):
    """Weights that lie somewhere."""

    @property
    def layout(self) -> Mapping[str, Tensor]:
        """A tensor of each weight's shape and type; what is in it does not matter."""

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy weights into tensors of their shapes, on any device, in any type, whole or sharded."""


def read_whole(source: WeightSource) -> dict[str, Tensor]:
    """All weights of a source, in memory."""
    found = {name: torch.empty_like(like, device="cpu") for name, like in source.layout.items()}
    source.fill(found)
    return found


def put(target: Tensor, read: Callable[[Part | None], Tensor]) -> None:
    """Copy into `target` what `read` gives for its part; the part is None where the target is whole."""
    if not isinstance(target, DTensor):
        target.detach().copy_(read(None))
        return
    (chunk,) = target.__create_chunk_list__()
    mine = target.to_local().detach()
    if mine.numel():  # more ranks than rows leave some of them without any
        mine.copy_(read(tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))))


@dataclass(frozen=True)
class Held:
    """Weights in memory, or mapped into it."""

    layout: Mapping[str, Tensor]

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy them."""
        for name, target in targets.items():
            weight = self.layout[name]
            put(target, lambda part: weight if part is None else weight[part])  # noqa: B023 (called at once)


@dataclass(frozen=True)
class Renamed:
    """Weights under other names."""

    source: WeightSource
    names: Mapping[str, str]
    """The name in the source of each weight."""

    @property
    def layout(self) -> Mapping[str, Tensor]:
        """Shapes and types, by the new names."""
        return {name: self.source.layout[theirs] for name, theirs in self.names.items()}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Copy them."""
        self.source.fill({self.names[name]: target for name, target in targets.items()})


class CheckpointPart:
    """The tensors under one prefix of a checkpoint: those of `learner/model` are a model's weights."""

    def __init__(self, path: Path, prefix: str, *, verify: bool = True) -> None:
        """`verify`: read every byte first and refuse a damaged checkpoint."""
        self._path, self._start = path, f"{prefix}/"
        manifest = whole(path) if verify else read_manifest(path)
        self._metadata = read_metadata(path, manifest.files)
        self.layout = {}
        for name, entry in self._metadata.state_dict_metadata.items():
            assert isinstance(entry, TensorStorageMetadata)
            if name.startswith(self._start):
                like = torch.empty(entry.size, dtype=entry.properties.dtype, device="meta")
                self.layout[plain_key(name.removeprefix(self._start))] = like
        if not self.layout:
            groups = sorted({name.rpartition("/")[0] for name in self._metadata.state_dict_metadata})
            raise UserError(
                f"the checkpoint {path} has no tensors under {prefix!r}; it has some under {', '.join(groups)}"
            )

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """Read them, each rank for itself."""
        tensors = {self._start + pointer([name]): target.detach() for name, target in targets.items()}
        failure = fill_tensors(self._path, self._metadata, tensors, None)
        if failure is not None:
            raise failure


def parts_of(path: Path) -> set[str]:
    """The names under which a checkpoint keeps state."""
    return set(json.loads((path / STATE).read_text(encoding="utf-8")))
