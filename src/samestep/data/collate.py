"""From samples to a batch: stacked, padded, or by a function of the recipe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from samestep.core.arguments import check_function, described
from samestep.core.errors import UserError, quoted

Collate = Callable[[list[Any]], Mapping[str, Tensor]]
"""From a list of samples to a batch: tensors by name, whose first dimension is the samples, in the same order."""
_PLAIN = (Tensor, np.ndarray, np.number, int, float)
"""What torch's own function can stack."""
RESERVED = ("ids", "live")
"""What the feed adds to every batch: which samples it has, and whether they count."""


def collate_by(collate: Collate | None, pad: Mapping[str, float] | None) -> Collate | None:
    """The way that a recipe chose; None: samples are stacked."""
    if collate is not None and pad is not None:
        raise UserError("give a feed either collate or pad, not both; a collate may call samestep.pad_rows itself")
    if collate is not None:
        check_function("the collate of a feed", collate, ["samples"])
    if pad is not None and not isinstance(pad, Mapping):
        raise UserError(f"pad must give names their values, such as pad={{'tokens': 0}}, but is {described(pad)}")
    return partial(pad_rows, pad=pad) if pad is not None else collate


def stack_rows(samples: Sequence[Any]) -> dict[str, Tensor]:
    """Samples of equal shapes as one batch; lists of numbers become tensors."""
    first = samples[0]
    if isinstance(first, Mapping) and all(isinstance(value, _PLAIN) for value in first.values()):
        try:
            return default_collate(list(samples))  # twice as fast
        except (KeyError, RuntimeError, TypeError, ValueError):
            pass  # the way below finds out what is wrong
    return {name: _stacked(name, values) for name, values in _columns(samples).items()}


def pad_rows(samples: Sequence[Any], pad: Mapping[str, float], multiple: int = 1) -> dict[str, Tensor]:
    """One batch, in which what `pad` names has that value behind its end, up to the longest of these samples or to the
    next multiple of `multiple`; all else is stacked. It is the first dimension of a sample that is padded.

    `pad_rows([{"tokens": [1, 2]}, {"tokens": [3]}], pad={"tokens": 0})` is `{"tokens": tensor([[1, 2], [3, 0]])}`.
    """
    columns = _columns(samples)
    unknown = [name for name in pad if name not in columns]
    if unknown:
        raise UserError(f"pad names {unknown[0]!r}, but a sample has {quoted(columns)}; name one of those")
    return {
        name: _padded(name, values, pad[name], multiple) if name in pad else _stacked(name, values)
        for name, values in columns.items()
    }


def check_batch(batch: Mapping[str, Tensor], size: int) -> Mapping[str, Tensor]:
    """Refuse what is no batch of `size` rows."""
    if not isinstance(batch, Mapping):
        raise UserError(f"a batch must be a dict of tensors, but collate gave a {type(batch).__name__}")
    for name, value in batch.items():
        if name in RESERVED:
            raise UserError(f"the data has {name!r}, a name that the feed itself gives to every batch; rename it")
        if not isinstance(value, Tensor):
            raise UserError(f"{name!r} must be a tensor in a batch, not a {type(value).__name__}; {_MAKE_TENSORS}")
        if value.dim() < 1 or len(value) != size:
            raise UserError(
                f"{name!r} has the shape {tuple(value.shape)} in a batch of {size} rows; its first dimension must be "
                "the rows"
            )
    return batch


_MAKE_TENSORS = "make tensors of it in the data, or by bench.feed(..., collate=...)"


def _columns(samples: Sequence[Any]) -> dict[str, list[Tensor]]:
    """The values of all samples by name."""
    first = samples[0]
    if not isinstance(first, Mapping):
        raise UserError(
            f"a sample must be a dict of tensors, but the data gave a {type(first).__name__}; return a dict such as "
            '{"x": ..., "y": ...}, or give collate=..., which makes such a dict of a list of samples'
        )
    for sample in samples:
        if sample.keys() != first.keys():
            raise UserError(f"samples must have the same names, but one has {quoted(first)} and one {quoted(sample)}")
    other = [f"{name!r} ({type(value).__name__})" for name, value in first.items() if not _is_numeric(value)]
    if other:
        raise UserError(
            f"the data has values that are no numbers: {', '.join(other)}; leave them out, or give collate=..., which "
            "makes tensors of a list of samples"
        )
    return {name: [_tensor(name, sample[name]) for sample in samples] for name in first}


def _is_numeric(value: Any) -> bool:
    """Whether it may become a tensor, at a glance."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value is not None and not isinstance(value, str | bytes | Mapping)


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        shown = repr(value)
        shown = shown if len(shown) <= 40 else f"{shown[:40]}..."
        raise UserError(f"a sample's {name!r} is {shown}, which is no tensor of numbers; {_MAKE_TENSORS}") from None


def _stacked(name: str, values: list[Tensor]) -> Tensor:
    shapes = sorted({tuple(value.shape) for value in values})
    if len(shapes) > 1:
        raise UserError(
            f"{name!r} has samples of different shapes, such as {shapes[0]} and {shapes[-1]}; give the feed a value to "
            f"pad with, pad={{{name!r}: 0}}, or a collate"
        )
    return default_collate(values)  # in a loader process straight into shared memory


def _padded(name: str, values: list[Tensor], value: float, multiple: int) -> Tensor:
    inner = sorted({tuple(each.shape[1:]) if each.dim() else None for each in values}, key=str)
    if len(inner) > 1 or inner[0] is None:
        raise UserError(f"{name!r} cannot be padded: its samples must have a length, and agree in all other dimensions")
    padded = pad_sequence(values, batch_first=True, padding_value=value)
    missing = -padded.shape[1] % multiple
    if not missing:
        return padded
    return torch.cat((padded, padded.new_full((len(values), missing, *inner[0]), value)), 1)
