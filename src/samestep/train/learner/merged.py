"""The weights of a network with adapters as those of the plain network: what each adapter adds, added to its layer."""

import sys
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.parallel.wrap import full_tensor
from samestep.train.learner.lora import is_adapter_name, plain_name


@torch.no_grad()
def merged_weights(network: nn.Module, keep: bool = True) -> dict[str, Tensor]:
    """The full state of a network without its adapters, which are folded into the base, on the CPU and by the names
    that the network has without them. A network without adapters gives its state.

    Collective if the network is sharded; a rank that need not `keep` them gets nothing. Layers pass through the memory
    of the device one at a time.
    """
    layers = _lora_layers(network)
    merged: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if is_adapter_name(name) or ".original_module." in name:
            continue
        full = full_tensor(tensor.detach())
        layer = layers.get(name)
        if layer is not None:
            for adapter in layer.active_adapters:
                full = _with_adapter(full, layer, adapter, name)
        if keep:
            merged[plain_name(name)] = full.cpu()
    return merged


def _lora_layers(network: nn.Module) -> dict[str, Any]:
    """The layers with adapters, by the name of the weight that they are beside."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: part for name, part in network.named_modules() if isinstance(part, BaseTunerLayer)}
    for name, part in layers.items():
        if not isinstance(part, LoraLayer) or any(part.lora_variant):
            raise UserError(f"the adapter of {name!r} is no plain LoRA and cannot be merged here; use peft's own merge")
        idle = {*part.lora_A, *part.lora_embedding_A} - set(part.active_adapters)
        if idle:  # one that acts at times is neither left out nor added for good
            raise UserError(
                f"the adapters of {name!r} ({', '.join(sorted(idle))}) act one at a time and cannot be added to one "
                "base; use samestep.load, or export what was trained with --weights"
            )
    return {f"{name}.base_layer.weight": part for name, part in layers.items()}


def _with_adapter(weight: Tensor, layer: Any, adapter: str, name: str) -> Tensor:
    """A layer's weight plus what one adapter adds, computed in the adapter's type, in the weight's own type."""
    if adapter in layer.lora_embedding_A:
        first, second = full_tensor(layer.lora_embedding_A[adapter]), full_tensor(layer.lora_embedding_B[adapter])
    elif adapter in layer.lora_A:
        first, second = full_tensor(layer.lora_A[adapter].weight), full_tensor(layer.lora_B[adapter].weight)
        if layer.lora_B[adapter].bias is not None:
            raise UserError(f"the adapter of {name!r} has a bias and cannot be merged here; use peft's own merge")
    else:
        return weight
    # Of a convolution the second matrix is one of size 1, so that both are matrices over flattened windows.
    product = second.flatten(1) @ first.flatten(1) * layer.scaling[adapter]
    is_transposed = getattr(layer, "fan_in_fan_out", False) or adapter in layer.lora_embedding_A
    product = product.T if is_transposed else product.reshape(weight.shape)
    return (weight.to(product.dtype) + product).to(weight.dtype)
