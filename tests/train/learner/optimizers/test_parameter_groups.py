"""Patterns of parameter names, and what they change."""

import pytest
import torch
from torch import nn

from samestep import Group, UserError
from samestep.train.learner.optimizers.groups import torch_groups, trained_parameters


class Tied(nn.Module):
    """A head that shares the table's weight, a frozen part, and a part that was compiled by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.inner = nn.Linear(3, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.table.weight
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.compiled = nn.Module()
        self.compiled._orig_mod = nn.Linear(3, 3, bias=False)


def test_the_first_match_counts_and_a_shared_parameter_has_all_its_names() -> None:
    groups = {"inner.bias": Group(decay=0.3), "inner.*": Group(rate=2.0), "head.weight": Group(rate=0.5)}
    found = {t.name: (t.group.rate, t.decay) for t in trained_parameters(Tied(), groups, 0.1)}
    assert found == {
        "table.weight": (0.5, 0.0),
        "inner.weight": (2.0, 0.1),
        "inner.bias": (1.0, 0.3),
        "head.bias": (1.0, 0.0),
        "compiled.weight": (1.0, 0.1),
    }


def test_torch_gets_one_group_for_each_rate_and_decay() -> None:
    parameters = trained_parameters(Tied(), {"inner.*": Group(rate=2.0)}, None)
    found = [(len(group["params"]), group.get("weight_decay")) for group in torch_groups(parameters)]
    assert found == [(2, 0.0), (1, None), (1, 0.0), (1, None)]
    torch.optim.SGD(torch_groups(parameters))


@pytest.mark.parametrize("pattern", ["innr.*", "frozen.*"])
def test_a_pattern_without_a_match_is_refused_with_the_closest_names(pattern: str) -> None:
    with pytest.raises(UserError, match=r"matches no trainable parameter; the closest names are '.*weight'"):
        trained_parameters(Tied(), {pattern: Group()}, 0.1)


@pytest.mark.parametrize(
    "wrong",
    [{"rate": -1.0}, {"decay": -0.1}, {"rate": float("nan")}, {"train_from": -1}, {"train_from": 3, "train_until": 3}],
)
def test_wrong_values_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UserError, match="here is Group"):
        Group(**wrong)  # type: ignore[arg-type]


def test_the_steps_of_a_group() -> None:
    assert [Group(train_from=2, train_until=4).is_trained_at(step) for step in range(6)] == [0, 0, 1, 1, 0, 0]
    assert all(Group().is_trained_at(step) for step in range(3))
