"""One interface for a module in a single process, replicated (DDP) or sharded (FSDP2).

Gradients are the mean over the data-parallel ranks in every case. The learner scales its loss by the number of ranks,
so that the mean is the exact global sum, however the batch is split.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from typing import Any, NoReturn, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from samestep.core.errors import RunFailed, UserError
from samestep.parallel.blocks import find_blocks
from samestep.parallel.build import FillFunction, materialize
from samestep.parallel.compiling import LossCompiler
from samestep.parallel.loss_graphs import LossGraphs
from samestep.parallel.precision import (
    Function,
    cast_weights,
    keeps_type,
    weight_places,
    weights_at,
    with_cast_weights,
)
from samestep.parallel.waiting import WaitTimer
from samestep.world.world import World

# Newer releases of torch have another name for it and warn about the old one.
SYNC_BUFFERS = next(
    n for n in ("forward_sync_buffers", "broadcast_buffers") if n in signature(DistributedDataParallel).parameters
)


class Parallel(Protocol):
    """A module ready to be called on every rank."""

    inner: nn.Module
    """The user's own module, for its state and for inference."""
    compiler: LossCompiler | LossGraphs | None
    """Compiles what `call` calls, or records it, if it is there."""
    replicated: bool
    """Whether every rank holds the full module."""
    needs_warm_up: bool
    """Whether the order of its reduction changes after the first backward pass (see `warm_up`)."""
    needs_all_gradients: bool
    """Whether every trainable parameter must get a gradient in every step, or the next one fails."""
    called: bool
    """Whether `inner` was called, with gradients enabled, since this was last set to False."""

    def call(self, function: Function, *args: Any) -> Any:
        """`function(inner, *args)`, so that a backward pass of what it returns synchronises gradients."""

    @property
    def seconds_waited(self) -> float | None:
        """Seconds that this rank has waited for the others so far; None where that is not measured."""

    def measure_wait(self) -> AbstractContextManager[None]:
        """Around a collective of all ranks other than the reduction of gradients."""

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        """Around one micro-batch: gradients are reduced only on the last of a step."""

    def cast_weights(self) -> AbstractContextManager[None]:
        """Around a use of `inner` other than by `call`: its weights are of the type that `call` computes with."""

    def reshard(self) -> None:
        """Free the parameters that calls without a backward pass gathered."""

    def held_constant(self) -> AbstractContextManager[None]:
        """Around a use of `inner` that computes gradients of its inputs, but not of its parameters."""


def wrap(
    module: nn.Module,
    world: World,
    strategy: str,
    compute: torch.dtype | None,
    fill: FillFunction | None = None,
) -> Parallel:
    """`module` on this rank's device, replicated (`ddp`) or sharded (`fsdp`) over the data-parallel ranks. `compute` is
    the type of mixed precision that its weights are cast to, if any.

    A module on the meta device (see `build_uninitialized`) is allocated on the device and filled by `fill`.
    """
    if not any(p.requires_grad for p in module.parameters()):
        raise UserError(f"{type(module).__name__} has no trainable parameter, so there is nothing to learn")
    if world.control is None:
        return SingleProcess(materialize(module, world.device, fill), compute)
    if strategy == "fsdp":
        return Sharded(module, world, compute, fill)
    return Replicated(materialize(module, world.device, fill), world, compute)


