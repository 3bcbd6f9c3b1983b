"""Where each stage's weights begin: what the user named once, what an earlier stage learned, or the seed."""

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep.checkpoint.sources import read_whole
from samestep.core.records import JsonLines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.data.loading import Batch
from samestep.parallel.wrap import whole
from samestep.train.bench import Bench
from samestep.train.config import Config
from samestep.train.console import Screen
from samestep.train.entry import train_with
from samestep.train.fit import Fit
from samestep.train.metrics import Metrics
from samestep.train.recipe import Recipe, Stage, Tick
from samestep.train.weights import open_weights
from samestep.world.world import World
from toys import Points, run_on_ranks


@dataclass(frozen=True)
class Staged(Config):
    """Some stages, as the test asks for."""

    layout: str = "dump train"
    """Stages by name; `then:START` has a start."""
    learner: str = "model"
    """The name of the learners."""


class Dump:
    """A stage without a learner."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.rows_once(Points(6), batch=3)
        self.length, self.state = self.feed.length, dict[str, Any]()

    def step(self, tick: Tick) -> Metrics:
        self.feed[tick.step]
        return {}


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def build(bench: Bench) -> Fit:
    feed = bench.feed(Points(24))
    learner = bench.learner(lambda: nn.Linear(4, 2), name=bench.config.learner)
    first = {name: whole(tensor).tolist() for name, tensor in learner.weights().items()}
    if bench.world.is_main:
        write_json(bench.artifact(f"first_{bench.resumed}.json"), first)
    return Fit(learner, feed, loss, validation=bench.rows_once(Points(7)))


def stages(config: Staged) -> list[Stage]:
    rows = []
    for name in config.layout.split():
        stage, _, start = name.partition(">")
        made = build if stage != "dump" else Dump
        best = ("val/error", "max") if stage != "dump" else None  # the first validation is the best
        rows.append(Stage(stage, made, validate=Fit.validate if best else no_figures, best=best, start=start or None))
    return rows


def no_figures(task: Any, tick: Tick) -> Mapping[str, float]:
    return {}


recipe = Recipe(Staged, stages)
BASE = {
    "name": "run",
    "batch_size": 3,
    "global_batch_size": 8,
    "epochs": 2,
    "learning_rate": 0.05,
    "distributed": {"device": "cpu"},
    "checkpoint": {"every_steps": 2, "background": False, "keep_last": 1},
    "validate_every": 2,
    "log": {"tensorboard": False, "level": "warning"},
}


def launch(out: Path, nproc: int = 1, expect: int = 0, **changes: Any) -> str:
    """Train; what was printed."""
    config = {**BASE, "out": str(out), **changes}
    if expect == 0:
        return run_on_ranks(train_with, nproc, __name__, config, logs=out / f"logs_{len(list(out.iterdir()))}")
    with pytest.raises(AssertionError, match=rf"exit codes \[{expect}") as raised:
        run_on_ranks(train_with, nproc, __name__, config, logs=out / f"logs_{len(list(out.iterdir()))}")
    return str(raised.value)


def first(out: Path, stage: str, resumed: bool = False) -> dict[str, Tensor]:
    """What a stage's network held when it was built."""
    known = read_json(RunDir(out / "run").artifacts(stage) / f"first_{resumed}.json")
    return {name: torch.tensor(values) for name, values in known.items()}


def learned(out: Path, stage: str, step: int) -> dict[str, Tensor]:
    folder = RunDir(out / "run").checkpoints(stage) / f"step_{step:08d}"
    return read_whole(open_weights(folder))


