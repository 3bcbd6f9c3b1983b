"""For a training loop of one's own: the process group, replicated modules, rows for each rank, means over ranks.

    rank, world_size, local_rank = init_distributed()
    (net,) = setup_distributed_models(Net())
    loader = get_dataloader_for_distributed(rows, batch_size=8)
    for epoch in range(3):
        for x, y in loader:
            loss = (net(x) - y).square().mean()
            (loss * loader.weight).backward()
            ...
            metrics = sync_metrics({"loss": (float(loss) * loader.rows, loader.rows)})

These are faces of what recipes run on: ranks are found under torchrun, srun, mpiexec and samestep's own launcher; a
process alone is a group of one. All ranks call each of them, in the same order. What a loop of one's own does not get
is what needs to own the loop: checkpoints, resuming, agreed stopping, `samestep verify`.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.constants import default_pg_timeout
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, Sampler

from samestep.core.compile_caches import use_private_caches
from samestep.core.errors import UserError
from samestep.core.secret import derive_key, find_secret
from samestep.data.order import Order, Sequential, Shuffled, share_bounds
from samestep.parallel.wrap import SYNC_BUFFERS
from samestep.world.authenticated_store import AuthenticatedStore
from samestep.world.rank_discovery import RankInfo
from samestep.world.rendezvous import authenticated
from samestep.world.world import World

MetricValue = float | Tensor | tuple[float | Tensor, float | Tensor]
"""A number, whose weight is 1; or a sum and its weight."""

_joined: list[World] = []
"""The world of this process, once it has joined: like torch's process group, of which there is one in a process."""


def init_distributed(backend: str = "auto", device: str = "auto", timeout: float = 600.0) -> tuple[int, int, int]:
    """Set up the process group; returns (rank, world size, local rank). A second call only returns them again.

    A process alone gets a group of one. `device` is as in `distributed.device`, `timeout` in seconds. A group that
    torch.distributed has already is used as it is.
    """
    if not _joined:
        use_private_caches()
        _joined.append(_existing() if dist.is_initialized() else _join(backend, device, timeout))
    info = _world().rank_info
    return info.rank, info.size, info.local_rank


def _join(backend: str, device: str, timeout: float) -> World:
    world = World.rendezvous()
    if not world.rank_info.grouped:  # a group of one, so that a loop may call torch.distributed in any case
        world.rank_info = replace(world.rank_info, grouped=True)
        world.store = AuthenticatedStore(HashStore(), b"alone")
    return world.connect(device, backend, timeout)


def _existing() -> World:
    """The world of a group that the caller made."""
    rank, size = dist.get_rank(), dist.get_world_size()
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    local_rank = int(os.environ.get("LOCAL_RANK", rank % local_size))
    accelerator = torch.accelerator.current_accelerator() if dist.get_backend() != "gloo" else None
    index = torch.accelerator.current_device_index() if accelerator else 0
    device = torch.device(accelerator.type, index) if accelerator else torch.device("cpu")
    info = RankInfo("torch.distributed", rank, size, local_rank, local_size)
    world = World(info, device, timeout=default_pg_timeout)
    # the store of torch has no secret, so ours is that of the user
    key = derive_key(find_secret(os.environ), "own loop") if size > 1 else b""
    world.store = authenticated(_get_default_store(), key, info)
    world.open_messages()
    return world


def _world() -> World:
    if not _joined:
        init_distributed()
    if not dist.is_initialized():
        raise UserError("the process group was destroyed, and a process sets it up once: destroy it after the last use")
    return _joined[0]


