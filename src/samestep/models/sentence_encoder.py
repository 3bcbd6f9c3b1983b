"""A sentence encoder: a transformer, pooling, and what follows, as sentence-transformers has them.

source = open_encoder("sentence-transformers/all-mpnet-base-v2", world=bench.world)
student = bench.learner(source.with_projection(teacher.dim).network)
"""

import math
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from samestep.models.deferred_init import DeferredInit
from samestep.models.sentence_modules import Dense, HeadModule, LayerNorm, Normalize, Pooling


class FirstValues(Protocol):
    """Weights that an encoder begins with, such as those of a folder."""

    def __contains__(self, name: object) -> bool:
        """Whether it has a parameter, by its name in the encoder."""

    def fill(self, name: str, weight: Tensor) -> None:
        """Copy a parameter into `weight`."""


class SentenceEncoder(DeferredInit):
    """Tokens in, one vector a row out. Its parameters are not set until `initialise`, or a learner, sets them."""

    def __init__(
        self,
        transformer: nn.Module,
        pooling: Pooling,
        head: Iterable[HeadModule] = (),
        *,
        first_values: FirstValues | None = None,
    ) -> None:
        """`transformer` is a model of transformers without a pooling of its own. What `first_values` does not have is
        drawn."""
        super().__init__()
        self.transformer, self.pooling = transformer, pooling
        self.head = nn.Sequential(*head)
        self.dim = next((m.dim for m in reversed(self.head) if isinstance(m, Dense | LayerNorm)), pooling.dim)
        self.first_values = first_values

    @property
    def config(self) -> Any:
        """The configuration of the transformer, an object of transformers."""
        return self.transformer.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Vectors [rows, dim] of tokens [rows, length], padded on the right; the mask is 1 where there is a token.

        A row without any token gives the vector of its first padding: a number, not NaN.
        """
        return self.tokens_and_vectors(input_ids, attention_mask)[1]

    def tokens_and_vectors(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Also the vectors of the tokens, [rows, length, width]."""
        mask = attention_mask.long()
        is_first = torch.arange(mask.shape[1], device=mask.device) == 0
        mask = torch.where(is_first & (mask.sum(1, keepdim=True) == 0), 1, mask)
        tokens = self.transformer(input_ids=input_ids, attention_mask=mask, return_dict=True).last_hidden_state
        return tokens, self.head(self.pooling(tokens, mask))

    @torch.no_grad()
    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Read one parameter, or draw it from torch's generator: the layers as BERT does, the head by its inputs."""
        if self.first_values is not None and name in self.first_values:
            self.first_values.fill(name, weight)
        elif name.endswith("bias"):
            weight.zero_()
        elif weight.dim() == 1:
            weight.fill_(1.0)
        elif name.startswith("head."):
            weight.normal_(0.0, 1 / math.sqrt(weight.shape[1]))
        else:
            weight.normal_(0.0, getattr(self.config, "initializer_range", 0.02))


def with_unit_vectors(encoder: SentenceEncoder) -> SentenceEncoder:
    """The encoder with Normalize behind it, if it does not end so."""
    head: list[Any] = list(encoder.head)
    return encoder if head and isinstance(head[-1], Normalize) else _with_head(encoder, [*head, Normalize()])


def with_projection(encoder: SentenceEncoder, dim: int) -> SentenceEncoder:
    """The encoder with a projection to `dim` behind it, in stock modules of sentence-transformers, freshly drawn."""
    layers = [Dense(encoder.dim, dim, activation=nn.GELU), LayerNorm(dim), Dense(dim, dim), LayerNorm(dim), Normalize()]
    dtype = next(encoder.parameters()).dtype
    return _with_head(encoder, [*with_unit_vectors(encoder).head, *(layer.to(dtype) for layer in layers)])


def _with_head(encoder: SentenceEncoder, head: Iterable[Any]) -> SentenceEncoder:
    return SentenceEncoder(encoder.transformer, encoder.pooling, head, first_values=encoder.first_values)
