"""Building a module without memory, and giving it memory and values where it will lie.

    class Net(nn.Module):
        def init_parameter(self, name: str, weight: Tensor) -> None:
            weight.zero_() if name.endswith("bias") else weight.normal_(0.0, 0.02)

A network that is then given to a learner as a function that builds it (`bench.learner(lambda: Net())`) is built without
memory and filled parameter by parameter, each rank keeping its own part (see train/initialization.py).
"""

from collections.abc import Callable
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

Fill = Callable[[nn.Module], None]
"""Gives a module its values, in place, where it lies: whole, or this rank's part of it."""


@runtime_checkable
class ParameterInit(Protocol):
    """A network that can draw the first values of each of its parameters alone.

    It holds no tensor that is neither a parameter nor a buffer, for such a one would be left without memory.
    """

    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Fill a whole parameter in place; `name` is the one that it has in `named_parameters`.

        `weight` lies on the CPU, in float32, without gradients. Random values come from torch's generator, which was
        seeded for this parameter alone, so they depend on nothing that was drawn before.
        """


def build_blank(make: Callable[[], nn.Module]) -> nn.Module:
    """What `make` builds, without memory, for one who will fill all of it.

    A module with a part that is not in its state, and so not in any file, is built as usual.
    """
    module = build_on_meta(make)
    if module is None:
        return make()
    fillable = module.state_dict().keys()
    names = chain(module.named_parameters(), module.named_buffers())
    return module if all(name in fillable for name, _ in names) else make()


def build_on_meta(make: Callable[[], nn.Module]) -> nn.Module | None:
    """What `make` builds, without memory; None where that fails, often because it looks at a number on the way.

    A mistake in `make` itself shows again when it is called as usual. Torch's generator is left as it was.
    """
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            return make()
    except Exception:
        return None


def place(module: nn.Module, device: torch.device, fill: Fill | None = None) -> nn.Module:
    """A module, which may be sharded or without memory, on a device; with the values of `fill`, if it is given."""
    if any(p.is_meta for p in module.parameters()):
        assert fill is not None, "a module without memory must get its values from somewhere"
        _take_memory(module, device)
    else:
        module = module.to(device)
    if fill is not None:
        fill(module)
    return module


def _take_memory(module: nn.Module, device: torch.device) -> None:
    """Torch's `to_empty`, which would give each name of a shared parameter a tensor of its own: they stay one."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    module.to_empty(device=device)
    for first, *others in names.values():
        for other in others:
            owner, _, own = other.rpartition(".")
            setattr(module.get_submodule(owner), own, module.get_parameter(first))
