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

from samestep.checkpoint.weight_sources import read_all
from samestep.core.json_files import JsonLines, read_json, write_json
from samestep.core.rundir import RunDir
from samestep.data.loading import Batch
from samestep.parallel.wrap import full_tensor
from samestep.train.api.bench import Bench
from samestep.train.api.fit import Fit
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.logging.metrics import Metrics
from samestep.train.record.config import Config
from samestep.train.record.progress import Tick
from samestep.train.session.entry import train_with
from samestep.train.weights.run_checkpoints import choose_checkpoint
from samestep.train.weights.sources import open_weights
from toys import Points, run_on_ranks


@dataclass(frozen=True)
class Staged(Config):
    """Some stages, as the test asks for."""

    layout: str = "dump train"
    """Stages by name; `then:START` has a start."""
    learner: str = "model"
    """The name of the learners."""
    masked: bool = False
    """Whether networks have buffers that no checkpoint holds."""


class Masked(nn.Linear):
    """A network with buffers that no checkpoint holds."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.register_buffer("kept", torch.ones(2, dtype=torch.int64), persistent=False)
        self.register_buffer("scale", torch.full((2,), 2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.kept * self.scale


class Cache(Fit):
    """A stage that only uses a network, which is none of its state, and ends before its weights would come back."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.learner(lambda: nn.Linear(4, 2)), bench.evaluation_feed(Points(24), batch=8), loss)
        self.bench, self.state = bench, {}

    def step(self, tick: Tick) -> Metrics:
        with self.learner.inference() as module:
            total = sum(float(module(batch["x"].float()).sum()) for batch in self.feed[tick.step].batches)
        JsonLines(self.bench.artifact(f"sums_{self.bench.world.rank}.jsonl")).append({"step": tick.step, "sum": total})
        return {}


class Dump:
    """A stage without a learner."""

    def __init__(self, bench: Bench) -> None:
        self.feed = bench.evaluation_feed(Points(6), batch=3)
        self.length, self.state = self.feed.length, dict[str, Any]()

    def step(self, tick: Tick) -> Metrics:
        self.feed[tick.step]
        return {}


class Bare:
    """A stage without learner and data."""

    def __init__(self, bench: Bench) -> None:
        self.length, self.state = 1, dict[str, Any]()

    def step(self, tick: Tick) -> Metrics:
        return {}


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"error": (module(batch["x"]) - batch["y"]).square().sum(1)}


def build(bench: Bench) -> Fit:
    feed = bench.feed(Points(24))
    learner = bench.learner(Masked if bench.config.masked else lambda: nn.Linear(4, 2), name=bench.config.learner)
    first = {name: full_tensor(tensor).tolist() for name, tensor in learner.weights().items()}
    if bench.world.is_main:
        write_json(bench.artifact(f"first_{bench.resumed}.json"), first)
    return Fit(learner, feed, loss, validation=bench.evaluation_feed(Points(7)))


def stages(config: Staged) -> list[Stage]:
    rows = []
    for name in config.layout.split():
        stage, _, start = name.partition(">")
        made = {"dump": Dump, "cache": Cache, "bare": Bare}.get(stage, build)
        best = ("val/error", "max") if made is build else None  # the first validation is the best
        rows.append(Stage(stage, made, validate=Fit.validate if best else no_metrics, best=best, start=start or None))
    return rows


def no_metrics(task: Any, tick: Tick) -> Mapping[str, float]:
    return {}


