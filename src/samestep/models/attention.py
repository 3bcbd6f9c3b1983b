"""Which columns a token attends to, its position, and the keys and values of earlier tokens.

A row of tokens may have padding anywhere. An attention mask [rows, columns] is true where there is a real token. With a
cache it has a column for every cached token too, and then those for the new ones.
"""

from typing import TypeAlias

import torch
from torch import Tensor

Visible: TypeAlias = Tensor | bool
"""What attention is told: a mask that broadcasts to [rows, heads, new, columns]; or whether the usual triangle holds,
without any mask, which is the fastest way."""


class LayerCache:
    """Keys and values of one layer, in memory for `capacity` columns that is allocated once."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.length = capacity, 0
        self._keys = self._values = torch.empty(0)
        self._column: Tensor | None = None

    def fix(self, column: Tensor) -> None:
        """From now on write each new column to `column` [1], a number on the device, and give all columns, also those
        that are still 0. So nothing changes from call to call but the contents of tensors, as a CUDA graph needs it."""
        self._column = column

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add new columns [rows, heads, new, head_size]; all columns so far."""
        assert not keys.requires_grad, "a cache is for generation, without gradients"
        if self._column is not None:
            self._keys.index_copy_(2, self._column, keys)
            self._values.index_copy_(2, self._column, values)
            return self._keys, self._values
        start, self.length = self.length, self.length + keys.shape[2]
        assert self.length <= self.capacity, f"the cache has {self.capacity} columns, but {self.length} are needed"
        if start == 0:  # only now are type and device known, which autocast may have changed
            self._keys, self._values = (_room(new, self.capacity) for new in (keys, values))
        self._keys[:, :, start : self.length] = keys
        self._values[:, :, start : self.length] = values
        return self._keys[:, :, : self.length], self._values[:, :, : self.length]


class KVCache:
    """Keys and values of all layers."""

    def __init__(self, layers: int, capacity: int) -> None:
        self.layers = [LayerCache(capacity) for _ in range(layers)]
        self.column: Tensor | None = None
        """Where the next column is written, if that is a number on the device."""

    def fix(self, column: Tensor) -> None:
        """See `LayerCache.fix`."""
        self.column = column
        for layer in self.layers:
            layer.fix(column)

    @property
    def length(self) -> int:
        """Columns so far."""
        return self.layers[0].length


class GrowingLayer:
    """Keys and values of one layer, joined anew with every call, so that gradients reach what was cached."""

    is_differentiable = True
    """Read where blocks are computed again in the backward pass: that would add the same columns twice."""

    def __init__(self) -> None:
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    @property
    def length(self) -> int:
        """Columns so far."""
        return 0 if self._keys is None else self._keys.shape[2]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add new columns [rows, heads, new, head_size]; all columns so far."""
        if self._keys is not None and self._values is not None:
            keys, values = torch.cat((self._keys, keys), 2), torch.cat((self._values, values), 2)
        self._keys, self._values = keys, values
        return keys, values


class GrowingCache:
    """Keys and values of all layers, through which gradients flow."""

    column = None
    """Columns are never written to a fixed place."""

    def __init__(self, layers: int) -> None:
        self.layers = [GrowingLayer() for _ in range(layers)]

    @property
    def length(self) -> int:
        """Columns so far."""
        return self.layers[0].length


def _room(like: Tensor, capacity: int) -> Tensor:
    rows, heads, _, size = like.shape
    return like.new_zeros(rows, heads, capacity, size)  # a hidden column counts 0 times, and 0 times NaN is NaN


def token_positions(tokens: Tensor, attention_mask: Tensor | None, before: int = 0) -> Tensor:
    """Positions of new tokens [rows, new], of which `before` columns are cached. Padding does not count.

    In a shape that broadcasts to [rows, heads, new].
    """
    new = tokens.shape[1]
    if attention_mask is None:
        return torch.arange(before, before + new, device=tokens.device)
    return (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, None, before : before + new]


def visible_columns(tokens: Tensor, attention_mask: Tensor | None, before: int, causal: bool) -> Visible:
    """The columns that new tokens attend to.

    A padding token attends to itself, if to nothing else: a softmax over no columns would not be a number.
    """
    new = tokens.shape[1]
    if attention_mask is None and (not causal or before == 0 or new == 1):
        return causal and before == 0
    rows = torch.arange(before, before + new, device=tokens.device)[:, None]
    columns = torch.arange(before + new, device=tokens.device)
    seen = columns <= rows if causal else torch.ones_like(columns <= rows)
    if attention_mask is None:
        return seen
    assert attention_mask.shape[1] == before + new, "an attention mask has a column for each token, cached or new"
    return (seen & attention_mask.bool()[:, None, None, :]) | (columns == rows)


def at_column(attention_mask: Tensor, column: Tensor) -> tuple[Tensor, Tensor]:
    """The positions [rows, 1, 1] of a token in each row that is written to `column`, and the columns that it attends to
    [rows, 1, 1, columns]. The mask has a column for all that is still to come, too."""
    columns = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    positions = (attention_mask.long().cumsum(1) - 1).index_select(1, column)
    visible = attention_mask & (columns <= column)
    return positions[:, None], visible[:, None, None]
