"""A small causal language model: the transformer of this package, with a cache, padding, and a head that may be tied.

model = CausalTransformer(CausalConfig(d_model=256, n_layers=6, n_heads=8, vocab_size=300, tied_head=True))
logits = model(tokens, attention_mask=mask)               # whole rows, padded on any side
cache = model.new_cache(capacity=64)
logits = model(tokens, cache=cache, logits_to_keep=1)     # the same, piece by piece
logits = model(next_tokens, cache=cache, logits_to_keep=1)
"""

from dataclasses import dataclass

from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.models.attention import GrowingCache, KVCache
from samestep.models.transformer import Transformer, TransformerConfig


@dataclass(frozen=True)
class CausalConfig(TransformerConfig):
    """The shape of a causal transformer."""

    causal: bool = True
    """A position attends only to itself and earlier positions."""
    tied_head: bool = False
    """Whether the head uses the weights of the embedding."""

    def __post_init__(self) -> None:
        """Refuse what is no causal model."""
        super().__post_init__()
        if not self.causal:
            raise UserError("Leave causal at true, or use TransformerConfig; CausalConfig is for causal models.")


class CausalTransformer(Transformer):
    """Tokens [rows, length] in, logits [rows, length, embedding_size] out."""

    config: CausalConfig
    """Its shape."""

    def __init__(self, config: CausalConfig) -> None:
        super().__init__(config)
        if config.tied_head:
            self.transformer.ff_out.weight = self.transformer.wte.weight

    def get_input_embeddings(self) -> nn.Module:
        return self.transformer.wte

    def get_output_embeddings(self) -> nn.Module:
        return self.transformer.ff_out

    def new_cache(self, capacity: int) -> KVCache:
        """An empty cache for `capacity` columns."""
        return KVCache(self.config.n_layers, capacity)

    def forward(
        self,
        tokens: Tensor,
        attention_mask: Tensor | None = None,
        cache: KVCache | GrowingCache | None = None,
        logits_to_keep: int = 0,
    ) -> Tensor:
        """Logits of each position, or of the last `logits_to_keep`.

        `attention_mask` is true where there is a real token; with a cache it has a column for each cached token first.
        The new keys and values go into the cache; a `KVCache` works without gradients only. Vectors
        [rows, length, d_model] may stand in for tokens, as the embedding gives them.
        """
        self.config.check_length(tokens.shape[1] + (cache.length if cache is not None else 0))
        logits: Tensor = self.transformer(tokens, attention_mask, cache, logits_to_keep)
        return logits
