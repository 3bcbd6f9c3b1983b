"""The losses against values worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from samestep import UserError
from samestep.recipes.dpo.objective import (
    Objective,
    PairLogProbs,
    PairScores,
    first_loss,
    pair_terms,
    preference_loss,
)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


POLICY = PairLogProbs(numbers(-10.0, -7.0), numbers(-12.0, -3.0))
REFERENCE = PairLogProbs(numbers(-11.0, -6.0), numbers(-10.0, -3.0))
SCORES = PairScores(POLICY, torch.tensor([5, 4]), torch.tensor([4, 2]), {"recovery": numbers(2.0, 1.0)})


def terms(**settings: object) -> dict[str, list[float]]:
    found = pair_terms(Objective(**settings), SCORES, REFERENCE)  # type: ignore[arg-type]
    return {name: values.tolist() for name, values in found.items()}


def test_dpo_by_hand() -> None:
    found = terms(beta=0.5)  # gains 1 and -1 of the preferred, -2 and 0 of the others: margins 3 and -1
    assert found["dpo"] == pytest.approx([math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(0.5))])
    assert found["accuracy"] == [1.0, 0.0]
    assert found["margin"] == pytest.approx([1.5, -0.5])
    assert found["chosen_reward"] == pytest.approx([0.5, -0.5])
    assert found["rejected_reward"] == pytest.approx([-1.0, 0.0])
    assert found["sft"] == [10.0, 7.0]
    assert found["kl"] == pytest.approx([(0.5 + 2.0) / 2, 0.25])
    assert found["recovery"] == [2.0, 1.0]


def test_conservative_dpo_by_hand() -> None:
    right, wrong = math.log(1 + math.exp(-1.5)), math.log(1 + math.exp(1.5))
    assert terms(beta=0.5, label_smoothing=0.1)["dpo"][0] == pytest.approx(0.9 * right + 0.1 * wrong)


def test_ipo_and_hinge_by_hand() -> None:
    found = terms(beta=0.5, loss_type="ipo")  # margins by token: 1/5 + 2/4, -1/4 - 0
    assert found["dpo"] == pytest.approx([(0.7 - 1) ** 2, (-0.25 - 1) ** 2])
    assert found["margin"] == pytest.approx([0.35, -0.125])
    assert terms(beta=0.5, loss_type="ipo_sum")["dpo"] == pytest.approx([4.0, 4.0])  # (3 - 1)^2, (-1 - 1)^2
    assert terms(beta=0.5, loss_type="hinge")["dpo"] == pytest.approx([0.0, 1.5])


def test_ipo_does_not_grow_with_the_length() -> None:
    """As TRL has it: scores are divided by the tokens of their completion, then compared, in float64."""
    draw = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, 300, (2, 64), generator=draw)
    ratios = [[0.2 * torch.randn(int(n), generator=draw).double() + 0.1 for n in row] for row in lengths]
    sums = torch.stack([torch.stack([each.sum() for each in row]) for row in ratios])
    by_hand = torch.stack([torch.stack([each.mean() for each in row]) for row in ratios])
    scores = PairScores(PairLogProbs(sums[0] - 300, sums[1] - 280), lengths[0], lengths[1])
    reference = PairLogProbs(numbers(*[-300.0] * 64), numbers(*[-280.0] * 64))
    found = {
        kind: pair_terms(Objective(loss_type=kind), scores, reference)["dpo"]  # type: ignore[arg-type]
        for kind in ("ipo", "ipo_sum")
    }
    torch.testing.assert_close(found["ipo"], (by_hand[0] - by_hand[1] - 5).square(), rtol=1e-11, atol=0)
    torch.testing.assert_close(found["ipo_sum"], (sums[0] - sums[1] - 5).square(), rtol=1e-11, atol=0)
    assert found["ipo"].mean() < 30 < 100 < found["ipo_sum"].mean()


def test_length_normalised_by_hand() -> None:
    found = terms(beta=0.5, length_normalised=True)  # 1/5 + 2/4, -1/4 - 0
    assert found["margin"] == pytest.approx([0.35, -0.125])
    assert found["sft"] == [10.0, 7.0], "its tokens are counted by the feed"


@pytest.mark.parametrize(
    ("settings", "loss"),
    [
        ({}, math.log(2)),
        ({"label_smoothing": 0.3}, math.log(2)),
        ({"loss_type": "ipo"}, 25.0),
        ({"loss_type": "ipo_sum"}, 25.0),
        ({"loss_type": "hinge"}, 1.0),
    ],
)
def test_the_loss_of_the_reference_itself(settings: dict[str, object], loss: float) -> None:
    objective = Objective(**settings)  # type: ignore[arg-type]
    assert first_loss(objective) == pytest.approx(loss)
    same = pair_terms(objective, SCORES, POLICY)
    assert same["accuracy"].tolist() == [0.5, 0.5]
    rounded = pair_terms(objective, SCORES, PairLogProbs(POLICY.chosen * (1 + 1e-9), POLICY.rejected))
    assert rounded["accuracy"].tolist() == [0.5, 0.5]
    assert same["dpo"].tolist() == pytest.approx([loss, loss])


@pytest.mark.parametrize("settings", [{}, {"loss_type": "ipo"}, {"loss_type": "hinge"}, {"label_smoothing": 0.2}])
def test_the_gradient_raises_the_margin(settings: dict[str, object]) -> None:
    margin = numbers(-0.5, 0.0, 0.5).requires_grad_()
    preference_loss(Objective(**settings), margin).sum().backward()  # type: ignore[arg-type]
    assert margin.grad is not None and (margin.grad < 0).all()


def test_what_is_trained() -> None:
    assert Objective().mix == {"dpo": 1.0}
    assert Objective(sft_coef=0.2, diversity_lambda=0.1).mix == {"dpo": 1.0, "sft": 0.2, "diversity": 0.1}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"beta": 0.0}, "beta must be a number above 0, not 0.0"),
        ({"label_smoothing": 0.5}, "label_smoothing must be a number of at least 0 and below 0.5, not 0.5"),
        ({"sft_coef": -1.0}, "sft_coef must be a number of at least 0, not -1.0"),
        ({"loss_type": "ipo_sum", "length_normalised": True}, "Set objective.loss_type=ipo, which is ipo_sum by token"),
    ],
)
def test_what_cannot_be_trained_with(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Objective(**settings)  # type: ignore[arg-type]
