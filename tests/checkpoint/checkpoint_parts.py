"""Parts with a state, and functions that start workers, for the tests of the checkpoint folder."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from samestep.launching.local import start
from samestep.world.world import World

PRELOAD = ("torch", "torch.distributed.checkpoint", "torch.distributed.fsdp")


class Part:
    """A state that is exactly what it is given."""

    def __init__(self, state: dict[str, Any]) -> None:
        self.state = state

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class RankedPart(Part):
    """A state with a part of its own for every rank."""

    def __init__(self, state: dict[str, Any], own: Any) -> None:
        super().__init__(state)
        self.own = own
        self.loaded: list[Any] = []

    def rank_state(self) -> Any:
        return self.own

    def load_rank_state(self, states: list[Any]) -> None:
        self.loaded = states


def values(name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Values that depend on the name alone."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:6], "big")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, type and bits, NaNs included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(bits(one), bits(other))


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor, in order."""
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def run_ranks(target: Callable[..., object], nproc: int, *args: object, logs: Path) -> list[int | None]:
    """Run a worker function on `nproc` ranks to its end; exit codes by rank."""
    return start(target, nproc, *args, logs=logs, preload=PRELOAD).wait(60)


def must_succeed(target: Callable[..., object], nproc: int, *args: object, logs: Path) -> None:
    """Run a worker function on `nproc` ranks, all of which must exit with 0 and print no warning."""
    workers = start(target, nproc, *args, logs=logs, preload=PRELOAD)
    codes = workers.wait(60)
    output = "\n".join(workers.output(rank) for rank in range(nproc))
    assert codes == [0] * nproc, f"exit codes {codes}\n{output}"
    assert "warning" not in output.lower(), output


class Trainee:
    """A small model in training, replicated or sharded, with its optimizer."""

    def __init__(self, world: World, strategy: str) -> None:
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
        self._wrapped = self.model
        if strategy == "fsdp":
            fully_shard(self.model, mesh=init_device_mesh("cpu", (world.size,)))
        elif strategy == "ddp":
            self._wrapped = DistributedDataParallel(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self._world = world

    def step(self) -> None:
        """One update, with collectives among all ranks."""
        self._wrapped(torch.full((2, 5), 1.0 + self._world.rank)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": get_optimizer_state_dict(self.model, self.optimizer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])

    def values(self) -> dict[str, torch.Tensor]:
        """All weights and moments as they are now, as full tensors. Collective when sharded."""
        state = self.state_dict()
        moments = {f"{n}.{k}": v for n, found in state["optimizer"]["state"].items() for k, v in found.items()}
        return {name: _full(tensor).clone() for name, tensor in {**state["model"], **moments}.items()}


def _full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
