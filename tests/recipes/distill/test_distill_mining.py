"""Hard negatives against a plain search."""

import torch
from torch.nn.functional import normalize

from samestep.recipes.distill.config import MiningConfig
from samestep.recipes.distill.teacher import hard_negatives


def test_the_closest_that_are_no_answers() -> None:
    random = torch.Generator().manual_seed(0)
    queries, passages = (normalize(torch.randn(size, 8, generator=random), dim=1) for size in (5, 40))
    answers = [{3 * number, 3 * number + 1} for number in range(5)]
    positives = torch.stack([passages[3 * number] for number in range(5)])
    for skip in (0, 2):
        mining = MiningConfig(negatives=4, highest=0.9, skip=skip)
        found = hard_negatives(mining, queries, positives, passages, answers)
        for number, query in enumerate(queries):
            scores = (passages.double() @ query.double()).tolist()
            limit = scores[3 * number] - 0.1 * abs(scores[3 * number])
            fitting = [place for place in range(40) if place not in answers[number] and scores[place] < limit]
            fitting.sort(key=lambda place: -scores[place])
            assert found[number] == fitting[skip : skip + 4]
    assert any(len(numbers) == 4 for numbers in found)


def test_nothing_is_closer_than_a_positive_that_is_far_away() -> None:
    query, positive = torch.tensor([[1.0, 0.0]]), torch.tensor([[-0.2, 0.9]])
    passages = torch.tensor([[-0.2, 0.9], [-0.195, 0.9], [-0.5, 0.8]])
    assert hard_negatives(MiningConfig(negatives=3, highest=0.9), query, positive, passages, [{0}]) == [[2]]


def test_fewer_where_there_are_no_more() -> None:
    passages = torch.eye(3)
    found = hard_negatives(MiningConfig(negatives=5, highest=2.0), passages[:1], passages[:1], passages, [{0}])
    assert found == [[1, 2]]
