"""One face for a module that is alone, replicated (DDP) or sharded (FSDP2).

Gradients come out as the mean over the data-parallel ranks in every case; the learner scales its loss by their number,
so that the mean is the exact global sum whatever the split.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from samestep.core.errors import UserError
from samestep.parallel.build import Fill, place
from samestep.parallel.waiting import Waiting
from samestep.world.world import World

# Newer releases of torch call it by another name and warn about the old one.
_SYNC_BUFFERS = next(
    n for n in ("forward_sync_buffers", "broadcast_buffers") if n in signature(DistributedDataParallel).parameters
)


class Parallel(Protocol):
    """A module ready to be called on every rank."""

    inner: nn.Module
    """The user's own module, for its state and for inference."""
    module: nn.Module
    """What the loss function calls; calling around it (`.module`) skips gradient synchronisation."""
    replicated: bool
    """Whether every rank holds the whole module."""
    settles: bool
    """Whether its reduction order settles only after a first pass (see `warm_up`)."""
    needs_all: bool
    """Whether every trainable parameter must get a gradient in every step, or the next one fails."""
    called: bool
    """Whether `module` was called, with gradients on, since this was last set to false."""

    @property
    def waited(self) -> float | None:
        """Seconds that this rank has waited for the others so far; None where that is not measured."""

    def waiting(self) -> AbstractContextManager[None]:
        """Around a message between all ranks beside those of the gradients."""

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        """Around one micro-batch: gradients are reduced only on the last of a step."""

    def rest(self) -> None:
        """Give back what calls without a backward pass gathered."""

    def held_constant(self) -> AbstractContextManager[None]:
        """Around a use of `inner` that leaves no gradient in its parameters, but reaches its inputs."""


def wrap(
    module: nn.Module, world: World, strategy: str, compute: torch.dtype | None, fill: Fill | None = None
) -> Parallel:
    """`module` on this rank's device, replicated (`ddp`) or sharded (`fsdp`) over the data-parallel ranks.

    A module without memory (see `build_blank`) gets some on the device, and its values from `fill`.
    """
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{type(module).__name__} has no trainable parameter, so there is nothing to learn")
    if world.control is None:
        return Lone(place(module, world.device, fill))
    if strategy == "fsdp":
        return Sharded(module, world, compute, fill)
    return Replicated(place(module, world.device, fill), world)


class _Called:
    """Notes that the wrapper was entered."""

    inner: nn.Module
    called = False

    @property
    def waited(self) -> float | None:
        """Not measured."""
        return None

    def waiting(self) -> AbstractContextManager[None]:
        """Not measured."""
        return nullcontext()

    def _watch(self, module: nn.Module) -> None:
        module.register_forward_pre_hook(self._note)

    def _note(self, *_: object) -> None:
        self.called = self.called or torch.is_grad_enabled()

    def rest(self) -> None:
        """Nothing was gathered."""

    @contextmanager
    def held_constant(self) -> Iterator[None]:
        """Autograd asks whether a parameter requires a gradient when it is used, not in the backward pass."""
        trained = [p for p in self.inner.parameters() if p.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)


class Lone(_Called):
    """One process: nothing to synchronise."""

    replicated = True
    settles = needs_all = False

    def __init__(self, module: nn.Module) -> None:
        self.inner = self.module = module
        self._watch(module)

    @property
    def waited(self) -> float:
        """There is nobody to wait for."""
        return 0.0

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        """Nothing to hold back."""
        return nullcontext()


