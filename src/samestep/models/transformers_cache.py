"""The cache of transformers, in memory that is allocated once. Import it only where a model of transformers is used."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer

from samestep.models.attention import LayerCache

WITH_ALIBI = ("bloom", "mpt")
"""Models whose positions are computed from the mask, without a setting that says so."""


class PreallocatedLayer(DynamicLayer):
    """A layer that does not copy all of its columns for every new one."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._columns = LayerCache(capacity)

    def fix(self, column: Tensor) -> None:
        """See `LayerCache.fix`."""
        self._columns.fix(column)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Add new columns; all columns so far."""
        if not self.is_initialized:  # as transformers does it, but nothing is allocated
            self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.keys, self.values = self._columns.extend(key_states, value_states)
        return self.keys, self.values


class GrowingDynamicCache(DynamicCache):
    """The cache of transformers as it is: keys and values are joined anew with every call, so gradients flow."""

    is_differentiable = True
    """See `GrowingLayer`."""


def growing_cache(config: Any) -> GrowingDynamicCache:
    """An empty differentiable cache for a model with this configuration."""
    return GrowingDynamicCache(config=config)


def new_cache(config: Any, capacity: int) -> DynamicCache:
    """An empty cache for a model with this configuration. Layers of a kind of their own, such as a sliding window, stay
    as transformers has them."""
    cache = DynamicCache(config=config)
    cache.layers = [PreallocatedLayer(capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def mask_kind(config: Any, cache: DynamicCache) -> str:
    """What a model's attention takes as a mask of [rows, 1, new, columns]: `bool`, or `float` to be added; `none`: only
    the mask of two dimensions will do.

    One mask says all where every layer attends to all columns. A model with ALiBi computes more from the other mask.
    """
    is_plain = bool(cache.layers) and all(isinstance(layer, PreallocatedLayer) for layer in cache.layers)
    if not is_plain or hasattr(config, "alibi") or config.model_type in WITH_ALIBI:
        return "none"
    return {"sdpa": "bool", "eager": "float"}.get(config._attn_implementation, "none")
