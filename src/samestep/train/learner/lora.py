"""LoRA: a network whose weights are frozen and whose linear layers get small trained matrices beside them.

    policy = bench.learner(make_model, lora=Lora(rank=8, alpha=16))
    with policy.adapters_off() as reference: ...     # the same network without what was trained

The library peft makes the layers. The network stays the object it was: its own class and methods, with adapters inside.
What trains is in checkpoints; the base is named there by a hash. A network that already has adapters is taken as it is.
"""

import math
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep.checkpoint.weight_sources import copy_into
from samestep.core.errors import UserError
from samestep.core.near_names import nearest
from samestep.parallel.wrap import full_tensor
from samestep.train.learner.dropout import keyed_dropout
from samestep.train.learner.initialization import seed_of

ADAPTER = "default"
"""The name that peft gives to the only adapter of a network."""
ALL_LINEAR = "all-linear"
_OUTER = "base_model.model."
_NAMED = re.compile(r"((?:^|\.)lora_[A-Za-z_]+)\.(?!weight$|bias$)[^.]+")
_ADAPTER_PART = re.compile(r"(^|\.)lora_")


@dataclass(frozen=True)
class Lora:
    """Which adapters a network gets."""

    rank: int = 8
    """Rows of the smaller matrices."""
    alpha: float = 16.0
    """What an adapter adds is multiplied by alpha / rank."""
    dropout: float = 0.0
    """Dropout of an adapter's input; its masks are keyed by the sample."""
    targets: str | Sequence[str] = ALL_LINEAR
    """The layers: `all-linear` (but the output head of a language model), or the last parts of their names."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.rank < 1:
            raise UserError(f"Lora(rank={self.rank}) has no adapter to train; choose a rank of 1 or more")
        if not 0 <= self.dropout < 1:
            raise UserError(f"Lora(dropout={self.dropout}) must be at least 0 and below 1")
        if isinstance(self.targets, str) and self.targets != ALL_LINEAR:
            raise UserError(f"Lora(targets={self.targets!r}) must be {ALL_LINEAR!r} or a list of names of layers")


def add_adapters(network: nn.Module, lora: Lora, adapter: str = ADAPTER) -> nn.Module:
    """The network with adapters, everything else frozen. Their values are drawn later, by `draw_adapters`.

    A network may get several, each with a name of its own; peft lets only the last of them train and act.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError(
            'lora=Lora(...) needs the library peft; install it with: pip install "samestep[lora]"'
        ) from error
    if has_adapters(network) and adapter == ADAPTER:
        raise UserError("the network has adapters already; leave out lora=..., or give the network without them")
    names = _target_names(network, lora.targets)
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="|".join(re.escape(name) for name in names),  # a text is matched in full, a list by endings
    )
    on_meta = any(parameter.is_meta for parameter in network.parameters())
    try:
        with torch.random.fork_rng(devices=[]):  # they are drawn again by name
            inject_adapter_in_model(settings, network, adapter, low_cpu_mem_usage=on_meta)
    except ValueError as error:  # a layer of another kind
        raise UserError(f"peft cannot add adapters here ({error}); name other layers in Lora(targets=[...])") from error
    for part in _adapter_layers(network):
        keyed_dropout(part.lora_dropout)
    return network


def _target_names(network: nn.Module, targets: str | Sequence[str]) -> list[str]:
    """The full names of the layers that get adapters; refuses a target that is nowhere in the network."""
    if targets == ALL_LINEAR:
        find_head = getattr(network, "get_output_embeddings", None)
        head = find_head() if find_head else None
        linear = [(name, part) for name, part in network.named_modules() if is_linear(part)]
        names = [name for name, part in linear if part is not head and name]
        if not names:
            raise UserError(f"{type(network).__name__} has no linear layer inside that could get an adapter")
        return names
    every = [name for name, _ in network.named_modules() if name]
    found = {target: [name for name in every if name == target or name.endswith(f".{target}")] for target in targets}
    for target in targets:
        if not found[target]:
            close = nearest(target, sorted({name.rpartition(".")[2] for name in every}), least=0.3)
            raise UserError(
                f"Lora(targets=...) names {target!r}, which is no layer of {type(network).__name__}"
                + (f"; did you mean {' or '.join(close)}?" if close else "; name layers by the end of their names")
            )
    if not found:
        raise UserError("Lora(targets=[]) names no layer; name some, or use 'all-linear'")
    return sorted({name for names in found.values() for name in names})