class _CallRecorder:
    """A hook that records whether a module was called with gradients. A copy of the module has its own."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, *_: object) -> None:
        if torch.is_grad_enabled():
            self.called = True


class _ParallelBase:
    """Records whether the network was called; defaults for the rest."""

    inner: nn.Module
    compiler: LossCompiler | LossGraphs | None = None
    _cast_to: torch.dtype | None = None

    @property
    def called(self) -> bool:
        """Since this was last set to False."""
        return self._recorder.called

    @called.setter
    def called(self, value: bool) -> None:
        self._recorder.called = value

    def call(self, function: Function, *args: Any) -> Any:
        """Nothing to wrap."""
        return self._prepared(function, args)(self.inner, *args)

    def _prepared(self, function: Function, args: Sequence[Any]) -> Function:
        if self.compiler:
            return self.compiler(function, self._cast_to, args)
        return with_cast_weights(function, self._cast_to)

    def cast_weights(self) -> AbstractContextManager[None]:
        """As `call` casts them."""
        return cast_weights(self.inner, self._cast_to)

    @property
    def seconds_waited(self) -> float | None:
        """Not measured."""
        return None

    def measure_wait(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _record_calls(self, module: nn.Module) -> None:
        self._recorder = _CallRecorder()
        module.register_forward_pre_hook(self._recorder)

    def reshard(self) -> None:
        """Nothing was gathered."""

    def held_constant(self) -> AbstractContextManager[None]:
        """With the same values, detached; also inside of a call, where they may be casts."""
        return weights_at([(weights, name, weight.detach()) for weights, name, weight in weight_places(self.inner)])


class SingleProcess(_ParallelBase):
    """No process group: nothing to synchronise."""

    replicated = True
    needs_warm_up = needs_all_gradients = False

    def __init__(self, module: nn.Module, compute: torch.dtype | None) -> None:
        self.inner, self._cast_to = module, compute
        self._record_calls(module)

    @property
    def seconds_waited(self) -> float:
        """There is no other rank to wait for."""
        return 0.0

    def syncing(self, last: bool) -> AbstractContextManager[None]:
        """Nothing to synchronise."""
        return nullcontext()


class _CallFunction(nn.Module):
    """A module whose forward pass is a function of the network. DDP around it sees every use of the network that the
    function makes, however it makes it; around the network itself, it would miss those that go past its `forward`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, function: Function, *args: Any) -> Any:
        return function(self.network, *args)


class Replicated(_ParallelBase):
    """DDP. Buffers stay as each rank computes them: they are equal, or the recipe reduces them itself."""

    replicated = needs_all_gradients = True

    def __init__(self, module: nn.Module, world: World, compute: torch.dtype | None) -> None:
        self.inner, self._cast_to = module, compute
        self.needs_warm_up = world.dp_size > 2  # the sum of two numbers does not depend on their order
        settings: dict[str, Any] = {SYNC_BUFFERS: False}
        self._ddp = DistributedDataParallel(
            _CallFunction(module),
            device_ids=[world.device] if world.device.type != "cpu" else None,
            process_group=world.dp_group,
            gradient_as_bucket_view=True,
            **settings,
        )
        self._record_calls(module)
        self._wait_timer = WaitTimer(world.device)
        self._wait_timer.start_at_last_gradient(module.parameters())

    def call(self, function: Function, *args: Any) -> Any:
        """Inside DDP's forward pass, unless there will be no backward pass."""
        prepared = self._prepared(function, args)
        return self._ddp(prepared, *args) if torch.is_grad_enabled() else prepared(self.inner, *args)

    @property
    def seconds_waited(self) -> float:
        """From the last gradient of each backward pass to the end of the reduction, and in `measure_wait`."""
        return self._wait_timer.seconds

    def measure_wait(self) -> AbstractContextManager[None]:
        """Added to `seconds_waited`."""
        return self._wait_timer.measure()

    @contextmanager
    def syncing(self, last: bool) -> Iterator[None]:
        """All-reduce overlapped with the last backward pass only."""
        with nullcontext() if last else self._ddp.no_sync():
            yield
        if last:
            self._wait_timer.stop()


