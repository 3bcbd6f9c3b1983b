"""Recording what a learner computes for a micro-batch as CUDA graphs: one of the call, one of its backward pass.

A network that is called for one token after the other makes the device wait for the host, which takes longer to start
kernels than the device to run them. A graph starts all of them together. Nothing is compiled: they are the kernels of
the network as it is, so a recording is made in seconds.

Only a network that says `is_recordable = True` is recorded: what it computes may depend on its weights and on the
tensors of the batch, not on a Python number that changes from step to step, nor on torch's random generators.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from samestep.parallel.compiling import MOST_SHAPES, describe, function_key
from samestep.parallel.cuda_graphs import capture, recording_stream
from samestep.parallel.precision import Function, Place, weight_places, weights_at, with_cast_weights

Batch = Mapping[str, Tensor]


def is_recordable(network: nn.Module) -> bool:
    """Whether a network says that its calls can be recorded."""
    return bool(getattr(network, "is_recordable", False))


class LossGraphs:
    """Records functions at their first call with gradients, and replays them from then on. It stands where a
    `LossCompiler` may stand."""

    cuda_graphs = True
    tool, how = "torch.cuda.CUDAGraph", "recorded as CUDA graphs"

    def __init__(self, on_replay: Callable[[], None] = lambda: None) -> None:
        """`on_replay` is called where the network's own hooks would be: a replay calls none of them."""
        self.enabled = True
        self.failure: str | None = None
        """Why a function could not be recorded; it runs as it is."""
        self._on_replay = on_replay
        self._functions: dict[Hashable, Function] = {}
        self._recordings: dict[Hashable, _Recording] = {}

    def is_new(self, function: Function) -> bool:
        """Whether a function was not called yet; one that is made anew in every step is the same one."""
        return self.enabled and function_key(function) not in self._functions

    def __call__(self, function: Function, compute: torch.dtype | None = None, args: Sequence[Any] = ()) -> Function:
        """The function with weights that are cast to `compute`, recorded unless that was given up, or no gradients are
        asked for: then the weights may be others."""
        plain = with_cast_weights(function, compute)
        if not (self.enabled and torch.is_grad_enabled()):
            return plain
        key = function_key(function)
        if self._functions.setdefault(key, function) != function:  # the same code with other closures
            return plain
        shapes = tuple((name, value.shape) for batch in args for name, value in batch.items())
        return partial(self._call, (key, shapes), plain)

    def _call(self, key: Hashable, plain: Function, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        recording = self._recordings.get(key)
        if recording is None or not recording.is_current():
            if self.failure or (recording is None and len(self._recordings) >= MOST_SHAPES):
                found: Mapping[str, Tensor] = plain(network, batch)
                return found
            try:
                recording = self._recordings[key] = _Recording(plain, network, batch)
            except RuntimeError as error:
                self.failure = describe(error)
                return self._call(key, plain, network, batch)
        self._on_replay()
        return recording(batch)


class _Recording:
    """The graphs of one function with batches of one shape."""

    def __init__(self, function: Function, network: nn.Module, batch: Batch) -> None:
        self._inputs = {name: value.clone() for name, value in batch.items()}
        self._trained = [weight for weight in network.parameters() if weight.requires_grad]
        # Gradients of other tensors in the same memory: DDP has made gradient nodes of the weights on another stream.
        aliases: dict[Tensor, Tensor] = {weight: nn.Parameter(weight.detach()) for weight in self._trained}
        self._aliases = list(aliases.values())
        places: list[Place] = [
            (part, name, aliases[weight]) for part, name, weight in weight_places(network) if weight in aliases
        ]
        self._read = [*network.parameters(), *network.buffers()]
        self._places = self._memory()
        self.replays = 0
        device = next(iter(batch.values())).device
        call = partial(_call_without_cached_casts, function, network, self._inputs, device)
        torch.cuda.empty_cache()  # a recording has memory of its own
        with recording_stream(device), weights_at(places):
            rows = call()  # once as it is, for what is allocated at the first call
            self.is_trained = [value.requires_grad for value in rows.values()]
            self.incoming = [torch.zeros_like(value) for value in rows.values() if value.requires_grad]
            self._gradients_of(rows)
            self.forward, rows = capture(call)
            self.backward, self.gradients = capture(partial(self._gradients_of, rows), pool=self.forward.pool())
        self.rows = {name: value.detach() for name, value in rows.items()}

    def is_current(self) -> bool:
        """Whether all weights are still where they were."""
        return self._memory() == self._places

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Values a row, which the next call overwrites."""
        torch._foreach_copy_(list(self._inputs.values()), [batch[name] for name in self._inputs])
        return dict(zip(self.rows, _Replay.apply(self, *self._trained), strict=True))

    def _gradients_of(self, rows: Batch) -> tuple[Tensor | None, ...]:
        values = [value for value in rows.values() if value.requires_grad]
        with torch.autocast(values[0].device.type, enabled=False):
            return torch.autograd.grad(values, self._aliases, self.incoming, allow_unused=True)

    def _memory(self) -> list[int]:
        return [weight.data_ptr() for weight in self._read]


def _call_without_cached_casts(
    function: Function, network: nn.Module, inputs: Batch, device: torch.device
) -> Mapping[str, Tensor]:
    """Autocast keeps casts of weights for a second use: they would be memory that a graph reads after it is freed."""
    dtype, enabled = torch.get_autocast_dtype(device.type), torch.is_autocast_enabled(device.type)
    with torch.autocast(device.type, dtype, enabled=enabled, cache_enabled=False):
        rows: Mapping[str, Tensor] = function(network, dict(inputs))
    return rows


class _Replay(torch.autograd.Function):
    """The graphs as a function of the trained weights, so that their gradients are summed and reduced as always."""

    @staticmethod
    def forward(ctx: Any, recording: _Recording, *trained: Tensor) -> tuple[Tensor, ...]:
        recording.forward.replay()
        recording.replays += 1
        ctx.recording, ctx.number = recording, recording.replays
        found = tuple(value.detach() for value in recording.rows.values())
        ctx.mark_non_differentiable(
            *(value for value, is_trained in zip(found, recording.is_trained) if not is_trained)
        )
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Tensor | None, ...]:
        recording: _Recording = ctx.recording
        assert ctx.number == recording.replays, "what the backward pass needs was overwritten by another call"
        wanted = [value for value, is_trained in zip(incoming, recording.is_trained, strict=True) if is_trained]
        torch._foreach_copy_(recording.incoming, wanted)
        recording.backward.replay()
        return None, *(None if gradient is None else gradient.detach() for gradient in recording.gradients)
