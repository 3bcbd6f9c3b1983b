"""Mixed precision: matrix products by autocast, with weights that are cast to bf16 or fp16 for each use.

The weights that are trained, saved and averaged stay in float32. What the network computes with are copies in the
smaller type, so its activations are of that type too; gradients pass through the cast and are summed in float32. FSDP
casts what it gathers in the same way: a run computes the same with and without sharding.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

Function = Callable[..., Any]
COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The types of mixed precision; `none` has no type."""


def autocast(device: torch.device, compute: torch.dtype | None) -> AbstractContextManager[Any]:
    """Matrix products in the type `compute`, whatever the type of their inputs."""
    return nullcontext() if compute is None else torch.autocast(device.type, compute)


def with_cast_weights(function: Function, compute: torch.dtype | None) -> Function:
    """A function of a network and more, in which the network has its weights in the type `compute`."""
    if compute is None:
        return function

    def call(network: nn.Module, *args: Any) -> Any:
        with cast_weights(network, compute):
            return function(network, *args)

    return call


@contextmanager
def cast_weights(network: nn.Module, compute: torch.dtype | None) -> Iterator[None]:
    """The network with its weights in the type `compute`; a gradient of one is a gradient of the weight itself."""
    casts: dict[Tensor, Tensor] = {}  # a weight that is used in two places is cast once
    places: list[Place] = []
    for weights, name, weight in weight_places(network) if compute else ():
        if weight.is_floating_point() and weight.itemsize > compute.itemsize:  # type: ignore[union-attr]
            if weight not in casts:
                casts[weight] = weight.to(compute)
            places.append((weights, name, casts[weight]))
    with weights_at(places):
        yield


def cast_for_good(network: nn.Module, compute: torch.dtype | None) -> None:
    """Let a network that is not trained keep its weights in the type `compute`, for half the memory and no casts."""
    with cast_weights(network, compute):
        places = weight_places(network)
    kept = {weight: nn.Parameter(weight, requires_grad=False) for _, _, weight in places}
    for weights, name, weight in places:
        weights[name] = kept[weight]


Place = tuple[dict[str, Any], str, Tensor]
"""The parameters of a part of a network, a name among them, and a tensor there."""


def weight_places(network: nn.Module) -> list[Place]:
    """Every place of a weight, with the tensor that is there now."""
    return [
        (part._parameters, name, weight)
        for part in network.modules()
        for name, weight in part._parameters.items()
        if weight is not None
    ]


@contextmanager
def weights_at(places: list[Place]) -> Iterator[None]:
    """The tensors at these places instead of those that are there."""
    before = [weights[name] for weights, name, _ in places]
    for weights, name, weight in places:
        weights[name] = weight
    try:
        yield
    finally:
        for (weights, name, _), weight in zip(places, before):
            weights[name] = weight
