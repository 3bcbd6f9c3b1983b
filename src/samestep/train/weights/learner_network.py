"""The network of a learner before it is put on its device: built, with what fills it, in its type."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

import torch
from torch import nn

from samestep.core.arguments import check_function, described
from samestep.core.errors import UserError
from samestep.parallel.build import FillFunction, build_uninitialized
from samestep.train.learner.initialization import build_fresh
from samestep.train.learner.lora import Lora, brings_its_base, has_adapters, to_type
from samestep.train.weights.adapter_weights import build_adapted, refuse_built_adapters
from samestep.train.weights.first_weights import FirstWeights

WEIGHT_TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
"""The types that a network's weights may be in. Those of a learner may not be in float16, in which small updates are
lost: mixed_precision=fp16 keeps them in float32."""


@dataclass(frozen=True)
class LearnerNetwork:
    """A network, maybe on the meta device."""

    module: nn.Module
    fill: FillFunction | None
    """What sets its weights on the device; None: it has them."""
    begins_at_base: bool = False
    """Whether it has adapters that have no effect yet."""


def build_learner_network(
    given: nn.Module | Callable[[], nn.Module],
    first_weights: FirstWeights,
    *,
    name: str,
    lora: Lora | None,
    init_from: str | None,
    seed: int,
) -> LearnerNetwork:
    """The network that a recipe gives a learner, or the one that its function builds: without memory if it can be."""
    given = as_network(f"bench.learner {name!r}", given)
    if brings_its_base(given) and lora is None:
        assert isinstance(given, nn.Module)
        return LearnerNetwork(given, first_weights.of_trained(name, init_from))
    if lora is not None or has_adapters(given):
        initial, part = first_weights.of_adapted(name, lora, init_from)
        module, fill = build_adapted(
            given, lora, learner=name, seed=seed, initial=initial, initial_is_base=part in ("base", "both")
        )
        return LearnerNetwork(module, fill, begins_at_base=lora is not None and part not in ("adapters", "both"))
    initial = first_weights.of(name, init_from)
    if isinstance(given, nn.Module):
        return LearnerNetwork(given, initial)
    module, fill = (build_uninitialized(given), initial) if initial else build_fresh(given, seed, name)
    if brings_its_base(module):
        raise UserError(
            f"the network of learner {name!r} has a frozen base, which no checkpoint brings back; give bench.learner "
            "the network itself, not a function that builds it"
        )
    refuse_built_adapters(module)
    return LearnerNetwork(module, fill)


def as_network(what: str, given: nn.Module | Callable[[], nn.Module]) -> nn.Module | Callable[[], nn.Module]:
    """What a recipe gave as a network, or as a function that builds one; refuses anything else."""
    if isinstance(given, nn.Module):
        return given
    if not callable(given):
        raise UserError(f"{what} was given {described(given)}; give it a network, or a function that builds one")
    if isinstance(given, type):
        check_function(f"{what} was given a class, which it calls to build the network; the class", given, [])
    else:
        check_function(f"{what} was given a function, which it calls to build the network; it", given, [])

    def build() -> nn.Module:
        module = given()
        if not isinstance(module, nn.Module):
            raise UserError(f"{what} was given a function that returns {described(module)}; let it return a network")
        return module

    return build


def in_its_type(module: nn.Module, run_type: str, own_type: str | None, unused: Sequence[str]) -> nn.Module:
    """The module in its type (in a proof that of the proof), with parameters frozen that are not trained."""
    name = run_type if own_type is None or run_type == "float64" else own_type
    trained = {known: dtype for known, dtype in WEIGHT_TYPES.items() if known != "float16"}
    if name not in trained:
        raise UserError(f"a learner's dtype is {', '.join(trained)}, not {name!r}")
    module = to_type(module, trained[name])
    for name, parameter in module.named_parameters():
        if any(fnmatch(name, pattern) for pattern in unused):
            parameter.requires_grad_(False)  # before wrapping: DDP waits for the gradient of every other one
    return module
