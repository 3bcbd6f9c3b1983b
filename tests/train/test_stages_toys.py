"""A stage without a learner dumps rows and hands over to a training stage; each resumes alone, at any world size."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.data.loading import Batch
from samestep.data.order import Shuffled
from samestep.launching.local import start
from samestep.train.api.bench import Bench
from samestep.train.api.fit import Fit
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.logging.metrics import Metrics
from samestep.train.record.config import Config
from samestep.train.record.progress import Tick
from samestep.train.session.entry import train_with
from toys import (
    Points,
    close,
    default_dtype,
    made,
    run_on_ranks,
)

SIZE = 26


@dataclass(frozen=True)
class Toy(Config):
    """Dump the features of a frozen network, then train on them."""

    dump_batch: int = 7
    """Rows of one step of the dump."""


class Dump:
    """A task without a learner: every row once, into one array whose layout knows nothing of ranks."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.evaluation_feed(Points(SIZE), batch=bench.config.dump_batch)
        self.length, self.state = self.feed.length, dict[str, Any]()
        self.net = made(lambda: nn.Linear(4, 3))
        path = bench.artifact("features.npy")
        if bench.world.is_main and not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            np.lib.format.open_memmap(path, "w+", np.float64, (SIZE, 3))[:] = np.nan
        bench.world.barrier()
        self.array = np.load(path, mmap_mode="r+")
        self.seen = JsonLines(bench.artifact(f"seen_{bench.world.rank}.jsonl"))

    def step(self, tick: Tick) -> Metrics:
        die("dump", tick.step)
        for batch in self.feed[tick.step].batches:
            live = batch["live"]
            indices = batch["ids"][live, 1].numpy()
            self.array[indices] = self.net(batch["x"][live]).detach().double().numpy()
            self.seen.append({"step": tick.step, "rows": indices.tolist()})
        self.array.flush()
        return {}


class Features:
    def __init__(self, path: Path) -> None:
        self.array, self.points = np.load(path, mmap_mode="r"), Points(SIZE)

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.from_numpy(self.array[index].copy()), "y": self.points.y[index]}


def fit_loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


class DyingFit(Fit):
    def step(self, tick: Tick) -> Metrics:
        die("train", tick.step)
        return super().step(tick)


def build_train(bench: Bench) -> Fit:
    rows = Features(bench.artifact("features.npy", stage="dump"))
    return DyingFit(bench.learner(made(lambda: nn.Linear(3, 2))), bench.feed(rows), fit_loss)


def die(stage: str, step: int) -> None:
    """The last rank is killed without any message where the test asks for it."""
    if os.environ.get("TOY_DIES") == f"{stage} {step}" and os.environ["RANK"] == str(int(os.environ["WORLD_SIZE"]) - 1):
        os.kill(os.getpid(), signal.SIGKILL)


recipe = Recipe(Toy, lambda config: [Stage("dump", Dump), Stage("train", build_train)])


def toy_config(out: Path, strategy: str) -> dict[str, Any]:
    return {
        "name": "toy",
        "out": str(out),
        "batch_size": 3,
        "global_batch_size": 8,
        "epochs": 2,
        "learning_rate": 0.05,
        "schedule": "constant",
        "distributed": {"device": "cpu", "strategy": strategy, "dtype": "float64"},
        # Not in the background, so that the last one is complete when the kill comes.
        "checkpoint": {"every_steps": 2, "weights": True, "background": False},
        "log": {"quiet": True, "tensorboard": False, "every": 1},
    }


def trained_by_hand() -> Mapping[str, Tensor]:
    """Both stages in one process, without files."""
    points, config = Points(SIZE), Toy()
    with default_dtype(torch.float64):
        x = made(lambda: nn.Linear(4, 3))(points.x).detach()
        module = made(lambda: nn.Linear(3, 2))
    groups: list[dict[str, Any]] = [{"params": [module.weight]}, {"params": [module.bias], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(
        groups,
        lr=0.05,
        betas=(config.beta1, config.beta2),
        weight_decay=config.weight_decay,
    )
    order = Shuffled(SIZE, 8, seed=0)
    for step in range(2 * order.steps_per_epoch):
        chosen = torch.as_tensor(order.ids(step)[:, 1])
        (module(x[chosen]) - points.y[chosen]).square().sum(1).mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return module.state_dict()


def dumped_rows(rundir: RunDir) -> list[int]:
    """Every row that any dump wrote, in any launch."""
    files = sorted(rundir.artifacts("dump").glob("seen_*.jsonl"))
    return sorted(row for file in files for line in JsonLines(file) for row in line["rows"])


def check_end(rundir: RunDir) -> None:
    array = np.load(rundir.artifacts("dump") / "features.npy")
    assert np.isfinite(array).all()
    weights = torch.load(rundir.weights / "train" / "model_step_8.pt")
    close(weights, trained_by_hand(), tolerance=1e-10)


@pytest.mark.parametrize(("nproc", "strategy"), [(1, "ddp"), (2, "ddp"), (2, "fsdp")])
def test_a_dump_hands_over_to_training(tmp_path: Path, nproc: int, strategy: str) -> None:
    config = toy_config(tmp_path, strategy)
    run_on_ranks(train_with, nproc, "test_stages_toys", config, logs=tmp_path / "logs")
    rundir = RunDir(tmp_path / "toy")
    assert dumped_rows(rundir) == list(range(SIZE)), "every row once"
    check_end(rundir)
    frozen = read_json(rundir.first_launch)
    assert "plan" in frozen["train"]
    assert "plan" not in frozen.get("dump", {}), "a stage without training data has no plan"


@pytest.mark.parametrize(("death", "first", "second"), [("train 5", 2, 2), ("train 0", 2, 1), ("train 5", 1, 2)])
def test_a_kill_in_training_does_not_redo_the_dump(tmp_path: Path, death: str, first: int, second: int) -> None:
    config, logs = toy_config(tmp_path, "ddp"), tmp_path / "logs"
    killed = start(train_with, first, "test_stages_toys", config, logs=logs, env={"TOY_DIES": death})
    assert killed.wait(60)[-1] == -signal.SIGKILL
    rundir = RunDir(tmp_path / "toy")
    done = (rundir.artifacts("dump") / "done.json").stat().st_mtime_ns
    run_on_ranks(train_with, second, "test_stages_toys", config, logs=tmp_path / "again")
    assert (rundir.artifacts("dump") / "done.json").stat().st_mtime_ns == done
    assert dumped_rows(rundir) == list(range(SIZE)), "every row once, over both launches"
    check_end(rundir)
    resumed = [event["step"] for event in JsonLines(rundir.events) if event["kind"] == "resume"]
    assert resumed == ([4] if death == "train 5" else [])


@pytest.mark.parametrize(("first", "second"), [(2, 1), (1, 2)])
def test_a_killed_dump_goes_on_at_another_world_size(tmp_path: Path, first: int, second: int) -> None:
    config, logs = toy_config(tmp_path, "ddp"), tmp_path / "logs"
    killed = start(train_with, first, "test_stages_toys", config, logs=logs, env={"TOY_DIES": "dump 3"})
    assert killed.wait(60)[-1] == -signal.SIGKILL
    run_on_ranks(train_with, second, "test_stages_toys", config, logs=tmp_path / "again")
    rundir = RunDir(tmp_path / "toy")
    assert set(dumped_rows(rundir)) == set(range(SIZE))
    again = [row for row in range(SIZE) if dumped_rows(rundir).count(row) > 1]
    assert set(again) <= set(range(14, SIZE)), "what was saved is not dumped again"
    check_end(rundir)
