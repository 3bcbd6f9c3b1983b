"""A causal network as a stack of blocks: what leaves a block can be read, and exchanged for something else.

    stream = ResidualStream(network)                 # once; the network may be moved, cast or sharded afterwards
    hidden = stream.leaving(tokens, layer=4)         # what leaves block 4, counted from 0
    logits = stream.logits(tokens, positions, layer=4, values=hidden[rows, positions])    # the network's own logits

What leaves block 4 is `hidden_states[5]` of transformers, but for the last block, whose output transformers gives after
the last norm: here it is always what the block itself returns.

All of it is differentiable in what goes in. A hook of each block exchanges its output, and a hook of the head chooses
the positions that it is called for; the network is still called as a whole. To read what leaves a block, a shallow copy
of the network is called that ends there and shares every layer.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.models.attention import GrowingCache
from samestep.models.decoding import forward_arguments, position_limit, text_config

_BLOCKS = ("blocks", "h", "layers")
_LAST_NORMS = ("ln_f", "norm")
_KNOWN = "CausalTransformer, or GPT-2, Llama, Qwen2, Qwen3, Gemma, Gemma 2 or Gemma 3 (text) of transformers"


class _OutputExchange:
    """A hook of a block that exchanges what leaves it at one position of each row."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None
        self.values: Tensor | None = None

    def __call__(self, block: nn.Module, args: Any, output: Any) -> Any:
        if self.positions is None or self.values is None:
            return None
        hidden: Tensor = output if isinstance(output, Tensor) else output[0]
        values = self.values[:, None].to(hidden.dtype)
        changed = hidden.scatter(1, _index(self.positions, hidden), values)
        return changed if isinstance(output, Tensor) else (changed, *output[1:])


