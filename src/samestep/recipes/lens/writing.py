"""The texts of a decoder, token by token; each token is read again by the next step, and gradients flow through it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, one_hot, softmax

from samestep import noise
from samestep.models.residual_stream import ResidualStream
from samestep.models.wide import wide


def straight_through(logits: Tensor, gumbel: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [rows] drawn from softmax(logits) by Gumbel noise, and their one-hot vectors [rows, vocabulary], whose
    gradient is that of the noisy softmax at the temperatures `tau` [rows]."""
    scores = logits + gumbel.to(logits.dtype)
    tokens = (logits.detach().double() + gumbel).argmax(-1)  # in float64, which does not clip the tail of the noise
    soft = softmax(scores / tau[:, None].to(logits.dtype), -1)
    return tokens, one_hot(tokens, logits.shape[-1]).to(logits.dtype) + (soft - soft.detach())


class Explanation(NamedTuple):
    """Texts about activations."""

    tokens: Tensor
    """[rows, T]"""
    mixtures: Tensor
    """[rows, T, vocabulary]: the tokens, one-hot; their gradients are those of the distributions they were drawn
    from."""
    log_probs: Tensor
    """[rows, T, vocabulary]: the decoder's distributions, without noise."""


@dataclass(frozen=True)
class KeyedDraws:
    """Tokens drawn with noise that is keyed by a seed, a purpose, the rows' `ids` [rows, 2] and the token's place."""

    seed: int
    purpose: int | Tensor
    ids: Tensor
    tau: Tensor
    """[rows]: the temperatures that gradients are those of."""

    def draw(self, logits: Tensor, position: int) -> tuple[Tensor, Tensor]:
        """Tokens [rows], and their mixtures [rows, vocabulary]."""
        key = (self.seed, self.purpose, self.ids[:, :1], self.ids[:, 1:], position)
        every_token = torch.arange(logits.shape[-1], device=logits.device)
        return straight_through(logits, noise.gumbel(*key, every_token), self.tau)


def write_text(
    stream: ResidualStream,
    vectors: Tensor,
    length: int,
    draws: KeyedDraws | None,
    temperature: Tensor | None,
    *,
    has_cache: bool,
) -> Explanation:
    """So many tokens after what the decoder begins with, `vectors` [rows, columns, width]; without `draws`, the
    likeliest each time. Logits are divided by `temperature` [rows], if there is one. Without a cache of keys and values
    everything is read again for each token."""
    cache = stream.new_cache() if has_cache else None
    new, written = vectors, []
    for position in range(length):
        if cache is not None:
            logits = stream.next_logits(new, cache)
        else:
            vectors = new if position == 0 else torch.cat((vectors, new), 1)
            last = torch.full((len(vectors),), vectors.shape[1] - 1, device=vectors.device)
            logits = stream.logits(vectors, last)
        logits = wide(logits)
        if temperature is not None:
            logits = logits / temperature[:, None].to(logits.dtype)
        if draws is None:
            tokens = logits.argmax(-1)
            mixture = one_hot(tokens, logits.shape[-1]).to(logits.dtype)
        else:
            tokens, mixture = draws.draw(logits, position)
        written.append((tokens, mixture, log_softmax(logits, -1)))
        new = stream.embed_mixture(mixture)[:, None]
    return Explanation(*(torch.stack(parts, 1) for parts in zip(*written, strict=True)))