recipe = Recipe(Staged, stages)
BASE: dict[str, Any] = {
    "name": "run",
    "batch_size": 3,
    "global_batch_size": 8,
    "epochs": 2,
    "learning_rate": 0.05,
    "distributed": {"device": "cpu"},
    "checkpoint": {"every_steps": 2, "background": False, "keep_last": 2},
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


def learned(out: Path, stage: str, step: int, learner: str = "model") -> dict[str, Tensor]:
    folder = RunDir(out / "run").checkpoints(stage) / f"step_{step:08d}"
    return read_all(open_weights(folder, learner))


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
    output = launch(tmp_path, expect=2, init_from="nowhere.pt")
    assert "nowhere.pt does not exist; give a run's name or directory" in output
    assert not (tmp_path / "run").exists(), "the name of the run is still free"


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_first_stage_with_a_model_begins_with_what_was_named(tmp_path: Path, source: Path, nproc: int) -> None:
    output = launch(tmp_path, nproc, init_from=str(source))
    assert same(first(tmp_path, "train"), given(source))
    assert f"init_from={source} is not used by stage 'dump', which has no learner named 'model' to begin with" in output
    assert "\nfirst weights  " in output


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_later_stage_begins_with_what_an_earlier_one_learned(tmp_path: Path, source: Path, nproc: int) -> None:
    layout = "one two>one three>one:best four"
    output = launch(tmp_path, nproc, init_from=str(source), layout=layout)
    assert same(first(tmp_path, "one"), given(source))
    assert same(first(tmp_path, "two"), learned(tmp_path, "one", 6)), "its last"
    assert same(first(tmp_path, "three"), learned(tmp_path, "one", 2)), "its best, by val/error the first"
    assert not same(learned(tmp_path, "one", 2), learned(tmp_path, "one", 6))
    assert re.search(r"first weights +stage 'one', step_00000002", output)
    fresh = first(tmp_path, "four")
    assert not same(fresh, given(source)), "what was named was taken by another stage"
    assert re.search(r"first weights +its model's own, or drawn from seed 0", output)


def test_with_best_at_end_a_stage_passes_on_its_best_and_only_the_last_one_gets_longer(
    tmp_path: Path, source: Path
) -> None:
    settings = {"layout": "one two>one:last three>one", "best_at_end": True, "init_from": str(source)}
    launch(tmp_path, **settings)
    assert same(first(tmp_path, "two"), learned(tmp_path, "one", 6)), "its last, as it asks for"
    assert same(first(tmp_path, "three"), learned(tmp_path, "one", 2)), "its best"
    launch(tmp_path, **settings, epochs=3, extend=True)
    steps = {stage: read_json(RunDir(tmp_path / "run").done(stage))["step"] for stage in ("one", "two", "three")}
    assert steps == {"one": 6, "two": 6, "three": 9}


def test_weight_files_of_several_stages_do_not_replace_each_other(tmp_path: Path) -> None:
    checkpoint = {**BASE["checkpoint"], "weights": True}
    launch(tmp_path, layout="one two>one", checkpoint=checkpoint)
    files = {str(path.relative_to(tmp_path / "run/weights")) for path in tmp_path.glob("run/weights/*/*.pt")}
    assert {"one/model_step_6.pt", "two/model_step_6.pt"} <= files
    launch(tmp_path, layout="one", checkpoint=checkpoint, name="alone")
    assert (tmp_path / "alone/weights/model_step_6.pt").exists(), "a single stage has them as older scripts expect"


def test_what_no_learner_takes_is_refused_before_anything_is_trained(tmp_path: Path, source: Path) -> None:
    other = tmp_path / "other.pt"
    torch.save({"weight": torch.zeros(3, 4), "bias": torch.zeros(3)}, other)
    output = launch(tmp_path, expect=2, init_from=str(other), layout="dump train", learner="judge")
    assert "is not used by stage 'train', which has no learner named 'model' to begin with it (the learner" in output
    assert "'judge' cannot: the weights of" in output and "and neither does any other" in output
    output = launch(tmp_path, init_from=str(other), layout="one two", learner="judge", name="trained")
    assert output.count("which has no learner named 'model'") == 2, "a run that has trained goes on"


def test_a_plain_file_goes_to_the_only_learner_whatever_its_name(tmp_path: Path, source: Path) -> None:
    output = launch(tmp_path, init_from=str(source), layout="one two", learner="judge")
    assert same(first(tmp_path, "one"), given(source))
    assert not same(first(tmp_path, "two"), given(source)), "once"
    assert re.search(r"first weights +its model's own, or drawn from seed 0", output)


def test_the_last_stage_is_the_last_one_that_began_whatever_it_fixed(tmp_path: Path) -> None:
    launch(tmp_path, layout="bare one two>one", epochs=1)
    assert list(read_json(tmp_path / "run/first_launch.json")) == ["bare", "one", "two"]
    (tmp_path / "run/checkpoints/one").touch()  # as a copy of the run may do it
    assert choose_checkpoint(RunDir(tmp_path / "run")).parent.name == "two"


def test_a_stage_that_does_not_train_leaves_it_to_the_next(tmp_path: Path, source: Path) -> None:
    launch(tmp_path, init_from=str(source), layout="cache train")
    assert same(first(tmp_path, "train"), given(source))


@pytest.mark.parametrize("nproc", [1, 2])
def test_a_network_that_is_no_state_gets_its_weights_at_a_resume_too(tmp_path: Path, source: Path, nproc: int) -> None:
    launch(tmp_path, nproc, init_from=str(source), layout="cache")
    sums = [[row["sum"] for row in JsonLines(path)] for path in sorted(tmp_path.glob("run/artifacts/cache/sums*"))]
    shutil.rmtree(tmp_path / "run/artifacts")
    shutil.rmtree(tmp_path / "run/checkpoints/cache/step_00000003")
    launch(tmp_path, nproc, init_from=str(source), layout="cache")
    again = [[row["sum"] for row in JsonLines(path)] for path in sorted(tmp_path.glob("run/artifacts/cache/sums*"))]
    assert 0 < len(again[0]) < len(sums[0])
    assert all(mine == theirs[-len(mine) :] for mine, theirs in zip(again, sums))


def test_buffers_that_no_checkpoint_holds_stay_at_a_resume(tmp_path: Path, source: Path) -> None:
    launch(tmp_path, init_from=str(source), layout="one", masked=True)
    whole_run = [row["loss"] for row in JsonLines(tmp_path / "run/metrics.jsonl") if "loss" in row]
    uninterrupted = learned(tmp_path, "one", 6)
    shutil.rmtree(tmp_path / "run/artifacts")
    shutil.rmtree(tmp_path / "run/checkpoints/one/step_00000006")
    launch(tmp_path, init_from=str(source), layout="one", masked=True)
    assert same(learned(tmp_path, "one", 6), uninterrupted)
    assert [row["loss"] for row in JsonLines(tmp_path / "run/metrics.jsonl") if "loss" in row] == whole_run


@pytest.mark.parametrize("start", ["one:first", "nothing", "two"])
def test_a_start_that_cannot_be_is_refused_before_anything_is_trained(tmp_path: Path, start: str) -> None:
    output = launch(tmp_path, expect=2, layout=f"dump one two>{start}")
    expected = {
        "one:first": "starts with the 'last' or 'best' weights of 'one', not with 'first'",
        "nothing": "with stage 'nothing', which does not come before it; name one of dump, one",
        "two": "with stage 'two', which does not come before it",
    }
    assert expected[start] in output
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_start_that_has_no_learner_is_refused(tmp_path: Path) -> None:
    output = launch(tmp_path, expect=2, layout="dump two>dump")
    assert "stage 'dump' learned, but that has no weights of 'model'; it has state of no learner" in output


@pytest.mark.parametrize("learner", ["model", "judge"])
def test_a_resume_does_not_open_what_the_run_began_with(tmp_path: Path, source: Path, learner: str) -> None:
    layout = {"layout": "one two>one", "learner": learner}
    launch(tmp_path, init_from=str(source), **layout)
    uninterrupted = learned(tmp_path, "two", 6, learner)
    shutil.rmtree(tmp_path / "run")
    launch(tmp_path, init_from=str(source), **layout, max_time="0s", expect=75)
    source.unlink()
    launch(tmp_path, init_from=str(source), **layout)
    built = first(tmp_path, "one", resumed=True)
    assert all(tensor.isnan().all() for tensor in built.values()), "nobody can take them for weights"
    assert same(learned(tmp_path, "two", 6, learner), uninterrupted)


def test_a_step_from_a_file_is_for_the_first_stage_alone(tmp_path: Path) -> None:
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
