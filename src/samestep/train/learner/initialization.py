"""The initial weights of a network that begins from the seed: the same at any world size, in any mode, on any device.

A network that offers `init_parameter` (`ParameterInit` in parallel/build.py) gets them parameter by parameter, each
from a generator that is seeded by the run's seed and the names of learner and parameter. A rank draws a full parameter
and keeps its own shard, so there is never more than one full parameter in its memory. Any other network is built in
full on every rank from the run's seed, and sharded afterwards.
"""

import hashlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from samestep.checkpoint.weight_sources import copy_into
from samestep.core.errors import UserError
from samestep.parallel.build import FillFunction, ParameterInit, try_build_on_meta


def build_fresh(make: Callable[[], nn.Module], seed: int, learner: str) -> tuple[nn.Module, FillFunction | None]:
    """A network, and the function that fills it with initial weights on its device; None where it has them already.

    A network with buffers is built with memory, because only its own code knows their values; its parameters are still
    drawn.
    """
    blank = try_build_on_meta(make)
    can_stay_on_meta = blank is not None and _is_drawn(blank) and not any(True for _ in blank.buffers())
    module = blank if blank is not None and can_stay_on_meta else make()
    return module, partial(draw_parameters, seed=seed, learner=learner) if _is_drawn(module) else None


def _is_drawn(module: nn.Module) -> bool:
    return isinstance(module, ParameterInit) and not getattr(module, "has_weights", False)


@torch.no_grad()
def draw_parameters(
    module: nn.Module, seed: int, learner: str, known_as: Callable[[str], str | None] = lambda name: name
) -> None:
    """FillFunction a module that offers `init_parameter`, sharded or not; torch's generator is left as it was.

    `known_as` gives the name under which `init_parameter` knows a parameter; None: it is not drawn.
    """
    assert isinstance(module, ParameterInit)
    with torch.random.fork_rng(devices=[]):
        for own_name, parameter in module.named_parameters():  # one tensor under two names comes once
            name = known_as(own_name)
            if name is None:
                continue
            drawn = partial(_drawn, module, name, parameter, seed_of(seed, learner, name))
            copy_into(parameter, lambda part: drawn() if part is None else drawn()[part])  # noqa: B023 (called at once)


def _drawn(network: ParameterInit, name: str, parameter: Tensor, seed: int) -> Tensor:
    """The initial values of a full parameter.

    Always drawn in float32: torch draws other numbers for other types, and a run in float64 (a proof of one in float32)
    or in bfloat16 should begin with the same ones, up to rounding.
    """
    if parameter.is_floating_point():
        weight = torch.full(parameter.shape, torch.nan, dtype=torch.float32)
    else:
        weight = torch.zeros(parameter.shape, dtype=parameter.dtype)
    torch.default_generator.manual_seed(seed)  # of the CPU alone: torch.manual_seed would touch every device's
    network.init_parameter(name, weight)
    if weight.sum().isnan():
        raise UserError(f"init_parameter left values of {name!r} undefined; fill all of `weight`, in place")
    return weight


def seed_of(seed: int, learner: str, name: str) -> int:
    """A seed of 32 bits, which is all that torch's generator on the CPU uses."""
    return int.from_bytes(hashlib.sha256(repr((seed, learner, name)).encode()).digest()[:4], "big")
