"""Building a module on the meta device, then allocating and filling it on its final device.

    class Net(nn.Module):
        def init_parameter(self, name: str, weight: Tensor) -> None:
            weight.zero_() if name.endswith("bias") else weight.normal_(0.0, 0.02)

If a learner gets a function that builds such a network (`bench.learner(lambda: Net())`), the network is built on the
meta device and filled parameter by parameter, and each rank keeps its own shard (see train/learner/initialization.py).
"""

from collections.abc import Callable
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

FillFunction = Callable[[nn.Module], None]
"""Sets the values of a module in place, on its device; of a sharded module, those of this rank's shards."""


_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")


def without_wrappers(name: str) -> str:
    """A name without the levels that torch.compile and activation checkpointing add."""
    return ".".join(level for level in name.split(".") if level not in _WRAPPERS)


@runtime_checkable
class ParameterInit(Protocol):
    """A network that can initialize each of its parameters separately.

    It must not hold tensors other than parameters and buffers: they would stay on the meta device. One that was built
    with its weights has the attribute `has_weights = True`, and keeps them.
    """

    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Fill a parameter in place; `name` is its name in `named_parameters`.

        `weight` is the full parameter on the CPU, in float32, without gradients. Random values come from torch's
        generator, which is seeded for this parameter, so they do not depend on what was drawn before.
        """


def build_uninitialized(make: Callable[[], nn.Module]) -> nn.Module:
    """The module that `make` builds, on the meta device, for a caller who will fill all of it.

    A module with a parameter or buffer that is not in its state dict, and so not in any file, is built as usual.
    """
    module = try_build_on_meta(make)
    if module is None:
        return make()
    fillable = module.state_dict().keys()
    names = chain(module.named_parameters(), module.named_buffers())
    return module if all(name in fillable for name, _ in names) else make()


def try_build_on_meta(make: Callable[[], nn.Module]) -> nn.Module | None:
    """The module that `make` builds, on the meta device; None if that fails, often because `make` reads a value.

    A mistake in `make` itself is raised later, when it is called as usual. Torch's generator does not change.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return make()
    except Exception:
        return None


def materialize(module: nn.Module, device: torch.device, fill: FillFunction | None = None) -> nn.Module:
    """The module on a device, filled by `fill` if it is given; the module may be sharded, or on the meta device."""
    if any(p.is_meta for p in module.parameters()):
        assert fill is not None, "a module on the meta device needs a function that fills it"
        _allocate(module, device)
    else:
        module = module.to(device)
    if fill is not None:
        fill(module)
    return module


def _allocate(module: nn.Module, device: torch.device) -> None:
    """Torch's `to_empty`, but tied parameters stay tied: `to_empty` alone makes a separate tensor for each name."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    module.to_empty(device=device)
    for first, *others in names.values():
        for other in others:
            owner, _, attribute = other.rpartition(".")
            setattr(module.get_submodule(owner), attribute, module.get_parameter(first))
