"""Which of torch's kernels computes attention: measured for the shapes that a network really uses.

Torch chooses by a fixed order, but which kernel is fastest depends on the GPU and on the shapes. All kernels compute
the same up to rounding.
"""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
"""By name; `math` is the one that computes everything, slowly and with much memory."""
_REPETITIONS = 5
_Layout = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a tensor."""


@dataclass(frozen=True)
class AttentionCall:
    """A call of scaled_dot_product_attention, without its values."""

    inputs: tuple[_Layout, _Layout, _Layout]
    """Queries, keys, values."""
    mask: _Layout | None
    options: tuple[tuple[str, Any], ...]
    """The other arguments, by name."""


@contextmanager
def recording_attention() -> Iterator[Counter[AttentionCall]]:
    """Around calls of a network: how often each kind of call was made. Nothing is compiled in here, since the recording
    would be compiled in."""
    calls: Counter[AttentionCall] = Counter()
    with torch.compiler.set_stance("force_eager"), _Recorder(calls):
        yield calls


def fastest_kernel(calls: Mapping[AttentionCall, int], device: torch.device) -> str | None:
    """The kernel with which these calls and their backward passes take the least time, where another one computes what
    it cannot. None: no fused kernel computes any of them. No random state changes."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        seconds = {call: _seconds_by_kernel(call, device) for call in calls}
    names = sorted({name for found in seconds.values() for name in found})
    return min(names, key=lambda name: _total(name, calls, seconds), default=None)


def _total(
    name: str, calls: Mapping[AttentionCall, int], seconds: Mapping[AttentionCall, Mapping[str, float]]
) -> float:
    """Of all calls; one that this kernel does not compute is computed by the fastest that does."""
    return sum(
        count * seconds[call].get(name, min(seconds[call].values(), default=0.0)) for call, count in calls.items()
    )


def attention_kernel(name: str | None) -> AbstractContextManager[None]:
    """Attention by this kernel wherever it can compute a call, and else by another; None: as torch chooses."""
    if name is None:
        return nullcontext()
    kernels = [KERNELS[name], *(kernel for other, kernel in KERNELS.items() if other != name)]
    return sdpa_kernel(kernels, set_priority=True)


class _Recorder(TorchFunctionMode):
    """Sees every call of a torch function."""

    def __init__(self, calls: Counter[AttentionCall]) -> None:
        super().__init__()
        self._calls = calls

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            self._calls[_describe(*args, **kwargs)] += 1
        return func(*args, **kwargs)


def _describe(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> AttentionCall:
    mask = None if attn_mask is None else _layout(attn_mask)
    options = {"dropout_p": dropout_p, "is_causal": is_causal, **options}
    return AttentionCall((_layout(query), _layout(key), _layout(value)), mask, tuple(sorted(options.items())))


def _layout(tensor: Tensor) -> _Layout:
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _seconds_by_kernel(call: AttentionCall, device: torch.device) -> dict[str, float]:
    """Of each fused kernel that computes such a call."""
    found = {}
    for name in KERNELS:
        if name != "math":
            try:
                found[name] = _seconds(call, name, device)
            except RuntimeError:  # it does not compute it, or needs more memory than there is
                continue
    return found


def _seconds(call: AttentionCall, name: str, device: torch.device) -> float:
    """Of the fastest of several passes, forward and backward; the first one may still load or build the kernel."""
    query, key, value = (_filled(layout, device).requires_grad_() for layout in call.inputs)
    mask = None if call.mask is None else _filled(call.mask, device)
    found = []
    with warnings.catch_warnings(), sdpa_kernel(KERNELS[name]):
        warnings.simplefilter("ignore")  # torch says why a kernel cannot be used
        for _ in range(1 + _REPETITIONS):
            _wait(device)
            begun = time.perf_counter()
            output = scaled_dot_product_attention(query, key, value, mask, **dict(call.options))
            output.backward(torch.ones_like(output))
            _wait(device)
            found.append(time.perf_counter() - begun)
    return min(found[1:])


def _filled(layout: _Layout, device: torch.device) -> Tensor:
    shape, strides, dtype = layout
    stored = [1 if stride == 0 else size for size, stride in zip(shape, strides)]  # the rest is expanded
    tensor = torch.empty_strided(stored, strides, dtype=dtype, device=device)
    return tensor.fill_(1 if dtype == torch.bool else 0.5).expand(shape).detach()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