class Replicated(_Called):
    """DDP. Buffers stay as each rank computes them: they are equal, or the recipe reduces them itself."""

    replicated = needs_all = True

    def __init__(self, module: nn.Module, world: World) -> None:
        self.inner = module
        self.settles = world.dp_size > 2  # the sum of two numbers has one order
        settings: dict[str, Any] = {_SYNC_BUFFERS: False}
        self._ddp = DistributedDataParallel(
            module,
            device_ids=[world.device] if world.device.type != "cpu" else None,
            process_group=world.dp_group,
            gradient_as_bucket_view=True,
            **settings,
        )
        self.module: nn.Module = self._ddp
        self._watch(self._ddp)
        self._waiting = Waiting(world.device)
        self._waiting.for_gradients_of(module.parameters())

    @property
    def waited(self) -> float:
        """From the last gradient of a pass to the end of their reduction, and what was told beside."""
        return self._waiting.seconds

    def waiting(self) -> AbstractContextManager[None]:
        """Counted in."""
        return self._waiting.during()

    @contextmanager
    def syncing(self, last: bool) -> Iterator[None]:
        """All-reduce overlapped with the last backward pass only."""
        with nullcontext() if last else self._ddp.no_sync():
            yield
        if last:
            self._waiting.end()


class Sharded(_Called):
    """FSDP2: parameters, gradients and optimizer state cut over the ranks, gathered a unit at a time."""

    replicated = False
    settles = needs_all = False  # nor are waits measured: each unit has its own, while others compute

    def __init__(self, module: nn.Module, world: World, compute: torch.dtype | None, fill: Fill | None) -> None:
        mesh = _mesh(world)
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32 if compute else None)
        units: Sequence[nn.Module] = getattr(module, "shard_units", ())
        for unit in units:
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        fully_shard(module, mesh=mesh, mp_policy=policy)
        self.inner = self.module = place(module, world.device, fill)
        self._fsdp = cast(FSDPModule, module)
        self._is_set_up = self._was_held = False
        self._watch(module)

    @contextmanager
    def syncing(self, last: bool) -> Iterator[None]:
        """Reduce-scatter on the last micro-batch; before it gradients stay whole on each rank."""
        if self._was_held:
            self._was_held = False
            self.rest()  # or the outermost unit is used as it was gathered: without gradients
        self._fsdp.set_requires_gradient_sync(last)
        self._fsdp.set_is_last_backward(last)
        yield

    def rest(self) -> None:
        """The outermost unit stays whole after a forward pass, in wait for a backward pass that may never come."""
        self._fsdp.reshard()

    @contextmanager
    def held_constant(self) -> Iterator[None]:
        """A unit that is gathered inherits from its parts on the ranks whether it requires gradients."""
        if not self._is_set_up:  # at its first use torch looks which parameters are trained, and none is in here
            for unit in self.inner.modules():
                if isinstance(unit, FSDPModule):
                    unit.unshard()
                    unit.reshard()
            self._is_set_up = True
        self.rest()
        self._was_held = True
        with super().held_constant():
            yield


def _mesh(world: World) -> DeviceMesh:
    """The data-parallel ranks in a row."""
    if world.dp_group is None:
        return init_device_mesh(world.device.type, (world.dp_size,))
    return DeviceMesh.from_group(world.dp_group, world.device.type)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor behind a shard; collective for a sharded one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor that may be sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def distribute_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A full tensor placed, typed and sharded as `parameter` is."""
    moved = tensor.to(parameter.device, parameter.dtype)
    if isinstance(parameter, DTensor):
        return distribute_tensor(moved, parameter.device_mesh, parameter.placements)
    return moved.clone()


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, equal on every rank."""
    return full_tensor(torch.nn.utils.get_total_norm(gradients))


def warm_up(module: nn.Module, backward: Callable[[], object]) -> None:
    """Run `backward` for its side effect on the reducer alone: gradients, buffers and random state are put back.

    DDP rebuilds its buckets after the first backward pass, in the order in which gradients became ready. From 3
    ranks on, the order of additions in an all-reduce depends on where a value lies in its bucket, so a fresh
    process would reduce its first step in another order than a process that is already running: resume would not be
    bit-exact. One pass before anything counts puts every process, fresh or resumed, into the final layout.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [p.device for p in module.parameters() if p.device.type == "cuda"][:1]
    drawn = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        backward()
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    module.zero_grad(set_to_none=True)
