"""No bug, but everything that verify must get along with: a dump without a learner, two learners that update several
times a step, sampled tokens, a loss over the whole batch, a state of the task's own, several stages."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small, net, points
from samestep import Bench, Fit, Recipe, Stage, Tick
from samestep.core.json_files import read_json, write_json
from samestep.train.logging.metrics import Metric, Metrics


class Dump:
    """Squares every point, a step at a time; the parts lie on disk, so nothing else must be remembered."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.evaluation_feed(points(30), batch=bench.config.global_batch_size)
        self.bench, self.length, self.state = bench, self.feed.length, {}

    def step(self, tick: Tick) -> Metrics:
        mine = [
            [float(x), float(x) ** 2]
            for batch in self.feed[tick.step].batches
            for x, live in zip(batch["x"], batch["live"])
            if live
        ]
        parts = self.bench.world.gather(mine)
        if self.bench.world.is_main:
            write_json(self.bench.artifact(f"part_{tick.step}.json"), [row for part in parts for row in part])
        return {"rows": Metric(float(len(mine)))}


class Count:
    """A number that must survive a kill."""

    def __init__(self) -> None:
        self.value = 0

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]


class Duel:
    """A player that samples, and a judge that is updated twice as often."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.feed(dumped(bench))
        self.length = self.feed.length
        self.player = bench.learner(nn.Linear(1, 5), name="player")
        self.judge = bench.learner(net(), name="judge")
        self.draws, self.count = bench.draws("move"), Count()
        self.state = {"player": self.player, "judge": self.judge, "count": self.count}

    def step(self, tick: Tick) -> Metrics:
        micros = self.feed[tick.step]
        self.count.value += 1
        with self.player.inference() as player:
            for batch in micros.batches:
                live = batch["live"]
                moves = self.draws.pick(player(batch["x"])[live], step=tick.step, ids=batch["ids"][live], position=0)
                batch["move"] = torch.zeros(len(live), dtype=torch.int64).masked_scatter(live, moves)
        pull = {"fit": 1.0 / self.count.value}
        metrics = {**self.judge.update(micros, judged), **self.player.update(micros, played)}
        return {**metrics, **self.judge.update(micros, judged, mix=pull)}


def judged(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"fit": (module(batch["x"]) - batch["move"][:, None]).square().sum(1)}


def played(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"nll": nn.functional.cross_entropy(module(batch["x"]), batch["move"], reduction="none")}


class Contrast(Fit):
    """Every row is held against every other of the global batch."""

    def step(self, tick: Tick) -> Metrics:
        return self.learner.update_coupled(self.feed[tick.step], embed, couple)


def embed(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"x": module(batch["x"]), "y": batch["y"]}


def couple(whole: Mapping[str, Tensor], own: slice) -> Mapping[str, Tensor]:
    distance = (whole["x"] - whole["y"].T).square()
    return {"contrast": nn.functional.cross_entropy(-distance, torch.arange(len(distance)), reduction="none")[own]}


def measured(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def dumped(bench: Bench) -> list[dict[str, Tensor]]:
    """What the first stage left."""
    files = sorted(bench.artifact("", stage="dump").glob("part_*.json"), key=lambda path: int(path.stem[5:]))
    return [{"x": torch.tensor(x)[None], "y": torch.tensor(y)[None]} for path in files for x, y in read_json(path)]


def contrast(bench: Bench) -> Contrast:
    rows = dumped(bench)
    return Contrast(bench.learner(net()), bench.feed(rows), measured, validation=bench.evaluation_feed(rows))


recipe = Recipe(
    config=Small,
    stages=lambda config: [
        Stage("dump", Dump),
        Stage("duel", Duel),
        Stage("contrast", contrast, validate=Fit.validate, best=("val/error", "min")),
    ],
    presets={"verify": {**VERIFY, "max_steps": 6}},
)
