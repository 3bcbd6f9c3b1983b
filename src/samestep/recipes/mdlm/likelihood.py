"""How likely an answer is after a prompt, by Monte Carlo; and whether it is the one that would be written.

A draw hides exactly l of the answer's L tokens, chosen at random, and scores

    L / l * sum over the hidden tokens of log q(token | prompt and what is left of the answer)

whose mean over l = 1..L and over all choices is what the answer's log-probability comes to, on average, when it is
written in a random order: a lower bound of log p(answer | prompt). The l of a pair's draws are spread evenly over 1..L
from a random offset, so that only the noise within an l remains. Probabilities are normalised over all logits, as in
training: a network that knows nothing gives exactly -L log V, where V is the number of its logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from samestep.data import noise
from samestep.data.tokenizer.vocabulary import Vocabulary
from samestep.recipes.mdlm.sampling import alike, draft, log_probability, logits_at

COUNT = noise.purpose("mdlm.likelihood.count")
CHOICE = noise.purpose("mdlm.likelihood.choice")

Pair = tuple[list[int], list[int]]
"""A prompt and an answer, in tokens."""


@dataclass(frozen=True)
class Estimate:
    """A log-likelihood in nats, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From the draws in the order of their l.

        Neighbours have about the same l, hence their difference is noise alone; the spread of all draws would count
        the course of the mean over l as well, which spreading the draws has taken out. One draw tells no error.
        """
        size = len(values)
        if size == 1:
            return cls(values[0], math.inf)
        squares = math.fsum((after - before) ** 2 for before, after in pairwise(values))
        return cls(math.fsum(values) / size, math.sqrt(squares / (2 * (size - 1) * size)))


@torch.no_grad()
def log_likelihood(
    module: nn.Module,
    pairs: Sequence[Pair],
    *,
    vocabulary: Vocabulary,
    draws: int,
    batch_size: int,
    seed: int,
    cfg_scale: float = 0.0,
    ids: Sequence[int] | None = None,
) -> list[Estimate]:
    """The log-likelihood of each answer after its prompt, from so many draws a pair.

    Noise is keyed by `ids`, by default the pairs' numbers. Rows of one length are batched, also those of several pairs.
    """
    assert draws > 0, f"an estimate takes at least one draw, not {draws}"
    keys = range(len(pairs)) if ids is None else ids
    # All draws of a one-token answer would be the same, and an answer without tokens needs none.
    turns = [draws if len(answer) > 1 else len(answer) for _, answer in pairs]
    rows = [(number, turn) for number, count in enumerate(turns) for turn in range(count)]
    values: list[list[float]] = [[] for _ in pairs]
    for batch in alike([sum(map(len, pairs[number])) for number, _ in rows], batch_size):
        numbers = [rows[row][0] for row in batch]
        tokens, prompt = _rows([pairs[number] for number in numbers], _device(module))
        which = torch.tensor([(keys[rows[row][0]], rows[row][1]) for row in batch], device=tokens.device)
        hidden = hide(~prompt, draws, seed, *which.unbind(1))
        for number, score in zip(numbers, _score(module, tokens, prompt, hidden, vocabulary.mask, cfg_scale)):
            values[number].append(score)
    return [
        Estimate.of(found) if len(answer) > 1 else Estimate(sum(found), 0.0)
        for found, (_, answer) in zip(values, pairs)
    ]


def hide(answer: Tensor, draws: int, seed: int, key: Tensor, draw: Tensor) -> Tensor:
    """Which tokens of the answers, marked in `answer` [rows, length], the draws [rows] of the pairs `key` [rows] hide.

    Each hides exactly l of them, l being the draw's place between 1 and the answer's length.
    """
    size = answer.sum(1)
    offset = noise.uniform(seed, COUNT, key, dtype=torch.float64)
    count = torch.minimum(1 + (size * (draw + offset) / draws).long(), size)
    positions = torch.arange(answer.shape[1], device=answer.device)
    lots = noise.uniform(seed, CHOICE, key[:, None], draw[:, None], positions, dtype=torch.float64)
    order = lots.masked_fill(~answer, torch.inf).argsort(dim=1, stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, positions.expand_as(order))
    return ranks < count[:, None]


@torch.no_grad()
def is_greedy(
    module: nn.Module, pairs: Sequence[Pair], *, vocabulary: Vocabulary, batch_size: int, cfg_scale: float = 0.0
) -> list[bool]:
    """Whether each answer is what the network writes at temperature 0, its surest token first, one a pass."""
    found = [True] * len(pairs)
    for batch in alike([tuple(map(len, pair)) for pair in pairs], batch_size):
        tokens, prompt = _rows([pairs[number] for number in batch], _device(module))
        for number, agrees in zip(batch, _agrees(module, tokens, prompt, vocabulary, cfg_scale).tolist()):
            found[number] = agrees
    return found


def _rows(pairs: Sequence[Pair], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts and answers of one length in all as tokens [rows, length], and which of them are prompt."""
    tokens = torch.tensor([[*prompt, *answer] for prompt, answer in pairs], dtype=torch.int64, device=device)
    sizes = torch.tensor([len(prompt) for prompt, _ in pairs], device=device)
    return tokens, torch.arange(tokens.shape[1], device=device) < sizes[:, None]


def _score(
    module: nn.Module, tokens: Tensor, prompt: Tensor, hidden: Tensor, mask: int, cfg_scale: float
) -> list[float]:
    """What each row's draw says of its answer."""
    places = hidden.nonzero(as_tuple=True)
    shown = tokens.masked_fill(hidden, mask)
    logits = logits_at(module, shown, places, prompt=prompt, mask=mask, cfg_scale=cfg_scale)
    each = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    each.index_put_(places, log_probability(logits, tokens[places]))
    scores: list[float] = (each.sum(1) * (~prompt).sum(1) / hidden.sum(1)).tolist()
    return scores


def _agrees(module: nn.Module, tokens: Tensor, prompt: Tensor, vocabulary: Vocabulary, cfg_scale: float) -> Tensor:
    """Whether the network writes each row's answer; it is shown as much of it as it has written."""
    hidden = ~prompt
    agrees = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    while bool(agrees.any()) and bool(hidden.any()):
        places = hidden.nonzero(as_tuple=True)
        shown = tokens.masked_fill(hidden, vocabulary.mask)
        logits = logits_at(module, shown, places, prompt=prompt, mask=vocabulary.mask, cfg_scale=cfg_scale)
        drafts, sureness = draft(logits, vocabulary.forbidden(logits.shape[-1]), 0.0, (), ())
        is_right = torch.zeros_like(hidden).index_put_(places, drafts == tokens[places])
        sure = torch.full(tokens.shape, -torch.inf, dtype=sureness.dtype, device=tokens.device)
        surest = sure.index_put_(places, sureness).argsort(dim=1, descending=True, stable=True)[:, :1]
        agrees &= is_right.gather(1, surest)[:, 0]
        hidden.scatter_(1, surest, False)
    return agrees


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
