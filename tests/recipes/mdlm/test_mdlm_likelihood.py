"""Likelihood by Monte Carlo against the enumeration of every choice of masked tokens."""

import math
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from samestep.data.tokenizer.vocabulary import Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.evaluation import Estimate, PromptAnswer, choose_masked, is_greedy, log_likelihood
from samestep.recipes.mdlm.sampling import SamplingConfig, sample

WORDS = Vocabulary(size=9, mask=7, eos=8)


def network(init_std: float = 0.6) -> Transformer:
    torch.manual_seed(0)
    shape = {"d_model": 16, "n_layers": 2, "n_heads": 2, "mlp_hidden_size": 32, "vocab_size": 9, "embedding_size": 11}
    return Transformer(TransformerConfig(**shape, init_std=init_std)).double()  # type: ignore[arg-type]


NETWORK = network()
PAIRS: list[PromptAnswer] = [([1, 2, 3], [4, 5, 0, 6]), ([6], [1, 1, 2]), ([], [3, 0, 5, 5])]


@torch.no_grad()
def enumerated(module: nn.Module, pair: PromptAnswer, cfg_scale: float = 0.0) -> float:
    """The sum over l of the mean, over all choices of l answer tokens, of their log-probabilities over l."""
    prompt, answer = pair
    total = 0.0
    for count in range(1, len(answer) + 1):
        choices = list(combinations(range(len(prompt), len(prompt) + len(answer)), count))
        for choice in choices:
            tokens = torch.tensor([[*prompt, *answer]])
            wanted = tokens[0, list(choice)]
            tokens[0, list(choice)] = WORDS.mask
            unconditional = tokens.clone()
            unconditional[0, : len(prompt)] = WORDS.mask
            without, logits = module(unconditional)[0], module(tokens)[0]
            guided = without + (cfg_scale + 1) * (logits - without)
            logs = guided[list(choice)].log_softmax(-1).gather(1, wanted[:, None])
            total += float(logs.sum()) / count / len(choices)
    return total


@pytest.mark.parametrize("cfg_scale", [0.0, 0.7])
def test_the_mean_is_that_of_all_choices(cfg_scale: float) -> None:
    found = log_likelihood(NETWORK, PAIRS, vocabulary=WORDS, draws=12000, batch_size=3000, seed=1, cfg_scale=cfg_scale)
    for pair, estimate in zip(PAIRS, found):
        exact = enumerated(NETWORK, pair, cfg_scale)
        assert estimate.error < 0.005 * abs(exact)
        assert abs(estimate.mean - exact) < 3 * estimate.error


def test_the_error_is_that_of_the_mean() -> None:
    """Repeated with other seeds, the means scatter by about the error."""
    pair, draws = PAIRS[0], 24
    found = [
        log_likelihood(NETWORK, [pair], vocabulary=WORDS, draws=draws, batch_size=draws, seed=seed)[0]
        for seed in range(150)
    ]
    scatter = torch.tensor([one.mean for one in found], dtype=torch.float64).std().item()
    expected = math.sqrt(sum(one.error**2 for one in found) / len(found))
    assert scatter == pytest.approx(expected, rel=0.2)


class Ignorant(nn.Module):
    """Gives every logit the same value."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(3.0))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.level.expand(*tokens.shape, 11)


@pytest.mark.parametrize("cfg_scale", [0.0, 2.0])
def test_a_network_that_knows_nothing_is_uniform_over_its_logits(cfg_scale: float) -> None:
    for answer, draws in (([1], 7), ([1, 2, 3, 4, 5], 7), ([0] * 13, 1)):
        pairs = [([5, 6], answer)]
        (found,) = log_likelihood(
            Ignorant(), pairs, vocabulary=WORDS, draws=draws, batch_size=4, seed=0, cfg_scale=cfg_scale
        )
        assert found.mean == pytest.approx(-len(answer) * math.log(11), rel=1e-12)
        assert draws == 1 or found.error == pytest.approx(0.0, abs=1e-12)


def test_short_answers_are_exact_and_one_draw_has_no_known_error() -> None:
    pairs: list[PromptAnswer] = [([1, 2], [3]), ([1], []), ([1], [2, 3])]
    one, none, two = log_likelihood(NETWORK, pairs, vocabulary=WORDS, draws=1, batch_size=8, seed=0)
    assert one == Estimate(pytest.approx(enumerated(NETWORK, pairs[0])), 0.0)
    assert none == Estimate(0.0, 0.0)
    assert two.error == math.inf


def test_an_estimate_does_not_depend_on_the_batch() -> None:
    rules = {"vocabulary": WORDS, "draws": 10, "seed": 4}
    together = log_likelihood(NETWORK, PAIRS, batch_size=7, **rules)  # type: ignore[arg-type]
    for number, pair in enumerate(PAIRS):
        (alone,) = log_likelihood(NETWORK, [pair], batch_size=64, ids=[number], **rules)  # type: ignore[arg-type]
        assert alone.mean == pytest.approx(together[number].mean, rel=1e-12)
        assert alone.error == pytest.approx(together[number].error, rel=1e-9)


def test_draws_mask_every_count_and_every_token_equally_often() -> None:
    draws, keys = 40, 100
    answer = (torch.arange(7) >= 2).expand(draws * keys, -1)
    key, draw = torch.arange(keys).repeat_interleave(draws), torch.arange(draws).repeat(keys)
    masked = choose_masked(answer, draws, 0, key, draw)
    assert not masked[:, :2].any()
    counts = masked.sum(1).view(keys, draws)
    assert all(row.bincount(minlength=6).tolist() == [0, 8, 8, 8, 8, 8] for row in counts)
    singles = masked[masked.sum(1) == 1].sum(0)[2:]
    assert singles.sum() == 800
    assert int(singles.min()) > 120  # 160 each, by chance 11 more or less


def test_few_draws_reach_every_count_too() -> None:
    keys = torch.arange(500)
    both = [
        choose_masked(torch.ones(500, 5, dtype=torch.bool), 2, 0, keys, torch.full((500,), draw)).sum(1)
        for draw in (0, 1)
    ]
    assert int(torch.cat(both).bincount(minlength=6)[1:].min()) > 150  # 200 each, by chance 13 more or less
    assert bool((both[0] < both[1]).all())


def test_greedy_is_what_is_generated_at_temperature_zero() -> None:
    options = SamplingConfig(max_new_tokens=4, steps=4, temperature=0.0)
    prompts = torch.tensor([[1, 2, 3], [4, 5, 6], [0, 0, 0]])
    written = sample(NETWORK, prompts, options, seed=0, vocabulary=WORDS)[:, 3:].tolist()
    pairs = [(prompt, answer) for prompt, answer in zip(prompts.tolist(), written)]
    changed = [
        (prompt, [*answer[:at], (answer[at] + 1) % 7, *answer[at + 1 :]]) for prompt, answer in pairs for at in range(4)
    ]
    others: list[PromptAnswer] = [([1], []), ([1], [WORDS.mask])]
    found = is_greedy(NETWORK, [*pairs, *changed, *others], vocabulary=WORDS, batch_size=5)
    assert found == [True] * 3 + [False] * 12 + [True, False]
