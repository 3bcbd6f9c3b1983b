"""Objectives of the generator, against numbers worked out by hand and against the gradient they should have."""

import math

import pytest
import torch
from torch import Tensor

from samestep import UserError
from samestep.recipes.gan.objectives import Objective, policy_mix, policy_terms, spin_terms

DOUBLE = torch.float64


def rows(now: Tensor, before: Tensor, advantage: list[float], lengths: list[int]) -> dict[str, Tensor]:
    written = torch.arange(now.shape[1]) < torch.tensor(lengths)[:, None]
    return {"is_written": written, "before": before, "advantage": torch.tensor(advantage, dtype=DOUBLE)}


def test_the_first_update_has_the_gradient_of_reinforce() -> None:
    """Where nothing has changed since the rollout, ratios are 1 and clip nothing."""
    before = torch.log(torch.tensor([[0.5, 0.25, 0.1], [0.9, 0.3, 0.2]], dtype=DOUBLE))
    gradients = []
    for kind in ("reinforce", "ppo"):
        now = before.clone().requires_grad_()
        terms = policy_terms(Objective(kind), now, torch.zeros_like(now), rows(now, before, [2.0, -1.0], [2, 3]))
        terms["policy"].sum().backward()
        assert terms["clipped"].tolist() == [0.0, 0.0]
        gradients.append(now.grad)
    assert torch.equal(gradients[0], gradients[1])
    assert gradients[0].tolist() == [[-2.0, -2.0, 0.0], [1.0, 1.0, 1.0]], "nothing from padding"


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "has_gradient"),
    [
        (1.5, 1.0, -1.2, False),  # already likelier by more than 0.2: no more of it
        (0.5, 1.0, -0.5, True),
        (0.5, -1.0, 0.8, False),
        (1.5, -1.0, 1.5, True),
        (1.1, 1.0, -1.1, True),
    ],
)
def test_a_ratio_that_has_moved_far_has_no_gradient(
    ratio: float, advantage: float, value: float, has_gradient: bool
) -> None:
    before = torch.zeros(1, 1, dtype=DOUBLE)
    now = torch.full((1, 1), math.log(ratio), dtype=DOUBLE, requires_grad=True)
    terms = policy_terms(Objective("ppo"), now, torch.zeros_like(now), rows(now, before, [advantage], [1]))
    assert float(terms["policy"]) == pytest.approx(value)
    assert float(terms["clipped"]) == float(abs(ratio - 1) > 0.2)
    terms["policy"].sum().backward()
    assert bool(now.grad.abs().sum() > 1e-9) == has_gradient


def test_the_divergence_from_the_reference_is_summed_over_what_was_written() -> None:
    now, before = torch.zeros(2, 3, dtype=DOUBLE), torch.zeros(2, 3, dtype=DOUBLE)
    given = {**rows(now, before, [1.0, 1.0], [1, 3]), "reference": torch.full((2, 3), math.log(2), dtype=DOUBLE)}
    found = policy_terms(Objective(kl_coef=0.1), now, torch.zeros_like(now), given)["kl"]
    assert found.tolist() == pytest.approx([1 - math.log(2), 3 * (1 - math.log(2))])


def test_terms_that_count_nothing_are_not_mixed_in() -> None:
    assert policy_mix(Objective()) == {"policy": 1.0, "entropy": -0.01}
    assert policy_mix(Objective(entropy_coef=0.0, kl_coef=0.1)) == {"policy": 1.0, "kl": 0.1}


def test_a_preference_begins_at_ln_2_and_prefers_the_human_text() -> None:
    human = torch.tensor([-3.0, -4.0], dtype=DOUBLE, requires_grad=True)
    own = torch.tensor([-2.0, -1.0], dtype=DOUBLE, requires_grad=True)
    before = {"human_before": human.detach(), "own_before": own.detach()}
    terms = spin_terms(Objective("spin", spin_beta=0.5), human, own, before)
    assert terms["preference"].tolist() == pytest.approx([math.log(2)] * 2)
    terms["preference"].sum().backward()
    assert human.grad.tolist() == pytest.approx([-0.25, -0.25])
    assert own.grad.tolist() == pytest.approx([0.25, 0.25])


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"kind": "grpo"}, "grpo compares the completions of one prompt"),
        ({"kind": "reinforce", "inner_epochs": 2}, "reinforce has no ratio"),
        ({"clip_eps": 0.0}, "above 0"),
        ({"kl_coef": -1.0}, "kl_coef must be a number of at least 0, not -1.0"),
        ({"parts": 0}, "parts must be a whole number of at least 1, not 0"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Objective(**settings)
