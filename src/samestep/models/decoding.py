"""Calling a causal network piece by piece, with a cache: the native transformer, or a model of transformers.

    tokens, mask = left_pad(prompts, pad=0)
    decoder = open_decoder(network, mask, width=tokens.shape[1], new_tokens=32)
    logits = decoder(tokens)            # [rows, vocabulary], after the last token of each row
    logits = decoder(chosen[:, None])   # and so on

Which of the two a network is, its `forward` tells: the native one takes `cache`, that of transformers
`past_key_values`. So a network of another kind, or a module around one of these, works if its `forward` takes the same.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.models.attention import at_column, token_positions, visible_columns


class Decoder(Protocol):
    """A network, and what it has read so far."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read more tokens [rows, new]; the logits [rows, vocabulary] after the last of them."""

    def fix(self) -> bool:
        """After the prompts: make all further calls, of one token a row each, alike but for the contents of tensors, so
        that they can be recorded as a CUDA graph. False: this network's cannot be, and everything stays as it was."""


def left_pad(
    prompts: Sequence[Sequence[int]], pad: int = 0, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor | None]:
    """Tokens [rows, longest] with `pad` in front of shorter rows, and the attention mask; None if nothing is padded."""
    longest = max(map(len, prompts))
    tokens = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], dtype=torch.int64)
    if all(len(prompt) == longest for prompt in prompts):
        return tokens.to(device), None
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    mask = torch.arange(longest) >= longest - lengths[:, None]
    return tokens.to(device), mask.to(device)


def open_decoder(network: nn.Module, mask: Tensor | None, *, width: int, new_tokens: int) -> Decoder:
    """A decoder for rows of which `width` columns are prompts and up to `new_tokens` are to follow.

    `mask` [rows, width] is true where a prompt has a real token; None: everywhere.
    """
    accepted = forward_arguments(network)
    if "cache" in accepted:
        return _NativeDecoder(network, mask, width + new_tokens)
    if "past_key_values" in accepted:
        return _TransformersDecoder(network, mask, width + new_tokens, accepted)
    raise UserError(
        f"{type(network).__name__} cannot generate: its forward takes neither `cache`, as CausalTransformer does, nor "
        "`past_key_values`, as the causal models of transformers do"
    )


def forward_arguments(network: nn.Module) -> Mapping[str, inspect.Parameter]:
    """The arguments that a network can be called with, by name."""
    return inspect.signature(network.forward).parameters


def text_config(network: nn.Module) -> Any:
    """The configuration of a network, if it has one; of a model of transformers that also sees or hears, its text's."""
    config: Any = getattr(network, "config", None)
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def position_limit(network: nn.Module) -> int | None:
    """How many tokens a row may have, if the network says so."""
    return configured_limit(text_config(network))


def configured_limit(config: Any) -> int | None:
    """How many tokens a row may have, if the configuration of a network says so."""
    names = ("max_sequence_length", "max_position_embeddings")
    return next((limit for name in names if isinstance(limit := getattr(config, name, None), int)), None)


class _Columns:
    """Which columns hold real tokens: those of the prompts that are not padded, and all that follow."""

    def __init__(self, mask: Tensor | None, capacity: int) -> None:
        self.length, self.capacity = 0, capacity
        self.next: Tensor | None = None
        """The number of the next column, on the device, once it is fixed."""
        self.real: Tensor | None = None
        """[rows, capacity], also of columns to come; None: all are real."""
        if mask is not None:
            self.real = mask.new_ones(len(mask), capacity)
            self.real[:, : mask.shape[1]] = mask

    def add(self, new: int) -> Tensor | None:
        """The attention mask when `new` columns have been added."""
        self.length += new
        return None if self.real is None else self.real[:, : self.length]

    def fix(self, rows: int, device: torch.device) -> Tensor:
        """From now on count on the device; where the next column is."""
        if self.real is None:
            self.real = torch.ones(rows, self.capacity, dtype=torch.bool, device=device)
        self.next = torch.tensor([self.length], device=device)
        return self.next


class _NativeDecoder:
    """A network that takes `cache`."""

    def __init__(self, network: Any, mask: Tensor | None, capacity: int) -> None:
        self._network, self._columns = network, _Columns(mask, capacity)
        self._cache = network.new_cache(capacity)
        self._logits = torch.empty(0)

    def __call__(self, tokens: Tensor) -> Tensor:
        fixed = self._columns.next
        mask = self._columns.add(tokens.shape[1]) if fixed is None else self._columns.real
        self._logits = self._network(tokens, attention_mask=mask, cache=self._cache, logits_to_keep=1)[:, -1]
        if fixed is not None:
            fixed += 1
        return self._logits

    def fix(self) -> bool:
        if not hasattr(self._cache, "fix"):
            return False
        self._cache.fix(self._columns.fix(len(self._logits), self._logits.device))
        return True


class _TransformersDecoder:
    """A model of transformers."""

    def __init__(
        self, network: Any, mask: Tensor | None, capacity: int, accepted: Mapping[str, inspect.Parameter]
    ) -> None:
        from samestep.models.transformers_cache import mask_kind, new_cache

        self._network, self._columns = network, _Columns(mask, capacity)
        self._cache = new_cache(network.config, capacity)
        self._mask_kind = mask_kind(network.config, self._cache)
        self._dtype = next(network.parameters()).dtype
        self._with_positions = "position_ids" in accepted
        self._options = {"logits_to_keep": 1} if "logits_to_keep" in accepted else {}
        self._logits = torch.empty(0)
        is_eager = network.config._attn_implementation == "eager"
        if mask is not None and self._mask_kind == "none" and is_eager and self._dtype == torch.float64:
            raise UserError(
                f"{type(network).__name__} with eager attention gives NaN for padded prompts in float64; use prompts "
                "of one length, another attention, or float32"
            )

    def __call__(self, tokens: Tensor) -> Tensor:
        fixed = self._columns.next
        positions, mask = self._places(tokens) if fixed is None else self._fixed_places(fixed)
        options = dict(self._options) | ({"position_ids": positions} if positions is not None else {})
        out = self._network(
            input_ids=tokens, attention_mask=mask, past_key_values=self._cache, use_cache=True, **options
        )
        self._logits = out.logits[:, -1]
        if fixed is not None:
            fixed += 1
        return self._logits

    def fix(self) -> bool:
        if self._mask_kind == "none" or not self._with_positions:
            return False
        column = self._columns.fix(len(self._logits), self._logits.device)
        for layer in self._cache.layers:
            layer.fix(column)  # type: ignore[union-attr]  # all are of our kind, which mask_kind has seen
        return True

    def _places(self, tokens: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Positions and mask. Of a mask of two dimensions transformers asks whether it is all true, and so waits for
        the device; and it lets padding attend to nothing, which in float64 is NaN. So give it the full one."""
        before = self._columns.length
        mask = self._columns.add(tokens.shape[1])
        if mask is None:
            return None, None
        positions = token_positions(tokens, mask, before)[:, 0] if self._with_positions else None
        if self._mask_kind == "none":
            return positions, mask
        visible = visible_columns(tokens, mask, before, causal=True)
        assert isinstance(visible, Tensor)
        return positions, self._as_wanted(visible)

    def _fixed_places(self, column: Tensor) -> tuple[Tensor, Tensor]:
        assert self._columns.real is not None
        positions, visible = at_column(self._columns.real, column)
        return positions[:, 0], self._as_wanted(visible)

    def _as_wanted(self, visible: Tensor) -> Tensor:
        """The mask as this model's attention takes it."""
        if self._mask_kind == "bool":
            return visible
        hidden = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, hidden)
