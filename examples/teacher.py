"""A teacher's outputs are computed once, then a small student learns them: samestep train examples/teacher.py"""

from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Dump, Fit, Recipe, Stage


@dataclass(frozen=True)
class Distill(Config):
    """Distil a wide network into a narrow one."""

    rows: int = 2000
    """Rows of data."""
    teacher_epochs: int = 10
    """Passes over the data in which the teacher learns."""
    teacher_width: int = 256
    """Width of the teacher."""


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))


def points(config: Distill) -> list[Batch]:
    x = torch.rand(config.rows, 2, generator=torch.Generator().manual_seed(config.seed)) * 4 - 2
    return [{"x": a, "y": b} for a, b in zip(x, x.sin().prod(1, keepdim=True))]


def error(net: nn.Module, batch: Batch, target: str) -> dict[str, Tensor]:
    return {"error": (net(batch["x"]) - batch[target]).square().sum(1)}


def teach(bench: Bench) -> Fit:
    rows = points(bench.config)
    return Fit(bench.learner(mlp(bench.config.teacher_width)), bench.feed(rows), partial(error, target="y"))


def hand_over(task: Fit, bench: Bench) -> None:
    with bench.write_artifact("teacher.pt") as path:  # there for later stages as soon as it is complete
        torch.save(task.learner.weights(full=True), path)


def dump(bench: Bench) -> Dump:
    rows, weights = points(bench.config), bench.artifact("teacher.pt", stage="teach")
    teacher = bench.frozen(lambda: mlp(bench.config.teacher_width), name="teacher", source=weights)
    outputs = bench.array_artifact("outputs", len(rows), {"x": ((2,), "float32"), "taught": ((1,), "float32")})
    return Dump(bench.evaluation_feed(rows), lambda batch: {"x": batch["x"], "taught": teacher(batch["x"])}, outputs)


def learn(bench: Bench) -> Fit:
    rows, student = bench.read_array_artifact("outputs", stage="dump"), bench.learner(mlp(8))
    loss, truth = partial(error, target="taught"), bench.evaluation_feed(points(bench.config)[:500])
    return Fit(student, bench.feed(rows), loss, validation=truth, measure=partial(error, target="y"))


stages = [
    Stage("teach", teach, finish=hand_over, config=lambda c: replace(c, epochs=c.teacher_epochs, learning_rate=2e-3)),
    Stage("dump", dump),  # all ranks write; a killed dump goes on where it was
    Stage("learn", learn, validate=Fit.validate, best=("val/error", "min")),
]
default = {"global_batch_size": 50, "batch_size": 50, "epochs": 30, "learning_rate": 0.01, "weight_decay": 0.0}
small = {"global_batch_size": 7, "batch_size": 3, "max_steps": 4, "rows": 20, "teacher_width": 6}
recipe = Recipe(config=Distill, stages=lambda config: stages, presets={"default": default, "verify": small})