def same(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Weights that no seed draws."""
    path = tmp_path / "weights.pt"
    torch.save({"weight": torch.full((2, 4), 0.25), "bias": torch.full((2,), -0.5)}, path)
    return path


def given(source: Path) -> dict[str, Tensor]:
    return torch.load(source)


def test_a_path_that_does_not_exist_is_refused_at_once_though_the_first_stage_does_not_need_it(tmp_path: Path) -> None:
    said = launch(tmp_path, expect=2, init_from="nowhere.pt")
    assert "nowhere.pt does not exist; give a run's name or directory" in said
    assert not (tmp_path / "run").exists(), "the name of the run is still free"


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_first_stage_with_a_model_begins_with_what_was_named(tmp_path: Path, source: Path, nproc: int) -> None:
    said = launch(tmp_path, nproc, init_from=str(source))
    assert same(first(tmp_path, "train"), given(source))
    assert f"init_from={source} is not used by stage 'dump', which has no learner named 'model'" in said
    assert "\nfirst weights  " in said


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_later_stage_begins_with_what_an_earlier_one_learned(tmp_path: Path, source: Path, nproc: int) -> None:
    layout = "one two>one three>one:best four"
    said = launch(tmp_path, nproc, init_from=str(source), layout=layout)
    assert same(first(tmp_path, "one"), given(source))
    assert same(first(tmp_path, "two"), learned(tmp_path, "one", 6)), "its last"
    assert same(first(tmp_path, "three"), learned(tmp_path, "one", 2)), "its best, by val/error the first"
    assert not same(learned(tmp_path, "one", 2), learned(tmp_path, "one", 6))
    assert re.search(r"first weights +stage 'one', step_00000002", said)
    fresh = first(tmp_path, "four")
    assert not same(fresh, given(source)), "what was named was taken by another stage"
    assert re.search(r"first weights +drawn from seed 0", said)


def test_what_no_learner_takes_is_refused(tmp_path: Path, source: Path) -> None:
    said = launch(tmp_path, expect=2, init_from=str(source), layout="train", learner="judge")
    assert "init_from" in said
    assert "no stage of this recipe has a learner named 'model'" in said


@pytest.mark.parametrize("start", ["one:first", "nothing", "dump"])
def test_a_start_that_cannot_be_is_refused(tmp_path: Path, start: str) -> None:
    said = launch(tmp_path, expect=2, layout=f"dump one two>{start}")
    expected = {
        "one:first": "'last' or 'best' weights, not 'first'",
        "nothing": "that has left no checkpoint",
        "dump": "stage 'dump' learned, but that has no weights of 'model'",
    }
    assert expected[start] in said


def test_a_resume_does_not_open_what_the_run_began_with(tmp_path: Path, source: Path) -> None:
    layout = "one two>one"
    launch(tmp_path, init_from=str(source), layout=layout)
    uninterrupted = learned(tmp_path, "two", 6)
    shutil.rmtree(tmp_path / "run")
    launch(tmp_path, init_from=str(source), layout=layout, max_time="0s", expect=75)
    source.unlink()
    launch(tmp_path, init_from=str(source), layout=layout)
    built = first(tmp_path, "one", resumed=True)
    assert all(tensor.isnan().all() for tensor in built.values()), "nobody can take them for weights"
    assert same(learned(tmp_path, "two", 6), uninterrupted)


def test_an_adopted_step_is_the_first_stages_alone(tmp_path: Path) -> None:
    module = nn.Linear(4, 2)
    path = tmp_path / "other.pt"
    torch.save({"model_state_dict": module.state_dict(), "step": 4}, path)
    launch(tmp_path, continue_from=str(path), layout="dump one two>one")
    steps = {
        stage: [row["step"] for row in JsonLines(tmp_path / "run/metrics.jsonl") if row["stage"] == stage]
        for stage in ("dump", "one", "two")
    }
    assert min(steps["one"]) == 6
    assert min(steps["two"]) == 2
    assert same(first(tmp_path, "one"), module.state_dict())


def test_an_older_run_that_trained_a_stage_has_used_what_was_named(tmp_path: Path, source: Path) -> None:
    layout = "dump one two>one"
    launch(tmp_path, init_from=str(source), layout=layout, until="one")
    path = tmp_path / "run" / "frozen.json"
    frozen = read_json(path)
    assert [frozen[stage]["first_weights"] for stage in ("dump", "one")] == [None, str(source)]
    write_json(
        path, {stage: {k: v for k, v in fixed.items() if k != "first_weights"} for stage, fixed in frozen.items()}
    )
    launch(tmp_path, init_from=str(source), layout=layout)
    assert same(first(tmp_path, "two"), learned(tmp_path, "one", 6))
    write_json(path, {"dump": {"rows_once": 3}, "one": {"plan": frozen["one"]["plan"]}})
    config = Staged(init_from=str(source))
    bench = Bench(World.single(), config, RunDir(tmp_path / "run"), "three", Screen(False))
    bench.learner(lambda: nn.Linear(4, 2))
    assert bench.first_weights.told == {"model": "drawn from seed 0"}