class Sharded(_ParallelBase):
    """FSDP2: parameters, gradients and optimizer state are sharded over the ranks, and gathered one unit at a time."""

    replicated = False
    needs_warm_up = needs_all_gradients = False  # waits are not measured: each unit communicates while others compute

    def __init__(self, module: nn.Module, world: World, compute: torch.dtype | None, fill: FillFunction | None) -> None:
        shard(module, world, compute)
        self.inner = materialize(module, world.device, fill)
        self._fsdp = cast(FSDPModule, module)
        self._is_set_up = self._was_held_constant = False
        self._record_calls(module)

    @contextmanager
    def syncing(self, last: bool) -> Iterator[None]:
        """Reduce-scatter on the last micro-batch; before it each rank keeps full gradients."""
        if self._was_held_constant:
            self._was_held_constant = False
            self.reshard()  # or the outermost unit would be used as it was gathered: without gradients
        self._fsdp.set_requires_gradient_sync(last)
        self._fsdp.set_is_last_backward(last)
        yield

    def reshard(self) -> None:
        """The outermost unit stays gathered after a forward pass, for a backward pass that may never come."""
        self._fsdp.reshard()

    @contextmanager
    def held_constant(self) -> Iterator[None]:
        """The gathered parameters of a unit require gradients if its sharded parameters do."""
        if not self._is_set_up:  # at its first use torch records which parameters are trainable, and in here none is
            for unit in self.inner.modules():
                if isinstance(unit, FSDPModule):
                    unit.unshard()
                    unit.reshard()
            self._is_set_up = True
        self.reshard()
        self._was_held_constant = True
        # Autograd checks whether a parameter requires a gradient when it is used, not in the backward pass.
        trainable = [p for p in self.inner.parameters() if p.requires_grad]
        for parameter in trainable:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trainable:
                parameter.requires_grad_(True)


def shard(module: nn.Module, world: World, compute: torch.dtype | None) -> None:
    """Shard a module over the data-parallel ranks, unit by unit; its trainable parameters must be of one type."""
    mesh = _mesh(world)
    for part in module.modules():
        if compute and keeps_type(part):
            fully_shard(part, mesh=mesh, mp_policy=MixedPrecisionPolicy(cast_forward_inputs=False))
    policy = MixedPrecisionPolicy(  # inputs stay as they are: a rounded rotary table is another position
        param_dtype=compute, reduce_dtype=torch.float32 if compute else None, cast_forward_inputs=False
    )
    for unit in find_blocks(module):
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    fully_shard(module, mesh=mesh, mp_policy=policy)


def _mesh(world: World) -> DeviceMesh:
    """A one-dimensional mesh of the data-parallel ranks, over the group that they have: torch would open another."""
    group = world.dp_group or dist.group.WORLD
    assert group is not None
    return DeviceMesh.from_group(group, world.device.type)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor behind a shard; collective for a sharded one."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local(tensor: Tensor) -> Tensor:
    """This rank's shard of a tensor, or the tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def distribute_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A full tensor with the device, type and sharding of `parameter`."""
    moved = tensor.to(parameter.device, parameter.dtype)
    if isinstance(parameter, DTensor):
        return distribute_tensor(moved, parameter.device_mesh, parameter.placements)
    return moved.clone()


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The 2-norm of all gradients together, equal on every rank."""
    return full_tensor(torch.nn.utils.get_total_norm(gradients))


def refuse_uncalled(learner: str) -> NoReturn:
    """Refuse a loss that did not call the network."""
    raise RunFailed(
        f"the loss of learner {learner!r} did not call the network it was given but went around it, through a part or "
        "another method; call the network itself, or its sharded parameters would not be gathered"
    )


@contextmanager
def uncompiled(parallel: Parallel) -> Iterator[None]:
    """Inside, calls are neither compiled nor recorded, also by a network that is compiled itself."""
    compiler, parallel.compiler = parallel.compiler, None
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        parallel.compiler = compiler


def warm_up(module: nn.Module, backward: Callable[[], object]) -> None:
    """Run `backward` only for its side effect on the reducer: gradients, buffers and random state are restored.

    DDP rebuilds its buckets after the first backward pass, in the order in which gradients became ready. From 3
    ranks on, the order of additions in an all-reduce depends on where a value lies in its bucket, so a fresh
    process would reduce its first step in another order than a process that is already running: resume would not be
    bit-exact. One pass before the first step puts every process, fresh or resumed, into the final layout.
    """
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [p.device for p in module.parameters() if p.device.type == "cuda"][:1]
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=devices):
            backward()
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
        module.zero_grad(set_to_none=True)
