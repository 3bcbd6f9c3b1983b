"""What an optimizer of a recipe's own may keep, and what is refused before it could be lost."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep import UserError
from samestep.checkpoint.store import Store
from samestep.data.loading import Batch
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.learner.optimizers.choices import CustomOptimizer
from samestep.world.world import World
from toys import SETTINGS, Net, Points, close, feed_of, learner_of, made, weights_of


class Kept(torch.optim.Optimizer):
    """Steps against the gradient and calls `keep` with itself, a parameter and its group."""

    def __init__(self, params: Iterable[Any], keep: Callable[..., None]) -> None:
        super().__init__(params, {"lr": 0.0, "weight_decay": 0.0, "betas": (0.5, 0.5), "factor": 1.0})
        self._keep = keep

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                self._keep(self, parameter, group)
                parameter.sub_(group["lr"] * group["factor"] * parameter.grad)


def learner_with(keep: Callable[..., None], seed: int = 1) -> Learner:
    optimizer = CustomOptimizer(lambda params: Kept(params, keep))
    settings = OptimSettings(SETTINGS.betas, SETTINGS.eps, None, 0.0, optimizer=optimizer)
    return learner_of(made(Net, seed), World.single(), "ddp", settings=settings)


def error(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"].float(), batch["tokens"]) - batch["y"]).square().sum(1)}


def update(learner: Learner, steps: range) -> None:
    feed = feed_of(Points(24), learner.world, 8, 3, steps=4)
    for step in steps:
        learner.update(feed[step], error)


def keep_much(optimizer: Kept, parameter: Tensor, group: dict[str, Any]) -> None:
    state = optimizer.state[parameter]
    if not state:
        state |= {"count": 0, "half": parameter.half(), "flag": True, "none": None, "host": torch.tensor(7)}
    state["count"] += 1
    state["half"] = state["half"] * 0.5  # another tensor at every step
    group["factor"] *= 0.9
    group["betas"] = (group["betas"][0] * 0.5, 0.5)


def test_everything_that_can_be_saved_comes_back(tmp_path: Path) -> None:
    first, resumed = learner_with(keep_much), learner_with(keep_much, seed=2)
    update(first, range(2))
    store = Store(tmp_path, World.single())
    store.save(2, {"model": first}, {})
    found = store.newest()
    assert found is not None
    store.load(found, {"model": resumed})
    for learner in (first, resumed):
        update(learner, range(2, 4))
    close(weights_of(resumed), weights_of(first), tolerance=0)
    one, other = (learner._optimizer.inner for learner in (first, resumed))
    for mine, theirs in zip(one.param_groups, other.param_groups):
        assert (mine["factor"], mine["betas"]) == (theirs["factor"], theirs["betas"])
        for here, there in zip(mine["params"], theirs["params"]):
            assert {k: v for k, v in one.state[here].items() if not isinstance(v, Tensor)} == {
                k: v for k, v in other.state[there].items() if not isinstance(v, Tensor)
            }
            assert torch.equal(one.state[here]["half"], other.state[there]["half"])
            assert other.state[there]["host"].dtype == torch.int64


def test_a_state_from_before_the_first_step_is_loaded_too() -> None:
    first, resumed = learner_with(keep_much), learner_with(keep_much, seed=2)
    update(resumed, range(2))  # what it had is forgotten
    resumed.load_state_dict(first.state_dict())
    for learner in (first, resumed):
        update(learner, range(3))
        assert learner._optimizer.inner.state[next(iter(learner.parameters()))]["count"] == 3
    close(weights_of(resumed), weights_of(first), tolerance=0)


def keep_list(optimizer: Kept, parameter: Tensor, group: dict[str, Any]) -> None:
    optimizer.state[parameter]["past"] = [parameter.clone()]


def keep_elsewhere(optimizer: Kept, parameter: Tensor, group: dict[str, Any]) -> None:
    optimizer.state["all"] = {"count": 1}  # type: ignore[index]


def keep_attribute(optimizer: Kept, parameter: Tensor, group: dict[str, Any]) -> None:
    optimizer.count = getattr(optimizer, "count", 0) + 1  # type: ignore[attr-defined]


def keep_tensor_in_group(optimizer: Kept, parameter: Tensor, group: dict[str, Any]) -> None:
    group["sum"] = parameter.sum()


@pytest.mark.parametrize(
    ("keep", "sentence"),
    [
        (keep_list, "the optimizer's state 'past' of 'table.weight' is a list, which a checkpoint cannot hold"),
        (keep_elsewhere, "Kept keeps state under 'all', which is no parameter"),
        (keep_attribute, "Kept keeps state in its attribute 'count', which a checkpoint cannot hold"),
        (keep_tensor_in_group, "the optimizer's state 'sum' of a group is a Tensor, which a checkpoint cannot hold"),
    ],
)
def test_what_cannot_be_saved_is_refused_at_the_first_step(keep: Callable[..., None], sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        update(learner_with(keep), range(1))
    assert sentence in str(refused.value)
