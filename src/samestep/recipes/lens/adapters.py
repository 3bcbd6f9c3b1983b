"""Several adapters (LoRA) with names on one frozen network, of which one acts at a time, or none.

With none the network is what it was, to the bit. Which of them act is a state of the layers, so the blocks keep it for
activation checkpointing, which computes them again when it is another.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from samestep import Lora
from samestep.train.learner.initialization import seed_of
from samestep.train.learner.lora import add_adapters, drawn_adapter, is_adapter_name, is_linear

State = tuple[bool, str]
"""Whether all are off, and the one that acts if not."""


class NamedAdapters:
    """The adapters of one network."""

    def __init__(self, network: nn.Module, blocks: Mapping[str, Sequence[nn.Module]], lora: Lora, seed: int) -> None:
        """`blocks` are, by the adapter's name, those whose linear layers it is beside."""
        names = {adapter: _linear_names(network, some) for adapter, some in blocks.items()}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Already found a `peft_config`")  # several are meant
            warnings.filterwarnings("ignore", message="fan_in_fan_out is set to False")  # peft sets it right for GPT-2
            for adapter, targets in names.items():
                add_adapters(network, Lora(lora.rank, lora.alpha, 0.0, targets), adapter)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            for name, parameter in network.named_parameters():
                if is_adapter_name(name):
                    parameter.requires_grad_(True)  # peft lets the last adapter alone train
                    if not parameter.is_meta:
                        parameter.copy_(drawn_adapter(name, parameter, seed_of(seed, "adapters", name)))
        self._layers: list[Any] = [part for part in network.modules() if hasattr(part, "_disable_adapters")]
        self._state: State = (True, "")
        self._set(self._state)
        for block in {id(block): block for some in blocks.values() for block in some}.values():
            block.keep_state = self._keep  # type: ignore[assignment]

    @contextmanager
    def used(self, adapter: str) -> Iterator[None]:
        """The network with one of its adapters."""
        with self._in_state((False, adapter)):
            yield

    def _keep(self) -> Callable[[], AbstractContextManager[None]]:
        return partial(self._in_state, self._state)

    @contextmanager
    def _in_state(self, state: State) -> Iterator[None]:
        before = self._state
        self._set(state)
        try:
            yield
        finally:
            self._set(before)

    def _set(self, state: State) -> None:
        # peft's own switch also changes which parameters require gradients, which DDP and FSDP do not expect.
        self._state = state
        for layer in self._layers:
            layer._disable_adapters, layer._active_adapter = state[0], [state[1]]


def _linear_names(network: nn.Module, blocks: Sequence[nn.Module]) -> list[str]:
    """The full names of the linear layers in some blocks. One with an adapter has its own linear layer inside."""
    chosen = {part for block in blocks for part in block.modules()}
    found = []
    for name, part in network.named_modules():
        is_inside_adapter = is_adapter_name(name) or name.endswith(".base_layer")
        if part in chosen and not is_inside_adapter and (is_linear(part) or hasattr(part, "base_layer")):
            found.append(name)
    return found
