"""Copies of tensors, so that training may change them while they are being written.

The memory is kept and used again at the next save. On a GPU it is pinned: the copies then queue up on the device behind
the step that made the values and before the one that changes them, and nobody waits but the thread that writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Copies:
    """Copies in the memory of the host, complete once `wait` has returned."""

    tensors: dict[str, torch.Tensor]
    _arrivals: list[torch.Event] = field(default_factory=list)

    def wait(self) -> None:
        """Wait for what is still on its way from a device; any thread may."""
        for arrival in self._arrivals:
            arrival.synchronize()


class Buffers:
    """The memory that copies go to. A copy is valid until the next one is made."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the memory now, down to its last page, so that the first copy is as quick as every other."""
        for name, tensor in tensors.items():
            self._kept[name] = self._room(name, _part(tensor)).zero_()

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, torch.Tensor]) -> Copies:
        """Copies of tensors by name; of a sharded one, of this rank's shard."""
        parts = {name: _part(tensor) for name, tensor in tensors.items()}
        self._kept = {name: self._room(name, part) for name, part in parts.items()}
        for name, part in parts.items():
            self._kept[name].copy_(part, non_blocking=True)
        arrivals = []
        for device in {part.device for part in parts.values()} - {torch.device("cpu")}:
            arrivals.append(torch.Event(device))
            arrivals[-1].record(torch.accelerator.current_stream(device))
        return Copies({name: _like(tensor, self._kept[name]) for name, tensor in tensors.items()}, arrivals)

    def _room(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Memory for a copy: that of the last time if it still fits."""
        known = self._kept.get(name)
        if known is not None and known.shape == part.shape and known.dtype == part.dtype:
            return known
        pin = part.device.type != "cpu" and part.numel() > 0
        return torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=pin)


def _part(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """The copy of a shard still says of what it is a shard, though it has left the device of its mesh."""
    return DTensor(copy, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else copy
