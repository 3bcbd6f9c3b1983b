"""Distributions over tokens: draws that gradients pass through, and how far one distribution is from another."""

import torch
from torch import Tensor
from torch.nn.functional import one_hot, softmax

from samestep import noise


def straight_through(logits: Tensor, gumbel: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [rows] drawn from softmax(logits) by Gumbel noise, and their one-hot vectors [rows, vocabulary], whose
    gradient is that of the noisy softmax at the temperatures `tau` [rows]."""
    scores = logits + gumbel.to(logits.dtype)
    tokens = (logits.detach().double() + gumbel).argmax(-1)  # in float64, which does not clip the tail of the noise
    soft = softmax(scores / tau[:, None].to(logits.dtype), -1)
    return tokens, one_hot(tokens, logits.shape[-1]).to(logits.dtype) + (soft - soft.detach())


def noise_like(logits: Tensor, *key: int | Tensor) -> Tensor:
    """Gumbel noise for logits [rows, vocabulary], keyed by token too, in float64."""
    return noise.gumbel(*key, torch.arange(logits.shape[-1], device=logits.device))


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Of distributions p from q, both log-probabilities [..., vocabulary]."""
    return (log_p.exp() * (log_p - log_q)).sum(-1)


def entropy_of(log_probs: Tensor) -> Tensor:
    """Of distributions, as log-probabilities [..., vocabulary]."""
    return -(log_probs.exp() * log_probs).sum(-1)


def wide(values: Tensor) -> Tensor:
    """In at least float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
