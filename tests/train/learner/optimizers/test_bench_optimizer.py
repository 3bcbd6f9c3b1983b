"""What a recipe gives a learner beside its optimizer: the type of its parameters, and a schedule."""

from pathlib import Path

import pytest
import torch
from torch import nn

from samestep import Schedule, UserError
from samestep.core.rundir import RunDir
from samestep.train.api.bench import Bench
from samestep.train.logging.console import Screen
from samestep.train.record.config import Config, Distributed
from samestep.world.world import World


def bench_of(folder: Path, dtype: str = "float32") -> Bench:
    config = Config(max_steps=10, distributed=Distributed(device="cpu", dtype=dtype))  # type: ignore[arg-type]
    bench = Bench(World.single(), config, RunDir(folder), "fit", Screen(False))
    bench.plan(24)
    return bench


@pytest.mark.parametrize("given", ["float32", "float64", "bfloat16"])
def test_a_learners_type_is_its_own_but_in_a_proof(tmp_path: Path, given: str) -> None:
    learner = bench_of(tmp_path / "run").learner(nn.Linear(2, 2), dtype=given)  # type: ignore[arg-type]
    assert {parameter.dtype for parameter in learner.parameters()} == {getattr(torch, given)}
    learner = bench_of(tmp_path / "proof", "float64").learner(nn.Linear(2, 2), dtype=given)  # type: ignore[arg-type]
    assert {parameter.dtype for parameter in learner.parameters()} == {torch.float64}


def test_other_types_and_kinds_are_refused(tmp_path: Path) -> None:
    for other in ("int8", "float16"):
        with pytest.raises(UserError, match=f"a learner's dtype is float32, float64, bfloat16, not '{other}'"):
            bench_of(tmp_path).learner(nn.Linear(2, 2), dtype=other)  # type: ignore[arg-type]
    frozen = bench_of(tmp_path).frozen(nn.Linear(2, 2), dtype="float16")
    assert frozen(torch.zeros(1, 2, dtype=torch.float16)).dtype == torch.float16, "which is not trained"
    with pytest.raises(UserError, match="the kind of a schedule is constant, linear, cosine, wsd, not 'cos'"):
        Schedule(1.0, kind="cos")


def test_a_schedule_spans_the_stage_unless_it_has_steps_of_its_own(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.learner(nn.Linear(2, 2), name="one", rate=Schedule(2.0, kind="linear"))
    bench.learner(nn.Linear(2, 2), name="two", rate=Schedule(2.0, steps=4, kind="linear"))
    assert [bench.stage_plan.given_rates["one"](step) for step in (0, 5, 10)] == [2.0, 1.0, 0.0]
    assert [bench.stage_plan.given_rates["two"](step) for step in (0, 2, 4, 9)] == [2.0, 1.0, 0.0, 0.0]
