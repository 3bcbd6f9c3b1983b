"""The loss that a real run differentiates, on one rank and on two, is on average the exact one."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from exact_toy import TOY, ExactConditionals, ToyRows
from torch import Tensor

from samestep.data.order import Shuffled
from samestep.recipes.mdlm.objective import Objective, ObjectiveConfig, pair_rows
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import feed_of, learner_of, run_on_ranks

ROWS, BATCH, MICRO = 120_000, 2001, 600
STEPS = -(-ROWS // BATCH)
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "pre-training": {"sft": False, "cut_rows": 0.2},
    "fine-tuning": {"sft": True},
    "fine-tuning by token": {"sft": True, "norm": "token"},
}


def objective(sft: bool, **options: Any) -> Objective:
    return Objective(ObjectiveConfig(**options), TOY, seed=10, sft=sft)


def every_loss(world: World, target: Objective) -> list[float]:
    """The loss of every step of an epoch, as a run logs it, of a network that does not learn."""
    toy = ExactConditionals()
    feed = feed_of(target.training_rows(ToyRows(toy, ROWS, target.sft)), world, BATCH, MICRO, STEPS, target.count)
    learner = learner_of(toy, world, "ddp", rate=lambda update: 0.0)
    book, losses = MetricAccumulator(world), []
    for step in range(STEPS):
        book.add(learner.update(pair_rows(feed[step]), target.loss))
        losses.append(book.read()["loss"])
        toy.seen.clear()
    return losses


def worker(path: Path) -> None:
    torch.set_default_dtype(torch.float64)
    world = World.join(device="cpu", timeout=60)
    found = {name: every_loss(world, objective(**settings)) for name, settings in SETTINGS.items()}
    if world.is_main:
        path.write_text(json.dumps(found))
    world.leave()


@pytest.fixture(scope="module")
def losses(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, list[float]]]:
    folder = tmp_path_factory.mktemp("unbiased")
    for ranks in (1, 2):
        run_on_ranks(worker, ranks, folder / f"{ranks}.json", logs=folder / f"logs_{ranks}")
    return {ranks: json.loads((folder / f"{ranks}.json").read_text()) for ranks in (1, 2)}


def exact_losses(target: Objective) -> list[float]:
    """What the loss of every step would be with the true negative log-likelihood of every row."""
    toy = ExactConditionals()
    rows, order = ToyRows(toy, ROWS, target.sft), Shuffled(ROWS, BATCH, seed=3)
    trained = target.training_rows(rows)
    found = []
    for step in range(STEPS):
        indices = order.ids(step)[:, 1]
        found.append(exact(toy, target, trained.of_step(step, indices).rows(indices)))
    return found


def exact(toy: ExactConditionals, target: Objective, batch: dict[str, Tensor]) -> float:
    length = target.lengths(batch)
    nll = toy.nll(batch["tokens"], length) - toy.nll(batch["tokens"], batch["prompt"])
    answer = length - batch["prompt"]
    return float((nll / answer).mean() if target.norm == "sequence" else nll.sum() / answer.sum())


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_loss_of_a_run_is_unbiased(name: str, ranks: int, losses: dict[int, dict[str, list[float]]]) -> None:
    wanted = torch.tensor(exact_losses(objective(**SETTINGS[name])), dtype=torch.float64)
    error = torch.tensor(losses[ranks][name], dtype=torch.float64) - wanted
    off = float(error.mean() / wanted.mean())
    deviation = float(error.std() / len(error) ** 0.5 / wanted.mean())
    assert deviation < 0.005
    assert abs(off) < 3 * deviation
    assert losses[ranks][name] == pytest.approx(losses[1][name], rel=1e-12)
