"""A plain transformer: RMSNorm, rotary positions, SwiGLU, no biases, an untied head; bidirectional by default.

The names of configuration fields and parameters are those of OLMo and of models derived from it (whose published
parameters have one more `model.` in front), so that reading such weights is only a renaming.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.core.config.bounds import Count, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import UserError
from samestep.models import deferred_init
from samestep.models.attention import (
    GrowingCache,
    GrowingLayer,
    KVCache,
    LayerCache,
    Visible,
    at_column,
    token_positions,
    visible_columns,
)
from samestep.models.deferred_init import DeferredInit, Embedding
from samestep.models.wide import wide_type


@dataclass(frozen=True)
class TransformerConfig(CheckedConfig):
    """The shape of a transformer."""

    d_model: Count = 128
    """Width of the residual stream."""
    n_layers: Count = 4
    """Number of blocks."""
    n_heads: Count = 4
    """Attention heads; must divide d_model into an even head size."""
    n_kv_heads: Count | None = None
    """Heads of keys and values; fewer than n_heads is grouped-query attention, null is n_heads."""
    mlp_hidden_size: Count = 384
    """Width inside the feed-forward part."""
    vocab_size: Count = 259
    """Number of tokens, the special ones included."""
    embedding_size: Count | None = None
    """Rows of the embedding and of the head when rounded up for speed; null is vocab_size."""
    rope_theta: Positive = 500000.0
    """Base of the rotary wavelengths."""
    max_sequence_length: Count = 1024
    """Longest sequence accepted."""
    rms_norm_eps: Positive = 1e-5
    """Added to the mean square before its root is taken."""
    init_std: Positive = 0.02
    """Standard deviation of fresh weights; layers that write to the residual stream get it over sqrt(2 n_layers)."""
    causal: bool = False
    """Whether a position attends only to itself and earlier positions."""

    def __post_init__(self) -> None:
        """Refuse shapes that cannot be built, before any memory is allocated."""
        if self.d_model % self.n_heads or (self.d_model // self.n_heads) % 2:
            raise UserError(
                f"Choose n_heads so that it divides d_model into heads of even size; "
                f"d_model={self.d_model} and n_heads={self.n_heads} do not."
            )
        if self.n_heads % self.kv_heads:
            raise UserError(f"Choose n_kv_heads as a divisor of n_heads={self.n_heads}; it is {self.n_kv_heads}.")
        if self.embeddings < self.vocab_size:
            raise UserError(
                f"Set embedding_size to at least vocab_size={self.vocab_size}, or to null; it is {self.embedding_size}."
            )

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values, resolved."""
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def embeddings(self) -> int:
        """Rows of the embedding and of the head, resolved."""
        return self.vocab_size if self.embedding_size is None else self.embedding_size

    def check_length(self, length: int) -> None:
        """Refuse a sequence that is too long."""
        if length > self.max_sequence_length:
            raise UserError(
                f"Give at most max_sequence_length={self.max_sequence_length} tokens, or raise it; this sequence has "
                f"{length}."
            )


