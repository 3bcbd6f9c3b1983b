"""The network of a learner, beside its training: how else it is used, and its weights."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict

from samestep.core.errors import UserError
from samestep.parallel.precision import COMPUTE_DTYPES, autocast
from samestep.parallel.wrap import Parallel, local, uncompiled
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.lora import (
    base_state,
    frozen_names,
    has_adapters,
    has_frozen_base,
    merged_weights,
    without_adapters,
)
from samestep.train.learner.preparation import Choices, Preparation
from samestep.world.world import World


class LearnedNetwork:
    """A network on this rank's device, in full or sharded."""

    def __init__(self, name: str, parallel: Parallel, world: World, mixed_precision: str, choices: Choices) -> None:
        self.name, self.world, self._parallel = name, world, parallel
        self.has_adapters = has_adapters(parallel.inner)
        self.has_frozen_base = has_frozen_base(parallel.inner)
        """Whether what does not train is in no checkpoint: the base of adapters, or of a network that says so."""
        self._unsaved = frozen_names(parallel.inner) if self.has_frozen_base else set()
        self._compute = COMPUTE_DTYPES.get(mixed_precision)
        self._preparation = Preparation(name, parallel, world, choices, self._autocast)

    @property
    def module(self) -> nn.Module:
        """The module with the weights that are trained, to read and to fill them; `inference` is for its use."""
        return self._parallel.inner

    @contextmanager
    def inference(self) -> Iterator[nn.Module]:
        """The module itself for generation and validation: evaluation mode, no gradients, same arithmetic. In mixed
        precision its weights are casts meanwhile.

        A sharded module gathers its parts as it is called, so every rank must call it equally often.
        """
        inner = self._parallel.inner
        modes = [(part, part.training) for part in inner.modules()]  # a frozen part may be in evaluation mode for good
        inner.eval()
        try:
            with torch.no_grad(), self._computing():
                yield inner
        finally:
            for part, was_training in modes:
                part.training = was_training
            self._parallel.reshard()

    def uncompiled(self) -> AbstractContextManager[None]:
        """Inside, the network is called as it is: nothing is compiled or recorded for what is only tried."""
        return uncompiled(self._parallel)

    @contextmanager
    def adapters_off(self) -> Iterator[nn.Module]:
        """The module as `inference` gives it, without its adapters: the network as it was before anything was trained.

        It may be used inside this learner's own loss, before or after the module that the loss is given.
        """
        if not self.has_adapters:
            raise UserError(
                f"learner {self.name!r} has no adapters to switch off; make it with lora=Lora(...), or use "
                "bench.frozen(learner) for a copy of its first weights"
            )
        with self.inference() as module, without_adapters(module):
            yield module

    @contextmanager
    def held_constant(self) -> Iterator[nn.Module]:
        """The module itself for another learner's loss: differentiable in its inputs, its own weights held constant.

        What is computed inside leaves no gradient in them, also when the backward pass comes later. Not for a network
        that itself computes parts again in the backward pass; `activation_checkpointing` takes care of that.
        """
        with self._parallel.held_constant(), self._computing():
            yield self._parallel.inner

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Around a use of the module other than in an update, for the same arithmetic."""
        with self._preparation.attention(), self._autocast(), self._parallel.cast_weights():
            yield

    def _autocast(self) -> AbstractContextManager[Any]:
        return autocast(self.world.device, self._compute)

    def parameters(self) -> Iterator[nn.Parameter]:
        """The module's parameters."""
        return self._parallel.inner.parameters()

    def replicated_parameters(self) -> dict[str, nn.Parameter]:
        """Those that every rank holds in full, by name."""
        return {name: p for name, p in self._parallel.inner.named_parameters() if local(p) is p}

    def saved_parameters(self) -> dict[str, nn.Parameter]:
        """Those that a checkpoint holds, by name: all, or of a network with a frozen base those that train."""
        return {name: p for name, p in self._parallel.inner.named_parameters() if name not in self._unsaved}

    @property
    def waited(self) -> float | None:
        """Seconds that this rank waited for the others' gradients so far; None where that is not measured."""
        return self._parallel.seconds_waited

    def weights(self, full: bool = False) -> dict[str, Any]:
        """The module's state by its own names; `full` gathers a sharded one to the CPU of rank 0.

        Of a network with a frozen base: what trains, and buffers. Of one with adapters `merged_weights` gives all.
        """
        options = StateDictOptions(full_state_dict=full, cpu_offload=full, ignore_frozen_params=self.has_frozen_base)
        found = get_model_state_dict(self._parallel.inner, options=options)
        return {name: value for name, value in found.items() if name not in self._unsaved} if self._unsaved else found

    def weights_hash(self) -> str:
        """A hash of the weights as they are now, the same at any world size, and that of a frozen network with these
        weights; of a network with adapters that of its base. Every rank must call it."""
        return content_hash(base_state(self.module) if self.has_adapters else self.module.state_dict())

    def merged_weights(self) -> dict[str, Tensor]:
        """The weights of the network without adapters, with what they have learned added to its base, on the CPU of
        rank 0; nothing on other ranks. Every rank must call it."""
        return merged_weights(self._parallel.inner, keep=self.world.is_main)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Load full weights, the same on every rank."""
        options = StateDictOptions(full_state_dict=True, strict=not self.has_frozen_base)
        set_model_state_dict(self._parallel.inner, dict(weights), options=options)