def is_linear(part: nn.Module) -> bool:
    """Whether a layer is linear; so is transformers' Conv1D, whose weight is stored transposed."""
    is_conv1d = type(part).__name__ == "Conv1D" and type(part).__module__.startswith("transformers.")
    return is_conv1d or isinstance(part, nn.Linear)


def has_adapters(network: object) -> bool:
    """Whether a network has adapters of peft, whoever added them."""
    return isinstance(network, nn.Module) and any(True for _ in _adapter_layers(network))


def has_frozen_base(network: object) -> bool:
    """Whether what does not require gradients in a network is its base, which is in no checkpoint but named there by a
    hash: that of its adapters, or that of a network with the attribute `has_frozen_base = True`."""
    return has_adapters(network) or brings_its_base(network)


def brings_its_base(network: object) -> bool:
    """Whether a network says that it has a frozen base, which its recipe gives it anew at every start. It may have
    adapters too, several of them and with names of their own."""
    return isinstance(network, nn.Module) and getattr(network, "has_frozen_base", False) is True


def _adapter_layers(network: nn.Module) -> Iterator[Any]:
    """The layers with adapters; there are none as long as nobody has imported peft."""
    if "peft" not in sys.modules:
        return
    from peft.tuners.tuners_utils import BaseTunerLayer

    yield from (part for part in network.modules() if isinstance(part, BaseTunerLayer))


def plain_name(name: str) -> str:
    """The name that a weight has without peft: that of the network for a weight of the base; that in an adapter file,
    without peft's prefix, for a weight of an adapter."""
    name = name.removeprefix(_OUTER).replace(".base_layer.", ".")
    return _NAMED.sub(r"\1", re.sub(r"\.modules_to_save\.[^.]+\.", ".", name))


def is_adapter_name(name: str) -> bool:
    """Whether a weight of this name belongs to an adapter."""
    return _ADAPTER_PART.search(name) is not None


def trained_names(network: nn.Module) -> set[str]:
    return {name for name, p in network.named_parameters(remove_duplicate=False) if p.requires_grad}


def frozen_names(network: nn.Module) -> set[str]:
    """The names of the parameters that do not train; one tensor may have several."""
    return {name for name, p in network.named_parameters(remove_duplicate=False) if not p.requires_grad}


