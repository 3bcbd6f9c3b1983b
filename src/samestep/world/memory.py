"""How much memory this rank may use, and how much some work takes at most."""

import ctypes
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch

from samestep.world.watchdog.stack_dump import host_memory
from samestep.world.world import World

DEVICE_SHARE = 0.9
"""The rest of a device is for what an allocator cannot use of its blocks, for libraries, and for compiled code."""
HOST_SHARE = 0.5
"""Of the memory of a host that is free: C libraries keep up to as much again of what is freed, others need some too,
and a host that has none left ends programs."""
_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "ALLOC_FAILED")
_STATUS, _CLEAR, _CGROUPS = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/sys/fs/cgroup")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether `error` means that a device or the machine has no memory left; there are many such errors."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


class Memory(Protocol):
    """The memory that a rank computes in."""

    limit: float
    """Bytes that this process may have in use."""
    refuses: bool
    """Whether too much is refused with an error; otherwise it may end programs."""

    def used(self) -> int:
        """Bytes in use now."""

    def most_used(self, work: Callable[[], object]) -> int:
        """The most bytes in use at any time of some work."""

    def give_back(self) -> None:
        """Return what is reserved and not used."""


def memory_of(world: World) -> Memory | None:
    """That of this rank's device; None where it cannot be measured."""
    if world.device.type != "cpu":
        return DeviceMemory(world.device)
    available = available_memory()
    return HostMemory(available / world.rank_info.local_size) if available and _can_measure() else None


class DeviceMemory:
    """The memory of a GPU, as torch's allocator counts it."""

    refuses = True

    def __init__(self, device: torch.device) -> None:
        self._torch: Any = torch.get_device_module(device)
        index = self._torch.current_device() if device.index is None else device.index
        self._device = device = torch.device(device.type, index)  # some functions take no device without its number
        free, total = self._torch.mem_get_info(device)
        fraction: Any = getattr(self._torch, "get_per_process_memory_fraction", lambda device: 1.0)
        reserved = self._torch.memory_reserved(device)
        self.limit = DEVICE_SHARE * min(free + reserved, fraction(device) * total)

    def used(self) -> int:
        """Bytes in tensors."""
        return self._torch.memory_allocated(self._device)

    def most_used(self, work: Callable[[], object]) -> int:
        """Bytes in tensors."""
        self._torch.reset_peak_memory_stats(self._device)
        work()
        return self._torch.max_memory_allocated(self._device)

    def give_back(self) -> None:
        self._torch.empty_cache()


class HostMemory:
    """The memory of this process on a Linux host."""

    refuses = False

    def __init__(self, available: float) -> None:
        self.give_back()
        self.limit = self.used() + HOST_SHARE * available

    def used(self) -> int:
        """Bytes of the process."""
        return _of_process("VmRSS")

    def most_used(self, work: Callable[[], object]) -> int:
        """Bytes of the process. What it holds and does not use hides as much of what the work takes."""
        self.give_back()
        _CLEAR.write_text("5")  # sets the peak to what is used now
        work()
        return _of_process("VmHWM")

    def give_back(self) -> None:
        """What glibc keeps of freed memory; other C libraries keep little."""
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def available_memory() -> int:
    """Bytes of the host that programs can still get, also by the limits of a container; 0 if that is not known."""
    return min([host_memory()[1], *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What is left of the limits of the control groups that the process is in."""
    try:
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return
    for _, kinds, path in lines:
        if kinds == "":
            yield from _left_in_group(_CGROUPS, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_in_group(_CGROUPS / "memory", path, *names)


def _left_in_group(root: Path, path: str, limit: str, usage: str, cached: str) -> Iterator[int]:
    """What the group and those that it is in have left; inside a container its own may be shown as the root."""
    own = root / path.strip("/")
    for folder in {root, own, *(parent for parent in own.parents if root in parent.parents)}:
        try:
            most, now = (int((folder / name).read_text()) for name in (limit, usage))
            found = re.search(rf"^{cached} (\d+)$", (folder / "memory.stat").read_text(), re.MULTILINE)
        except (OSError, ValueError):  # no such group here, or `max`
            continue
        yield max(0, most - now + (int(found[1]) if found else 0))  # cached files make room


def _can_measure() -> bool:
    return _STATUS.exists() and os.access(_CLEAR, os.W_OK)


def _of_process(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)
    assert found is not None, f"{_STATUS} has no {name}"
    return 1024 * int(found[1])
