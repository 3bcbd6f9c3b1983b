"""What the network says of hidden places, and a token drawn from it.

Only the places that are asked for are ever looked at, and a vocabulary's worth of float64 is made for a few of them at
a time: with 126 thousand tokens, noise for a whole row of them would fill a GPU.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from samestep.data import noise

DRAFT = noise.purpose("mdlm.draft")
AT_ONCE = 2**24
"""Numbers that are treated in float64 at once: 128 MiB, a few times over."""

Places = tuple[Tensor, ...]
"""Row and column of each place, [places] each."""


def logits_at(
    module: nn.Module, tokens: Tensor, places: Places, *, prompt: Tensor, mask: int, cfg_scale: float = 0.0
) -> Tensor:
    """The network's logits [places, vocabulary]; with `cfg_scale` pushed away from what it says without the prompt.

    `prompt` tells which of the tokens [rows, length] were given; without guidance it makes no difference.
    """
    logits: Tensor = module(tokens)[places]
    if not cfg_scale:
        return logits
    blind: Tensor = module(tokens.masked_fill(prompt, mask))[places]
    exact = torch.promote_types(logits.dtype, torch.float32)
    # The same as blind + (cfg_scale + 1) * (logits - blind).
    return logits.to(exact) + cfg_scale * (logits.to(exact) - blind.to(exact))


def draft(
    logits: Tensor, forbidden: Sequence[int], temperature: float, key: tuple[int, ...], where: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """A token for each place [places] and the logarithm of its probability, as the network has it, in float64.

    Drawn from softmax(logits / temperature) by adding Gumbel noise in float64, since float32 would clip its tail; the
    noise is keyed by `key` and by each of `where` [places]. Temperature 0 takes the likeliest, with no noise at all.
    """
    banned = torch.tensor(list(forbidden), dtype=torch.int64, device=logits.device)
    vocabulary = torch.arange(logits.shape[1], device=logits.device)
    tokens, sureness = [], []
    for part in _parts(logits):
        scores = logits[part].double().index_fill(1, banned, -torch.inf)
        noisy = scores
        if temperature > 0:
            noisy = noise.gumbel(*key, *(one[part, None] for one in where), vocabulary).mul_(temperature).add_(scores)
        tokens.append(noisy.argmax(1))
        sureness.append(scores.gather(1, tokens[-1][:, None])[:, 0] - scores.logsumexp(1))
    return torch.cat(tokens), torch.cat(sureness)


def log_probability(logits: Tensor, tokens: Tensor) -> Tensor:
    """What the logits [places, vocabulary] give to `tokens` [places], in float64, normalised over all of them."""
    found = []
    for part in _parts(logits):
        scores = logits[part].double()
        found.append(scores.gather(1, tokens[part, None])[:, 0] - scores.logsumexp(1))
    return torch.cat(found)


def _parts(logits: Tensor) -> Iterator[slice]:
    """The places, a few at a time."""
    places, size = logits.shape
    step = max(1, AT_ONCE // size)
    yield from (slice(at, at + step) for at in range(0, places, step))
