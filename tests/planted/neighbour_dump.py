"""A dump whose rows depend on the rows beside them: the mean of the micro-batch is removed."""

from collections.abc import Mapping

from torch import Tensor

from planted.parts import VERIFY, Batch, Small, points
from samestep import Bench, Dump, Recipe, Stage


def centred(batch: Batch) -> Mapping[str, Tensor]:
    return {"score": (batch["x"] - batch["x"].mean())[:, 0]}


def dump(bench: Bench) -> Dump:
    outputs = bench.array_artifact("outputs", 31, {"score": ((), "float32")})
    return Dump(bench.evaluation_feed(points(31)), centred, outputs)


recipe = Recipe(config=Small, stages=lambda config: [Stage("dump", dump)], presets={"verify": VERIFY})
