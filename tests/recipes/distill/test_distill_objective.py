"""The losses against plain loops over rows, pairs and dimensions."""

import math

import pytest
import torch
from torch import Tensor

from samestep import UserError
from samestep.recipes.distill.objective import (
    AlignObjective,
    KnownPositives,
    RankObjective,
    align_terms,
    cosent,
    false_negatives,
    info_nce,
    margin_mse,
    score_divergence,
    unit_prefix,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def length_1(values: list[float]) -> list[float]:
    size = math.sqrt(sum(value * value for value in values))
    return [value / size for value in values]


def test_align_terms_are_means_over_dimensions_of_renormalised_prefixes() -> None:
    student, teacher = draw(3, 6), draw(3, 8, seed=1)
    found = align_terms(student, teacher, (6, 2))
    for row in range(3):
        distances, cosines = [], []
        for dim in (6, 2):
            mine, wanted = (length_1(each[row, :dim].tolist()) for each in (student, teacher))
            distances.append(sum((a - b) ** 2 for a, b in zip(mine, wanted)))
            cosines.append(sum(a * b for a, b in zip(mine, wanted)))
        assert float(found["mse"][row]) == pytest.approx(sum(distances) / 2)
        assert float(found["cosine_distance"][row]) == pytest.approx(1 - sum(cosines) / 2)
        assert float(found["cosine"][row]) == pytest.approx(cosines[0])


def test_the_squared_distance_is_the_mean_square_times_the_dimension() -> None:
    student, teacher = unit_prefix(draw(2, 5), 5), unit_prefix(draw(2, 5, seed=1), 5)
    wanted = torch.nn.functional.mse_loss(student, teacher, reduction="none").mean(1) * 5
    torch.testing.assert_close(align_terms(student, teacher, (5,))["mse"], wanted)


def test_info_nce_is_the_share_of_the_positive_among_what_counts() -> None:
    queries, pool = unit_prefix(draw(2, 4), 4), unit_prefix(draw(5, 4), 4)
    targets = torch.tensor([3, 0])
    left_out = torch.tensor([[True, False, False, False, False], [False, False, True, True, False]])
    found = info_nce(queries, pool, targets, left_out, 0.05)
    for row in range(2):
        weights = [
            0.0 if left_out[row, place] else math.exp(float(queries[row] @ pool[place]) / 0.05) for place in range(5)
        ]
        assert float(found[row]) == pytest.approx(-math.log(weights[int(targets[row])] / sum(weights)))


def test_what_is_no_negative() -> None:
    """Query 0 is answered by passages 4 and 2, query 1 by 7; the pool has 4 twice, and gaps."""
    known = KnownPositives([(0, 4), (0, 2), (1, 7)], passages=9)
    pool = torch.tensor([4, 2, 7, -1, 4, 5])
    found = false_negatives(known, torch.tensor([0, 1]), torch.tensor([4, 7]), pool, torch.tensor([0, 2]))
    assert found.tolist() == [[False, True, False, True, True, False], [False, False, False, True, False, False]]


def test_a_missing_passage_is_no_known_answer() -> None:
    """Query 1 with passage -1 has the key of query 0 with the last passage."""
    known = KnownPositives([(0, 8)], passages=9)
    assert known.among(torch.tensor([1]), torch.tensor([-1, 8])).tolist() == [[False, False]]
    assert known.among(torch.tensor([0]), torch.tensor([-1, 8])).tolist() == [[False, True]]


def test_margin_mse_and_divergence_leave_out_what_is_absent() -> None:
    student, teacher = draw(2, 4), draw(2, 4, seed=1)
    present = torch.tensor([[True, True, False, True], [True, False, False, False]])
    margins = margin_mse(student, teacher, present)
    apart = score_divergence(student, teacher, present, 0.5)
    for row in range(2):
        here = [place for place in range(4) if present[row, place]]
        wanted = 0.0
        for place in here[1:]:
            wanted += float((student[row, 0] - student[row, place] - teacher[row, 0] + teacher[row, place]) ** 2)
        assert float(margins[row]) == pytest.approx(wanted)
        mine, theirs = ([math.exp(float(each[row, place]) / 0.5) for place in here] for each in (student, teacher))
        shares = [(t / sum(theirs), s / sum(mine)) for t, s in zip(theirs, mine)]
        assert float(apart[row]) == pytest.approx(0.5**2 * sum(t * math.log(t / s) for t, s in shares))


def test_cosent_counts_every_pair_that_the_teacher_orders() -> None:
    student = draw(6)
    teacher = torch.tensor([0.1, 0.5, 0.5 + 1e-9, -0.2, 0.9, 0.1], dtype=torch.float64)
    total = 1.0
    for a in range(6):
        for b in range(6):
            if float(teacher[a] - teacher[b]) > 1e-6:  # 1e-9 is rounding
                total += math.exp(float(student[b] - student[a]) / 0.05)
    assert float(cosent(student, teacher, 0.05)) == pytest.approx(math.log(total))


def test_gradients_are_finite_where_nothing_counts() -> None:
    """A record without negatives, a pool whose other passages are all left out, pairs that are all equal."""
    scores = draw(1, 3).requires_grad_()
    alone = torch.tensor([[True, False, False]])
    queries, pool = draw(1, 4).requires_grad_(), draw(2, 4).requires_grad_()
    left_out = torch.tensor([[False, True]])
    total = margin_mse(scores, scores.detach(), alone) + score_divergence(scores, scores.detach(), alone, 0.02)
    total = total + info_nce(queries, pool, torch.tensor([0]), left_out, 0.02) + cosent(scores[0], torch.zeros(3), 0.05)
    total.sum().backward()
    for leaf in (scores, queries, pool):
        assert leaf.grad is not None and leaf.grad.isfinite().all()


def test_what_cannot_be_trained_with_is_refused() -> None:
    with pytest.raises(UserError, match="Set at least one of the weights of align above 0"):
        AlignObjective(mse=0, cosine=0)
    with pytest.raises(UserError, match="kl must be a number of at least 0, not -1"):
        RankObjective(kl=-1)
    with pytest.raises(UserError, match="above 0"):
        RankObjective(temperature=0)
    assert RankObjective().mix == {"info_nce": 0.8, "mse": 0.2}
    assert AlignObjective().mix == {"mse": 0.4, "cosine_distance": 0.6}