class Replica(DistributedDataParallel):
    """A module whose gradients are averaged over the ranks when it is called. Its state is that of the module itself,
    so that a file of weights is the same from one process and from many."""

    def state_dict(self, *args: Any, **options: Any) -> Any:
        """The state of the module, without a prefix."""
        return self.module.state_dict(*args, **options)

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Load a state of the module, without a prefix."""
        return self.module.load_state_dict(*args, **options)


def setup_distributed_models(
    *modules: nn.Module, device: torch.device | str | None = None, find_unused_parameters: bool = False
) -> tuple[nn.Module, ...]:
    """The modules on `device` (by default the rank's own), with the weights of rank 0, to be trained on all ranks.

    Call what is returned as `module(x)`: a method of `module.module` would train without synchronising gradients. A
    module that has no trainable parameter is returned itself.
    """
    world = _world()
    for module in modules:
        parts = (*module.named_parameters(), *module.named_buffers())
        by_rank = world.gather([f"{name} {list(part.shape)} {part.dtype}" for name, part in parts])
        for values in zip_longest(*by_rank):
            _require_same(f"the weights of {type(module).__name__}", values)
    target = world.device if device is None else torch.device(device)
    _require_own_parameters(modules)
    return tuple(_replicated(module.to(target), find_unused_parameters) for module in modules)


def _replicated(module: nn.Module, find_unused: bool) -> nn.Module:
    with torch.no_grad():  # here, since older releases of torch leave out buffers that are not synchronised later
        for tensor in (*module.parameters(), *module.buffers()):
            value = tensor.detach().contiguous()
            dist.broadcast(value.reshape(-1).view(torch.uint8), 0)  # as bytes, since gloo does not know every type
            tensor.copy_(value)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    device = next(module.parameters()).device
    settings: dict[str, Any] = {SYNC_BUFFERS: False, "find_unused_parameters": find_unused, "init_sync": False}
    devices = [device] if device.type != "cpu" else None
    return Replica(module, device_ids=devices, gradient_as_bucket_view=True, **settings)


def _require_own_parameters(modules: tuple[nn.Module, ...]) -> None:
    """Two modules that both train a parameter would both average its gradient, one of them too early."""
    seen: set[int] = set()
    for module in modules:
        own = {id(parameter) for parameter in module.parameters() if parameter.requires_grad}
        if own & seen:
            raise UserError(
                f"{type(module).__name__} shares a trainable parameter with another module: "
                "put both under one module whose forward calls them, and give that one"
            )
        seen |= own


class RankRows(Sampler[int]):
    """The rows of this rank in an epoch: its part of every global batch, in order.

    Of an epoch's last batch a rank may have no row left. It then gets the first of the batch, as a row that does not
    count, because every rank has to take part in every step.
    """

    def __init__(self, order: Order, world: World) -> None:
        self.order, self._rank, self._size = order, world.rank, world.size
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass; without this call, the one after the last."""
        if epoch < 0:
            raise UserError(f"epochs are counted from 0; {epoch} is none")
        self._epoch = epoch

    def counted(self, step: int) -> int:
        """How many rows of a step are this rank's; 0: the one that it gets does not count."""
        return self._share(step)[1] - self._share(step)[0]

    def total(self, step: int) -> int:
        """How many rows a step has over all ranks."""
        return min(self.order.batch, self.order.size - step * self.order.batch)

    def _share(self, step: int) -> tuple[int, int]:
        bounds = share_bounds(self.total(step), self._size)
        return bounds[self._rank], bounds[self._rank + 1]

    def __iter__(self) -> Iterator[int]:
        epoch, self._epoch = self._epoch, self._epoch + 1
        for step in range(self.order.steps_per_epoch):
            indices = self.order.ids(epoch * self.order.steps_per_epoch + step)[:, 1]
            start, stop = self._share(step)
            yield from (indices[start:stop] if stop > start else indices[:1]).tolist()

    def __len__(self) -> int:
        last = self.order.steps_per_epoch - 1
        return last * (self.order.batch // self._size) + max(1, self.counted(last))


class DistributedDataLoader(DataLoader[Any]):
    """torch's DataLoader over the rows of this rank; beside each batch it says how much the batch counts."""

    sampler: RankRows
    rows: int = 0
    """How many rows of the last batch count: 0 where a rank had none left and got one to take part."""
    weight: float = 0.0
    """What this rank's mean loss has to be multiplied by, so that the mean over ranks is that over all rows: its rows
    times the number of ranks, divided by the rows of all. 1 in every step but an epoch's last."""

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass; without this call, the one after the last."""
        self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        size = _world().size
        for step, batch in enumerate(super().__iter__()):
            self.rows = self.sampler.counted(step)
            self.weight = self.rows * size / self.sampler.total(step)
            yield batch


def get_dataloader_for_distributed(
    dataset: Any, batch_size: int, *, shuffle: bool = True, seed: int = 0, **options: Any
) -> DistributedDataLoader:
    """A DataLoader that gives every row to one rank, once an epoch; `batch_size` is that of a rank.

    Every rank gets the same number of batches. Only the last of an epoch is smaller (see `weight` and `rows` of the
    loader). Rows are shuffled anew in each epoch. `options` are those of torch's DataLoader.
    """
    taken = sorted({"sampler", "batch_sampler", "drop_last"} & options.keys())
    if taken:
        raise UserError(f"{taken[0]} is decided by the distribution over ranks; leave it out")
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise UserError(f"{type(dataset).__name__} has no length; give a dataset with len() and rows by index")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise UserError(f"batch_size must be at least 1, and a whole number, not {batch_size!r}")
    world, length = _world(), len(dataset)
    settings = {"len(dataset)": length, "batch_size": batch_size, "shuffle": shuffle, "seed": seed}
    by_rank = world.gather(settings)
    for name in settings:  # or some rows would come twice, and others never
        _require_same(name, [found[name] for found in by_rank])
    batch = batch_size * world.size
    order: Order = Shuffled(length, batch, seed) if shuffle else Sequential(length, batch)
    return DistributedDataLoader(dataset, batch_size, sampler=RankRows(order, world), **options)


def _require_same(what: str, by_rank: Sequence[Any]) -> None:
    if any(value != by_rank[0] for value in by_rank):
        raise UserError(f"{what} must be the same on all ranks; by rank it is {list(by_rank)}")


def sync_metrics(metrics: Mapping[str, MetricValue]) -> dict[str, float]:
    """The mean of every metric over the ranks, the same on all.

    A pair (sum, weight) counts with its weight, such as the number of rows; a number counts with weight 1. A rank may
    lack a metric. One whose weight is 0 on all ranks is NaN.
    """
    parts = _world().run_on_all_ranks(
        "reading the metrics", lambda: {name: _sum_and_weight(name, value) for name, value in metrics.items()}
    )
    names = dict.fromkeys(name for part in parts for name in part)
    found: dict[str, float] = {}
    for name in names:
        pairs = [part[name] for part in parts if name in part]
        weight = math.fsum(weight for _, weight in pairs)
        found[name] = _sum([value for value, _ in pairs]) / weight if weight else math.nan
    return found


def _sum_and_weight(name: str, value: Any) -> list[float]:
    is_pair = isinstance(value, tuple | list) and len(value) == 2
    pair = [_number(name, part) for part in (value if is_pair else (value, 1.0))]
    if not 0 <= pair[1] < math.inf:
        raise UserError(f"the weight of metric {name!r} must be at least 0 and finite, not {pair[1]}")
    return pair


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"metric {name!r} must be one number or a pair (sum, weight); take its mean first") from None


def _sum(values: list[float]) -> float:
    """The sum, exact where it is finite, so that it does not depend on the order of ranks."""
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)