def base_parameters(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that are in no checkpoint, by their names without adapters."""
    frozen = ((n, p) for n, p in network.named_parameters() if not p.requires_grad and not is_adapter_name(n))
    return {plain_name(name): parameter.detach() for name, parameter in frozen}


def base_state(network: nn.Module) -> dict[str, Tensor]:
    """All that a network has without its adapters, buffers too, by the names it has without them."""
    state = ((name, tensor) for name, tensor in network.state_dict().items() if not is_adapter_name(name))
    return {plain_name(name): tensor for name, tensor in state}


def to_type(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The network in a type. Where it has a frozen base only what trains is, and the base stays in the type it was
    loaded in; but float64 is for proofs, which need all of the arithmetic in it."""
    if dtype == torch.float64 or not has_frozen_base(network):
        return network.to(dtype)
    for parameter in network.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(dtype)
    return network


@torch.no_grad()
def draw_adapters(network: nn.Module, seed: int, learner: str) -> None:
    """First values of the adapters, each from a generator that is seeded by its name: the same at any world size."""
    with torch.random.fork_rng(devices=[]):
        for name, parameter in network.named_parameters():
            if is_adapter_name(name):
                weight = drawn_adapter(name, parameter, seed_of(seed, learner, plain_name(name)))
                copy_into(parameter, lambda part: weight if part is None else weight[part])  # noqa: B023 (called at once)


def drawn_adapter(name: str, parameter: Tensor, seed: int) -> Tensor:
    """First values as peft and the paper have them: the product of both matrices is zero at first. In float32 whatever
    their type; from torch's own generator, which is seeded for it."""
    weight = torch.zeros(parameter.shape, dtype=torch.float32)
    torch.default_generator.manual_seed(seed)
    if ".lora_A." in f".{name}":
        nn.init.kaiming_uniform_(weight, a=math.sqrt(5))
    elif ".lora_embedding_B." in f".{name}":
        nn.init.normal_(weight)
    return weight


@contextmanager
def without_adapters(network: nn.Module) -> Iterator[None]:
    # peft's own switch also changes which parameters require gradients, which DDP and FSDP do not expect.
    parts = [part for part in network.modules() if hasattr(part, "_disable_adapters")]
    before = [part._disable_adapters for part in parts]
    for part in parts:
        part._disable_adapters = True  # type: ignore[assignment]
    try:
        yield
    finally:
        for part, value in zip(parts, before):
            part._disable_adapters = value


@torch.no_grad()
def merged_weights(network: nn.Module, keep: bool = True, adapter: str | None = None) -> dict[str, Tensor]:
    """The full state of a network without its adapters, which are folded into the base, on the CPU and by the names
    that the network has without them. A network without adapters gives its state.

    `adapter` is the one that is meant, where there are several. Collective if the network is sharded; a rank that need
    not `keep` them gets nothing. Layers pass through the memory of the device one at a time.
    """
    layers = _lora_layers(network, adapter)
    merged: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if is_adapter_name(name) or ".original_module." in name:
            continue
        full = full_tensor(tensor.detach())
        layer = layers.get(name)
        if layer is not None:
            for acting in [adapter] if adapter else layer.active_adapters:
                full = _with_adapter(full, layer, acting, name)
        if keep:
            merged[plain_name(name)] = full.cpu()
    return merged


def _lora_layers(network: nn.Module, adapter: str | None = None) -> dict[str, Any]:
    """The layers with adapters, or with this one, by the name of the weight that they are beside."""
    if "peft" not in sys.modules:
        return {}
    from peft.tuners.lora import LoraLayer
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = {name: part for name, part in network.named_modules() if isinstance(part, BaseTunerLayer)}
    for name, part in layers.items():
        if not isinstance(part, LoraLayer) or any(part.lora_variant):
            raise UserError(f"the adapter of {name!r} is no plain LoRA and cannot be merged here; use peft's own merge")
        idle = _adapters_of(part) - set(part.active_adapters)
        if idle and adapter is None:  # one that acts at times is neither left out nor added for good
            raise UserError(
                f"the adapters of {name!r} ({', '.join(sorted(idle))}) act one at a time and cannot be added to one "
                "base; use samestep.load, or export what was trained with --weights"
            )
    chosen = {name: part for name, part in layers.items() if adapter is None or adapter in _adapters_of(part)}
    return {f"{name}.base_layer.weight": part for name, part in chosen.items()}


def _adapters_of(layer: Any) -> set[str]:
    return {*layer.lora_A, *layer.lora_embedding_A}


def adapter_weights(network: nn.Module, adapter: str | None = None) -> tuple[Any, dict[str, Tensor]]:
    """An adapter, or the only one, as peft saves it: its configuration, and the weights by the names in its files."""
    from peft import LoraConfig

    adapter = adapter or next(name for part in _lora_layers(network).values() for name in part.active_adapters)
    layers = {name.removesuffix(".base_layer.weight"): part for name, part in _lora_layers(network, adapter).items()}
    shapes = {
        (part.r[adapter], part.lora_alpha[adapter], getattr(part, "fan_in_fan_out", False)) for part in layers.values()
    }
    if len(shapes) != 1:
        raise UserError(
            "the adapters differ from layer to layer, which one folder of peft cannot say; add them to the base"
        )
    ((rank, alpha, is_transposed),) = shapes
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=sorted(layers), fan_in_fan_out=is_transposed)
    state = {
        name: tensor
        for name, tensor in network.state_dict().items()
        if is_adapter_name(name) and adapter in name.split(".")[-2:]
    }
    return config, {_OUTER + plain_name(name): full_tensor(tensor.detach()).cpu() for name, tensor in state.items()}


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
