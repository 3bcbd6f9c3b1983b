"""Networks that are used and never trained: a teacher, or the reference that a policy is held against.

    teacher = bench.frozen(make_teacher, name="teacher", source="teacher.safetensors")
    reference = bench.frozen(policy)               # a copy of the learner's first weights
    with reference.inference() as network: ...     # or reference(inputs)

They are in no checkpoint. The hash of their content is recorded by the first launch and compared by every later one.
The first weights of a learner are not known any more once it was trained. If they came from a file, a checkpoint or an
earlier stage, they are read from there again; else their copy is stored among the stage's artifacts.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from samestep.checkpoint.safetensor_files import SafetensorsFiles, write_safetensors_file
from samestep.checkpoint.weight_sources import copy_into
from samestep.core.errors import UserError
from samestep.parallel.attention_kernels import attention_kernel
from samestep.parallel.build import FillFunction, materialize
from samestep.parallel.precision import autocast, cast_for_good
from samestep.parallel.wrap import full_tensor, shard
from samestep.train.learner.learner import Learner
from samestep.train.learner.lora import trained_names
from samestep.world.world import World


class Frozen:
    """A network without gradients, in evaluation mode."""

    def __init__(
        self, name: str, enter: Callable[[], AbstractContextManager[nn.Module]], weights_hash: Callable[[], str]
    ) -> None:
        self.name, self._enter, self._weights_hash = name, enter, weights_hash

    def weights_hash(self) -> str:
        """A hash of its weights, the same at any world size; see `Learner.weights_hash`. Every rank must call it."""
        return self._weights_hash()

    def inference(self) -> AbstractContextManager[nn.Module]:
        """The network, without gradients and in the arithmetic of the run's mixed precision.

        Of a sharded one every rank must call the network equally often.
        """
        return self._enter()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the network returns."""
        with self.inference() as network:
            return network(*args, **kwargs)


def place_frozen(
    module: nn.Module, world: World, fill: FillFunction | None, sharded: bool, compute: torch.dtype | None
) -> nn.Module:
    """A network on this rank's device, in full or sharded."""
    module = module.requires_grad_(False).eval()
    if sharded and world.control is not None:
        shard(module, world, compute)
    return materialize(module, world.device, fill)


def ready_frozen(
    name: str,
    module: nn.Module,
    world: World,
    compute: torch.dtype | None,
    kernel: str | None,
    weights_hash: str,
) -> Frozen:
    """A network that was placed. Its weights are cast to the type of mixed precision once, since they never change.
    `kernel` computes its attention."""
    if not isinstance(module, FSDPModule):
        cast_for_good(module, compute)

    @contextmanager
    def enter() -> Iterator[nn.Module]:
        try:
            with torch.no_grad(), attention_kernel(kernel), autocast(world.device, compute):
                yield module
        finally:
            if isinstance(module, FSDPModule):
                module.reshard()  # the outermost unit stays gathered after a forward pass

    return Frozen(name, enter, lambda: weights_hash)


def fill_from(learner: Learner) -> FillFunction:
    """Fills a network of the same kind with the weights that a learner has now. Collective for a sharded one."""

    def fill(module: nn.Module) -> None:
        weights = learner.weights()
        for name, target in module.state_dict().items():
            full = full_tensor(weights[name].detach())
            copy_into(target, lambda part: full if part is None else full[part])  # noqa: B023 (called at once)

    return fill


def write_copy(path: Path, tensors: Mapping[str, Tensor], world: World) -> None:
    """Store full copies of tensors in one file, written by rank 0. Collective: it fails on all ranks or on none."""
    copies = {}
    for name, tensor in tensors.items():
        full = full_tensor(tensor.detach())
        if world.is_main:
            copies[name] = full.cpu().clone()  # two names of one tensor would be refused

    def write() -> None:
        if world.is_main:
            write_safetensors_file(path, copies)

    world.run_on_all_ranks(f"writing {path}", write)


def read_copy(path: Path) -> SafetensorsFiles:
    """What `write_copy` stored."""
    if not path.exists():
        raise UserError(
            f"{path} is gone, which holds a copy of a learner's first weights that this run needs; put it back, or "
            "start a new run"
        )
    return SafetensorsFiles(path)


class FirstAdapters:
    """The first weights of a learner whose adapters did not begin with zero: its base with a copy of these adapters."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._copies: list[tuple[nn.Module, str, nn.Module]] = []
        self.tensors: dict[str, Tensor] = {}
        """The copied adapters, by name, in full."""
        trained = trained_names(learner.module)
        for outer_name, outer in list(learner.module.named_modules()):
            for name, part in outer.named_children():
                prefix = f"{outer_name}.{name}" if outer_name else name
                if any(f"{prefix}.{own}" in trained for own, _ in part.named_parameters(recurse=False)):
                    twin = _copy_of_part(part)
                    self._copies.append((outer, name, twin))
                    self.tensors |= {f"{prefix}.{own}": p for own, p in twin.named_parameters(recurse=False)}

    @contextmanager
    def in_use(self) -> Iterator[nn.Module]:
        """The learner's network with them. Modules are exchanged, not values, which a backward pass may still need."""
        self._swap()
        try:
            with self._learner.inference() as module:
                yield module
        finally:
            self._swap()

    def _swap(self) -> None:
        self._copies = [(outer, name, _exchange(outer, name, part)) for outer, name, part in self._copies]


def _copy_of_part(part: nn.Module) -> nn.Module:
    """A module that shares everything with `part` but its parameters, which are full copies."""
    twin = copy.copy(part)
    own = {
        name: None if p is None else nn.Parameter(full_tensor(p.detach()).clone(), requires_grad=False)
        for name, p in part._parameters.items()
    }
    twin.__dict__["_parameters"] = own
    return twin


def _exchange(outer: nn.Module, name: str, part: nn.Module) -> nn.Module:
    before = outer._modules[name]
    assert before is not None
    outer._modules[name] = part
    return before
