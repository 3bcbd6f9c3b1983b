"""The log-likelihood of an answer after a prompt, by Monte Carlo; and whether it is the greedy answer.

A draw masks exactly l of the answer's L tokens, chosen at random, and scores

    L / l * sum over the masked tokens of log q(token | prompt and the unmasked part of the answer)

whose mean over l = 1..L and over all choices is the answer's mean log-probability when it is generated in a random
order: a lower bound of log p(answer | prompt). The l of a pair's draws are spread evenly over 1..L from a random
offset, so that only the noise within an l remains. Probabilities are normalised over all logits, as in training: an
untrained network with uniform logits gives exactly -L log V, where V is the number of its logits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from samestep import noise
from samestep.data.tokenizer.vocabulary import Vocabulary
from samestep.recipes.mdlm.sampling import batches_by_shape, draft, log_probability, logits_at

COUNT = noise.purpose("mdlm.likelihood.count")
CHOICE = noise.purpose("mdlm.likelihood.choice")

PromptAnswer = tuple[list[int], list[int]]
"""A prompt and an answer, in tokens."""


@dataclass(frozen=True)
class Estimate:
    """A log-likelihood in nats, and its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Estimate":
        """From the draws in the order of their l.

        Neighbours have about the same l, hence their difference is noise alone; the spread of all draws would also
        count how the mean varies with l, which spreading the draws has removed. The error of one draw is unknown.
        """
        size = len(values)
        if size == 1:
            return cls(values[0], math.inf)
        squares = math.fsum((after - before) ** 2 for before, after in pairwise(values))
        return cls(math.fsum(values) / size, math.sqrt(squares / (2 * (size - 1) * size)))


@torch.no_grad()
def log_likelihood(
    module: nn.Module,
    pairs: Sequence[PromptAnswer],
    *,
    vocabulary: Vocabulary,
    draws: int,
    batch_size: int,
    seed: int,
    cfg_scale: float = 0.0,
    ids: Sequence[int] | None = None,
) -> list[Estimate]:
    """The log-likelihood of each answer after its prompt, from `draws` draws per pair.

    Noise is keyed by `ids`, by default the pairs' numbers. Rows of one length are batched, also those of several pairs.
    """
    assert draws > 0, f"an estimate needs at least one draw, not {draws}"
    keys = range(len(pairs)) if ids is None else ids
    # All draws of a one-token answer would be the same, and an answer without tokens needs none.
    draws_per_pair = [draws if len(answer) > 1 else len(answer) for _, answer in pairs]
    rows = [(number, draw) for number, count in enumerate(draws_per_pair) for draw in range(count)]
    values: list[list[float]] = [[] for _ in pairs]
    for batch in batches_by_shape([sum(map(len, pairs[number])) for number, _ in rows], batch_size):
        numbers = [rows[row][0] for row in batch]
        tokens, prompt = _rows([pairs[number] for number in numbers], _device(module))
        which = torch.tensor([(keys[rows[row][0]], rows[row][1]) for row in batch], device=tokens.device)
        masked = choose_masked(~prompt, draws, seed, *which.unbind(1))
        for number, score in zip(numbers, _score(module, tokens, prompt, masked, vocabulary.required_mask, cfg_scale)):
            values[number].append(score)
    return [
        Estimate.of(found) if len(answer) > 1 else Estimate(sum(found), 0.0)
        for found, (_, answer) in zip(values, pairs)
    ]


def choose_masked(answer: Tensor, draws: int, seed: int, key: Tensor, draw: Tensor) -> Tensor:
    """Which tokens to mask among those marked in `answer` [rows, length], for draw `draw` [rows] of pair `key` [rows].

    A draw masks exactly l of them; the l of all draws are spread evenly between 1 and the answer's length.
    """
    size = answer.sum(1)
    offset = noise.uniform(seed, COUNT, key, dtype=torch.float64)
    count = torch.minimum(1 + (size * (draw + offset) / draws).long(), size)
    positions = torch.arange(answer.shape[1], device=answer.device)
    random = noise.uniform(seed, CHOICE, key[:, None], draw[:, None], positions, dtype=torch.float64)
    order = random.masked_fill(~answer, torch.inf).argsort(dim=1, stable=True)
    ranks = torch.empty_like(order).scatter_(1, order, positions.expand_as(order))
    return ranks < count[:, None]


@torch.no_grad()
def is_greedy(
    module: nn.Module, pairs: Sequence[PromptAnswer], *, vocabulary: Vocabulary, batch_size: int, cfg_scale: float = 0.0
) -> list[bool]:
    """Whether each answer is what the network generates at temperature 0, one token a pass, most confident first."""
    found = [True] * len(pairs)
    for batch in batches_by_shape([tuple(map(len, pair)) for pair in pairs], batch_size):
        tokens, prompt = _rows([pairs[number] for number in batch], _device(module))
        for number, matches in zip(batch, _matches_greedy(module, tokens, prompt, vocabulary, cfg_scale).tolist()):
            found[number] = matches
    return found


def _rows(pairs: Sequence[PromptAnswer], device: torch.device) -> tuple[Tensor, Tensor]:
    """Prompts and answers of one length in all as tokens [rows, length], and which of them are prompt."""
    tokens = torch.tensor([[*prompt, *answer] for prompt, answer in pairs], dtype=torch.int64, device=device)
    sizes = torch.tensor([len(prompt) for prompt, _ in pairs], device=device)
    return tokens, torch.arange(tokens.shape[1], device=device) < sizes[:, None]


def _score(
    module: nn.Module, tokens: Tensor, prompt: Tensor, masked: Tensor, mask: int, cfg_scale: float
) -> list[float]:
    """The score of each row's draw."""
    positions = masked.nonzero(as_tuple=True)
    shown = tokens.masked_fill(masked, mask)
    logits = logits_at(module, shown, positions, prompt=prompt, mask=mask, cfg_scale=cfg_scale)
    each = torch.zeros(tokens.shape, dtype=torch.float64, device=tokens.device)
    each.index_put_(positions, log_probability(logits, tokens[positions]))
    scores: list[float] = (each.sum(1) * (~prompt).sum(1) / masked.sum(1)).tolist()
    return scores


def _matches_greedy(
    module: nn.Module, tokens: Tensor, prompt: Tensor, vocabulary: Vocabulary, cfg_scale: float
) -> Tensor:
    """Whether greedy decoding gives each row's answer; in each pass the network sees the tokens decoded so far."""
    masked = ~prompt
    matches = torch.ones(len(tokens), dtype=torch.bool, device=tokens.device)
    while bool(matches.any()) and bool(masked.any()):
        positions = masked.nonzero(as_tuple=True)
        shown = tokens.masked_fill(masked, vocabulary.required_mask)
        logits = logits_at(module, shown, positions, prompt=prompt, mask=vocabulary.required_mask, cfg_scale=cfg_scale)
        drafts, confidence = draft(logits, vocabulary.forbidden(logits.shape[-1]), 0.0, (), ())
        is_right = torch.zeros_like(masked).index_put_(positions, drafts == tokens[positions])
        scores = torch.full(tokens.shape, -torch.inf, dtype=confidence.dtype, device=tokens.device)
        best = scores.index_put_(positions, confidence).argsort(dim=1, descending=True, stable=True)[:, :1]
        matches &= is_right.gather(1, best)[:, 0]
        masked.scatter_(1, best, False)
    return matches


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device
