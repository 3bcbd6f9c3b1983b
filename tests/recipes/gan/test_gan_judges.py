"""A judge by the odds of its answers: right, wrong, and undecided."""

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import bench_of
from samestep import CausalConfig, World
from samestep.recipes.gan.judges import VerdictJudge
from samestep.recipes.gan.judging import JudgeConfig, Pair
from samestep.recipes.gan.players import BuiltInPlayer


class Says(nn.Module):
    """Gives 1 and 2 the same logits by row, whatever it reads."""

    def __init__(self, ones: list[float], twos: list[float], dtype: torch.dtype) -> None:
        super().__init__()
        self.ones, self.twos, self.dtype = torch.tensor(ones), torch.tensor(twos), dtype

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 259)
        logits[..., ord("1")], logits[..., ord("2")] = self.ones[:, None], self.twos[:, None]
        return logits.to(self.dtype)


@pytest.mark.parametrize(
    ("dtype", "first"), [(torch.float64, [1, 0, 1, 1]), (torch.float32, [1, 0, 1, 1]), (torch.bfloat16, [1, 0, 0.5, 1])]
)
def test_where_it_has_not_decided_it_is_half_right(dtype: torch.dtype, first: list[float]) -> None:
    """8 and 8.001 are the same number in bf16. The last pair has nothing to judge: it is caught."""
    judge = VerdictJudge(bench_of(World.single(), "ddp"), JudgeConfig(), BuiltInPlayer(CausalConfig(tied_head=True)))
    network = Says([2.0, 0.0, 8.001, 0.0], [1.0, 3.0, 8.0, 5.0], dtype)
    ids = torch.zeros(4, 2, dtype=torch.int64)
    pairs = [Pair(list(b"x" * size), 1, is_shown=size > 1) for size in (2, 5, 3, 1)]
    rows = judge.ask(network, pairs, ids, step=0, turn=None)
    assert rows["right"].tolist() == rows["judge_reward"].tolist() == first
    assert rows["reward"][2] == pytest.approx(0.5, abs=0.001)
    assert rows["reward"][3] == 0
    swapped = [Pair(pair.tokens, 2, pair.is_shown) for pair in pairs]
    shown = judge.ask(network, swapped, ids, step=0, turn=None)["right"]
    assert shown.tolist() == [*(1 - right for right in first[:3]), 1], (
        "what is right in one order is wrong in the other"
    )


def test_an_answer_that_is_no_number_is_wrong() -> None:
    judge = VerdictJudge(bench_of(World.single(), "ddp"), JudgeConfig(), BuiltInPlayer(CausalConfig(tied_head=True)))
    network = Says([torch.nan], [0.0], torch.float32)
    rows = judge.ask(network, [Pair([120], 1, True)], torch.zeros(1, 2, dtype=torch.int64), step=0, turn=None)
    assert rows["right"].tolist() == [0]
