"""Mixed precision: matrix products by autocast, with weights that are cast to bf16 or fp16 for each use.

The weights that are trained, saved and averaged stay in float32. What the network computes with are copies in the
smaller type, so its activations are of that type too. The gradient of one call passes through the cast; micro-batches
and ranks are summed in float32. FSDP casts what it gathers in the same way: a run computes the same with and without
sharding.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

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
    """The network with its weights in the type `compute`; a gradient of one is a gradient of the weight itself.

    Batch norms keep theirs, which must be of the type of their running statistics.
    """
    casts: dict[Tensor, Tensor] = {}  # a weight that is used in two places is cast once
    places: list[Place] = []
    for weights, name, weight in _cast_places(network) if compute else ():
        if _is_cast(weight.dtype, compute):
            if weight not in casts:
                casts[weight] = weight.to(compute)
            places.append((weights, name, casts[weight]))
    with weights_at(places):
        yield


def cast_for_good(network: nn.Module, compute: torch.dtype | None) -> None:
    """Let a network that is not trained keep its weights in the type `compute`, for half the memory and no casts."""
    kept: dict[Tensor, nn.Parameter] = {}
    for weights, name, weight in _cast_places(network) if compute else ():
        if _is_cast(weight.dtype, compute):
            if weight not in kept:
                kept[weight] = nn.Parameter(weight.to(compute), requires_grad=False)
            weights[name] = kept[weight]


Place = tuple[dict[str, Any], str, Tensor]
"""The parameters of a part of a network, a name among them, and a tensor there."""


def weight_places(network: nn.Module, without: Callable[[nn.Module], bool] = lambda part: False) -> list[Place]:
    """Every place of a weight, with the tensor that is there now; but not in some parts."""
    return [
        (part._parameters, name, weight)
        for part in network.modules()
        if not without(part)
        for name, weight in part._parameters.items()
        if weight is not None
    ]


def are_cast(network: nn.Module) -> bool:
    """Whether some weights are casts now: the weights themselves are Parameters."""
    return any(not isinstance(weight, nn.Parameter) for _, _, weight in weight_places(network))


def keeps_type(part: nn.Module) -> bool:
    """Whether the weights of a part of a network stay in their type in mixed precision."""
    return isinstance(part, _BatchNorm)


def _cast_places(network: nn.Module) -> list[Place]:
    return weight_places(network, without=keeps_type)


def _is_cast(dtype: torch.dtype, compute: torch.dtype | None) -> bool:
    return compute is not None and dtype.is_floating_point and dtype.itemsize >= compute.itemsize and dtype != compute


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
