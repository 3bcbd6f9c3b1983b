"""No bug: a teacher's outputs are dumped by all ranks, a student learns them with settings of its own, and a last stage
goes on with the best student, at another batch and rate."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, net, points
from samestep import Bench, Dump, Fit, Recipe, Stage

ROWS = 31


@dataclass(frozen=True)
class Taught(Small):
    """Settings of several stages."""

    student_batch: int = 5
    """Rows per step of the student."""
    refine_lr: float = 0.005
    """Learning rate of the last stage."""


def teacher() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(1, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def dump(bench: Bench) -> Dump:
    model, rows = teacher(), points(ROWS)
    fields = {"x": ((1,), "float64"), "embedding": ((3,), "bfloat16"), "score": ((), "float32"), "sign": ((), "int8")}
    outputs = bench.array_artifact("outputs", len(rows), fields)
    with bench.write_artifact("about.json") as path:
        path.write_text(json.dumps({"rows": len(rows)}))

    def compute(batch: Batch) -> Mapping[str, Tensor]:
        embedding = model(batch["x"].double())
        sign = batch["x"][:, 0].sign().to(torch.int8)
        return {"x": batch["x"], "embedding": embedding, "score": embedding.sum(1), "sign": sign}

    return Dump(bench.evaluation_feed(rows), compute, outputs)


def learned(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"])[:, 0] - batch["score"]).square()}


def student(bench: Bench) -> Fit:
    rows = bench.read_array_artifact("outputs", stage="dump")
    assert json.loads(bench.artifact("about.json", stage="dump").read_text())["rows"] == len(rows) == ROWS
    return Fit(bench.learner(net()), bench.feed(rows), learned, validation=bench.evaluation_feed(rows))


recipe = Recipe(
    config=Taught,
    stages=lambda config: [
        Stage("dump", dump, ignores=("student_batch", "refine_lr", "learning_rate")),
        Stage(
            "student",
            student,
            validate=Fit.validate,
            best=("val/error", "min"),
            config=lambda c: replace(c, global_batch_size=c.student_batch, schedule="constant", max_steps=5),
            ignores=("refine_lr",),
        ),
        Stage(
            "refine",
            student,
            validate=Fit.validate,
            start="student:best",
            config=lambda c: replace(c, learning_rate=c.refine_lr, max_steps=4, validate_every=2),
        ),
    ],
    presets={"verify": {**VERIFY, "max_steps": 6}},
)
