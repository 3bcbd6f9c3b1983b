"""Copies of tensors, so that training may change them while they are being written.

The memory is reused by the next save. For tensors on a GPU it is pinned: the copies are queued on the device's stream
after the step that made the values and before the one that changes them, so only the thread that writes waits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch.distributed.tensor import DTensor


@dataclass(frozen=True)
class Copies:
    """Copies in host memory, complete once `wait` has returned."""

    tensors: dict[str, torch.Tensor]
    _events: list[torch.Event] = field(default_factory=list)

    def wait(self) -> None:
        """Wait for copies that a device has not finished; any thread may call it."""
        for event in self._events:
            event.synchronize()


class Buffers:
    """The memory of the copies. A copy is valid until the next one is made."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def reserve(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Allocate the memory now and touch every page of it, so that the first copy is as fast as later ones."""
        for name, tensor in tensors.items():
            self._kept[name] = self._buffer(name, _local(tensor)).zero_()

    @torch.no_grad()
    def copy(self, tensors: Mapping[str, torch.Tensor]) -> Copies:
        """Copies of tensors by name; of a sharded one, of this rank's shard."""
        local = {name: _local(tensor) for name, tensor in tensors.items()}
        self._kept = {name: self._buffer(name, part) for name, part in local.items()}
        for name, part in local.items():
            self._kept[name].copy_(part, non_blocking=True)
        events = []
        for device in {part.device for part in local.values()} - {torch.device("cpu")}:
            events.append(torch.Event(device))
            events[-1].record(torch.accelerator.current_stream(device))
        return Copies({name: _like(tensor, self._kept[name]) for name, tensor in tensors.items()}, events)

    def _buffer(self, name: str, part: torch.Tensor) -> torch.Tensor:
        """Memory for a copy: that of the last save if it has the same shape and type."""
        known = self._kept.get(name)
        if known is not None and known.shape == part.shape and known.dtype == part.dtype:
            return known
        pin = part.device.type != "cpu" and part.numel() > 0
        return torch.empty(part.shape, dtype=part.dtype, device="cpu", pin_memory=pin)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _like(tensor: torch.Tensor, copy: torch.Tensor) -> torch.Tensor:
    """The copy of a shard is a DTensor that still says what it is a shard of, though it is not on the mesh's device."""
    return DTensor(copy, tensor._spec, requires_grad=False) if isinstance(tensor, DTensor) else copy
