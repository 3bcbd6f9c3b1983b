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
from samestep.models.attention import token_positions, visible_columns


class Decoder(Protocol):
    """A network, and what it has read so far."""

    def __call__(self, tokens: Tensor) -> Tensor:
        """Read more tokens [rows, new]; the logits [rows, vocabulary] after the last of them."""


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
    config, names = text_config(network), ("max_sequence_length", "max_position_embeddings")
    return next((limit for name in names if isinstance(limit := getattr(config, name, None), int)), None)


class _Columns:
    """Which columns hold real tokens: those of the prompts that are not padded, and all that follow."""

    def __init__(self, mask: Tensor | None, capacity: int) -> None:
        self.length, self.capacity = 0, capacity
        self._real: Tensor | None = None
        if mask is not None:
            self._real = mask.new_ones(len(mask), capacity)
            self._real[:, : mask.shape[1]] = mask

    def add(self, new: int) -> Tensor | None:
        """The attention mask when `new` columns have been added."""
        self.length += new
        return None if self._real is None else self._real[:, : self.length]


class _NativeDecoder:
    """A network that takes `cache`."""

    def __init__(self, network: Any, mask: Tensor | None, capacity: int) -> None:
        self._network, self._columns = network, _Columns(mask, capacity)
        self._cache = network.new_cache(capacity)

    def __call__(self, tokens: Tensor) -> Tensor:
        mask = self._columns.add(tokens.shape[1])
        logits: Tensor = self._network(tokens, attention_mask=mask, cache=self._cache, logits_to_keep=1)
        return logits[:, -1]


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
        is_eager = network.config._attn_implementation == "eager"
        if mask is not None and self._mask_kind == "none" and is_eager and self._dtype == torch.float64:
            raise UserError(
                f"{type(network).__name__} with eager attention gives NaN for padded prompts in float64; use prompts "
                "of one length, another attention, or float32"
            )

    def __call__(self, tokens: Tensor) -> Tensor:
        before = self._columns.length
        mask = self._columns.add(tokens.shape[1])
        options: dict[str, Any] = dict(self._options)
        if mask is not None and self._with_positions:
            options["position_ids"] = token_positions(tokens, mask, before)[:, 0]
        out = self._network(
            input_ids=tokens,
            attention_mask=self._attention_mask(tokens, mask, before),
            past_key_values=self._cache,
            use_cache=True,
            **options,
        )
        logits: Tensor = out.logits
        return logits[:, -1]

    def _attention_mask(self, tokens: Tensor, mask: Tensor | None, before: int) -> Tensor | None:
        """Of a mask of two dimensions transformers asks whether it is all true, and so waits for the device; and it
        lets padding attend to nothing, which in float64 is NaN. So give it the full mask where that is possible."""
        if mask is None or self._mask_kind == "none":
            return mask
        visible = visible_columns(tokens, mask, before, causal=True)
        assert isinstance(visible, Tensor)
        if self._mask_kind == "bool":
            return visible
        hidden = torch.finfo(self._dtype).min
        return torch.zeros(visible.shape, dtype=self._dtype, device=visible.device).masked_fill(~visible, hidden)