class _PositionChoice:
    """A hook of the head: it is called for chosen positions of each row only."""

    def __init__(self) -> None:
        self.positions: Tensor | None = None

    def __call__(self, head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self.positions is None:
            return None
        hidden: Tensor = args[0]
        return (hidden.gather(1, _index(self.positions, hidden)), *args[1:])


class ResidualStream:
    """The blocks of the native `CausalTransformer`, or of a causal model of transformers."""

    def __init__(self, network: nn.Module) -> None:
        """Hooks are added to the network, which do nothing but in calls of `logits`."""
        self.network = network
        body = _body(network)
        blocks, norm = _named(body, _BLOCKS), _named(body, _LAST_NORMS)
        self.embedding, self.head = _embedding(network), _head(network)
        if not (blocks and norm):
            raise _unknown(network)
        self.blocks: list[nn.Module] = list(getattr(body, blocks))
        self.last_norm: nn.Module = getattr(body, norm)
        self.layers, self.width = len(self.blocks), self.embedding.embedding_dim
        self.vocabulary = self.head.out_features
        if self.embedding.num_embeddings != self.vocabulary:
            raise UserError(
                f"{type(network).__name__} embeds {self.embedding.num_embeddings} tokens and predicts "
                f"{self.vocabulary}; use a model with as many of one as of the other"
            )
        self._is_native = "cache" in forward_arguments(network)
        self._limit = position_limit(network)
        self._cuts = [_cut(body, blocks, norm, layer) for layer in range(self.layers)]
        self._exchanges = [_OutputExchange() for _ in self.blocks]
        for block, exchange in zip(self.blocks, self._exchanges, strict=True):
            block.register_forward_hook(exchange)
        self._choice = _PositionChoice()
        self.head.register_forward_pre_hook(self._choice)

    def check_layer(self, layer: int) -> None:
        """Refuse a layer that the network does not have."""
        if not 0 <= layer < self.layers:
            raise UserError(
                f"the model has the layers 0 to {self.layers - 1}, and no layer {layer}; choose one of these"
            )

    def embed(self, tokens: Tensor) -> Tensor:
        """The vectors [..., width] of tokens [...]."""
        vectors: Tensor = self.embedding(tokens)
        return vectors

    def embed_mixture(self, weights: Tensor) -> Tensor:
        """Mixtures of the vectors of all tokens, by weights [..., vocabulary]: that of one token where it has all the
        weight."""
        table: Tensor = self.embedding.weight
        vectors = weights.to(table.dtype) @ table
        scale = getattr(self.embedding, "embed_scale", None)
        return vectors if scale is None else vectors * (scale.to(table.dtype) if isinstance(scale, Tensor) else scale)

    def leaving(self, inputs: Tensor, layer: int) -> Tensor:
        """What leaves block `layer` [rows, columns, width]; no later block is computed.

        `inputs` are tokens [rows, columns] or vectors [rows, columns, width]. Rows are padded on the right only, so no
        mask is needed.
        """
        self.check_layer(layer)
        self._check_length(inputs.shape[1])
        out = self._call(self._cuts[layer], inputs)
        hidden: Tensor = out if isinstance(out, Tensor) else out.last_hidden_state
        return hidden

    def logits(
        self,
        inputs: Tensor,
        positions: Tensor | None = None,
        *,
        layer: int | None = None,
        values: Tensor | None = None,
        context: Any = None,
    ) -> Tensor:
        """Logits [rows, columns, vocabulary], or [rows, vocabulary] at `positions` [rows], for which alone the head is
        then called; [rows, some, vocabulary] at positions [rows, some]. `values` [rows, width] take the place of what
        leaves block `layer` at `positions` [rows]; with a `context` of the same rows (see `read_context`) only that
        column is computed."""
        self._check_length(inputs.shape[1])
        if layer is None or values is None:
            return self._logits(inputs, positions)
        assert positions is not None, "an exchange needs the positions where it is made"
        self.check_layer(layer)
        exchange = self._exchanges[layer]
        exchange.positions, exchange.values = positions, values
        try:
            if context is not None:
                exchange.positions = torch.zeros_like(positions)
                return self._logits_in_context(inputs, positions, context)
            return self._logits(inputs, positions)
        finally:
            exchange.positions = exchange.values = None

    def _logits(self, inputs: Tensor, positions: Tensor | None) -> Tensor:
        self._choice.positions = positions
        try:
            logits = _logits_of(self._call(self.network, inputs))
        finally:
            self._choice.positions = None
        return logits[:, 0] if positions is not None and positions.dim() == 1 else logits

    def read_context(self, inputs: Tensor) -> Any:
        """The keys and values of whole rows, without gradients, for calls of `logits` that exchange something in them:
        what comes before does not depend on it. None where a window is shorter than the rows."""
        window = getattr(text_config(self.network), "sliding_window", None)
        if window is not None and inputs.shape[1] + 1 >= window:
            return None
        with torch.no_grad():
            cache = self.new_cache()
            self._call(self._cuts[-1], inputs, **self._cache_options(cache))
        return cache

    def _logits_in_context(self, inputs: Tensor, positions: Tensor, context: Any) -> Tensor:
        """By one more column, at the position of the one that it stands for, which sees what is before that."""
        columns = inputs.shape[1]
        column = inputs.gather(1, positions[:, None] if inputs.dim() == 2 else _index(positions, inputs))
        visible = torch.arange(columns + 1, device=inputs.device) < positions[:, None]
        visible = visible | (torch.arange(columns + 1, device=inputs.device) == columns)
        options = {"attention_mask": visible, "logits_to_keep": 1, **self._cache_options(_branch(context))}
        if not self._is_native:  # which counts positions by the mask
            options["position_ids"] = positions[:, None]
        return _logits_of(self._call(self.network, column, **options))[:, -1]

    def new_cache(self) -> Any:
        """An empty cache for `next_logits`. Gradients reach what is in it."""
        if self._is_native:
            return GrowingCache(self.layers)
        from samestep.models.transformers_cache import growing_cache

        return growing_cache(self.network.config)

    def next_logits(self, inputs: Tensor, cache: Any) -> Tensor:
        """Logits [rows, vocabulary] after the last column of `inputs`, which follow what is in the cache."""
        known = cache.length if self._is_native else cache.get_seq_length()
        self._check_length(known + inputs.shape[1])
        return _logits_of(self._call(self.network, inputs, logits_to_keep=1, **self._cache_options(cache)))[:, -1]

    def _cache_options(self, cache: Any) -> dict[str, Any]:
        return {"cache": cache} if self._is_native else {"past_key_values": cache, "use_cache": True}

    def _call(self, network: nn.Module, inputs: Tensor, **options: Any) -> Any:
        """Always with vectors: a model of transformers warns about tokens that look like padding."""
        vectors = inputs if inputs.is_floating_point() else self.embed(inputs)
        if self._is_native:
            return network(vectors, **options)
        return network(inputs_embeds=vectors, **{"use_cache": False, **options})

    def _check_length(self, columns: int) -> None:
        if self._limit is not None and columns > self._limit:
            raise UserError(f"the model reads at most {self._limit} tokens, and a text has {columns}; make it shorter")


def copy_sharing(network: nn.Module, shared: Iterable[nn.Module]) -> nn.Module:
    """A copy of a network with layers of its own, but for some that both have."""
    return copy.deepcopy(network, {id(part): part for part in shared})


def with_head(network: nn.Module, head: nn.Linear) -> nn.Module:
    """The same network with another head; every other layer is the very same."""
    own = network.get_output_embeddings()  # type: ignore[operator]
    changed = copy.copy(network)
    changed._modules = dict(network._modules)
    for name, part in network._modules.items():
        if part is own:
            changed._modules[name] = head
        elif part is not None and own in part._modules.values():  # the native body has the head in it
            body = changed._modules[name] = copy.copy(part)
            body._modules = {key: head if value is own else value for key, value in part._modules.items()}
    return changed


def _index(positions: Tensor, hidden: Tensor) -> Tensor:
    return positions.view(len(positions), -1, 1).expand(-1, -1, hidden.shape[-1])


def _branch(cache: Any) -> Any:
    """A cache that begins with what another one has, and leaves that as it is."""
    branch = copy.copy(cache)
    branch.layers = [copy.copy(layer) for layer in cache.layers]
    return branch


def _logits_of(out: Any) -> Tensor:
    logits: Tensor = out if isinstance(out, Tensor) else out.logits
    return logits


def _body(network: nn.Module) -> nn.Module:
    """The part with the blocks: the native one calls it `transformer`, transformers knows it as `base_model`."""
    body = getattr(network, "base_model", getattr(network, "transformer", None))
    if not isinstance(body, nn.Module):
        raise _unknown(network)
    return body


def _named(body: nn.Module, names: tuple[str, ...]) -> str:
    return next((name for name in names if isinstance(getattr(body, name, None), nn.Module)), "")


def _cut(body: nn.Module, blocks: str, norm: str, layer: int) -> nn.Module:
    """A copy of the network's body that ends after block `layer`, of the very same layers."""
    end: Mapping[str, nn.Module] = {
        blocks: nn.ModuleList(list(getattr(body, blocks))[: layer + 1]),
        norm: nn.Identity(),
        "ff_out": nn.Identity(),  # the native body has the head in it
    }
    cut = copy.copy(body)
    cut._modules = {name: end.get(name, part) for name, part in body._modules.items()}
    return cut


def _embedding(network: nn.Module) -> nn.Embedding:
    find = getattr(network, "get_input_embeddings", None)
    found = find() if find else None
    if not isinstance(found, nn.Embedding):
        raise _unknown(network)
    if type(found).forward is not nn.Embedding.forward and not hasattr(found, "embed_scale"):
        raise _unknown(network)
    return found


def _head(network: nn.Module) -> nn.Linear:
    find = getattr(network, "get_output_embeddings", None)
    found = find() if find else None
    if not isinstance(found, nn.Linear):
        raise _unknown(network)
    return found


def _unknown(network: nn.Module) -> UserError:
    return UserError(f"the blocks of {type(network).__name__} cannot be read; use {_KNOWN}")