class Linear(deferred_init.Linear):
    """A linear layer without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    """Scale to unit mean square (which torch measures in at least float32), then by a learned weight."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(size))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotary_tables(positions: Tensor, head_size: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [..., head_size] for positions [...], in at least float32.

    They are computed in each forward pass (a few microseconds, shared by all blocks), so there is no buffer that a
    checkpoint, a move to another device, a build on the meta device or sharding could lose.
    """
    return _rotary_tables(positions, head_size, theta, wide_type(like.dtype))


@torch.library.custom_op("samestep::rotary_tables", mutates_args=())
def _rotary_tables(positions: Tensor, head_size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """As an operator of its own: torch.compile would compute them again for every head of every block."""
    halves = torch.arange(0, head_size, 2, dtype=dtype, device=positions.device) / head_size
    angles = positions.to(dtype)[..., None] * torch.pow(theta, -halves)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


@_rotary_tables.register_fake
def _(positions: Tensor, head_size: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, head_size)
    return positions.new_empty(shape, dtype=dtype), positions.new_empty(shape, dtype=dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each pair (i, i + head_size/2) of `x` [..., length, head_size] by its position's angle."""
    wide = x.to(cos.dtype)
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class Block(nn.Module):
    """Attention and feed-forward, each normalised before and added to the residual stream after."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        width, kv_width = config.d_model, config.kv_heads * config.head_size
        self.attn_norm = RMSNorm(width, config.rms_norm_eps)
        self.ff_norm = RMSNorm(width, config.rms_norm_eps)
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, kv_width)
        self.v_proj = Linear(width, kv_width)
        self.attn_out = Linear(width, width)
        self.ff_proj = Linear(width, config.mlp_hidden_size)
        self.up_proj = Linear(width, config.mlp_hidden_size)
        self.ff_out = Linear(config.mlp_hidden_size, width)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        visible: Visible | None = None,
        cache: LayerCache | GrowingLayer | None = None,
    ) -> Tensor:
        """Map the residual stream [rows, length, d_model] to itself; without `visible`, all or what comes before."""
        visible = self.config.causal if visible is None else visible
        x = x + self._attend(self.attn_norm(x), cos, sin, visible, cache)
        y = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(y)) * self.up_proj(y))

    def _attend(
        self, y: Tensor, cos: Tensor, sin: Tensor, visible: Visible, cache: LayerCache | GrowingLayer | None
    ) -> Tensor:
        rows, length, width = y.shape
        heads = (rows, length, -1, self.config.head_size)
        q = rotate(self.q_proj(y).view(heads).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(y).view(heads).transpose(1, 2), cos, sin)
        v = self.v_proj(y).view(heads).transpose(1, 2)
        if cache is not None:
            k, v = cache.extend(k, v)
        shown = {"attn_mask": visible} if isinstance(visible, Tensor) else {"is_causal": visible}
        grouped = self.config.kv_heads != self.config.n_heads
        mixed = F.scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **shown)
        return self.attn_out(mixed.transpose(1, 2).reshape(rows, length, width))


class Body(nn.Module):
    """Embedding, blocks, last norm and head: what the published names call `transformer`."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.wte = Embedding(config.embeddings, config.d_model)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
        self.ln_f = RMSNorm(config.d_model, config.rms_norm_eps)
        self.ff_out = Linear(config.d_model, config.embeddings)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        cache: KVCache | GrowingCache | None = None,
        logits_to_keep: int = 0,
    ) -> Tensor:
        """Logits of each position, or of the last few. Vectors may stand in for tokens, as the embedding gives them."""
        x = tokens if tokens.is_floating_point() else self.wte(tokens)
        positions, visible = self._places(tokens, attention_mask, cache)
        cos, sin = rotary_tables(positions, self.config.head_size, self.config.rope_theta, x)
        for number, block in enumerate(self.blocks):
            x = block(x, cos, sin, visible, cache.layers[number] if cache is not None else None)
        return self.ff_out(self.ln_f(x[:, -logits_to_keep:]))

    def _places(
        self, tokens: Tensor, mask: Tensor | None, cache: KVCache | GrowingCache | None
    ) -> tuple[Tensor, Visible]:
        """Positions of tokens, and the columns that they attend to."""
        if cache is not None and cache.column is not None:
            assert mask is not None, "a cache with a fixed column needs a mask of all columns"
            return at_column(mask, cache.column)
        before = cache.length if cache is not None else 0
        return token_positions(tokens, mask, before), visible_columns(tokens, mask, before, self.config.causal)


class Transformer(DeferredInit):
    """The whole network: tokens [rows, length] in, logits [rows, length, embedding_size] out."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Body(config)
        self.initialise()

    @property
    def shard_units(self) -> list[nn.Module]:
        """The modules to shard or recompute one by one: the blocks."""
        return list(self.transformer.blocks)

    @torch.no_grad()
    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Draw the initial values of one parameter from torch's generator."""
        config = self.config
        if name.endswith(("norm.weight", "ln_f.weight")):
            weight.fill_(1.0)
            return
        writes_residual = ".blocks." in name and name.endswith(("attn_out.weight", "ff_out.weight"))
        weight.normal_(0.0, config.init_std / (2 * config.n_layers) ** 0.5 if writes_residual else config.init_std)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position; in the dtype of the weights, or of autocast where that is on."""
        self.config.check_length(tokens.shape[1])
        logits: Tensor = self.transformer(tokens)
        return logits
