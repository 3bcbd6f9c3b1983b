"""What a stage may set by itself, and what is refused."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from samestep.checkpoint.manifest import Checkpoint, Manifest
from samestep.core.config import dump
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.api.recipe import Recipe, Stage
from samestep.train.record.config import Checkpoints, Config, Distributed, Log
from samestep.train.session.session import Session
from samestep.train.session.stage_config import check_precision, refuse_other_settings, set_precision, stage_config
from samestep.world.world import World

RUN = Config(global_batch_size=12)


def stage(change: Any) -> Stage:
    return Stage("align", lambda bench: None, config=change)


@dataclass(frozen=True)
class OtherConfig(Config):
    """Not the run's."""


def test_without_a_function_a_stage_has_the_settings_of_the_run() -> None:
    assert stage_config(Stage("align", lambda bench: None), RUN) is RUN


def test_a_stage_has_its_own_settings() -> None:
    own = stage_config(
        stage(
            lambda c: replace(
                c,
                learning_rate=2.0,
                epochs=3,
                global_batch_size=5,
                seed=9,
                checkpoint=replace(c.checkpoint, every_steps=4),
                distributed=replace(c.distributed, mixed_precision="bf16"),
            )
        ),
        RUN,
    )
    assert (own.learning_rate, own.epochs, own.global_batch_size, own.seed) == (2.0, 3, 5, 9)
    assert own.checkpoint.every_steps == 4 and own.distributed.mixed_precision == "bf16"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "x"}, "cannot have its own name: it is the same for the whole run"),
        ({"evidence": True}, "cannot have its own evidence"),
        ({"distributed": Distributed(device="cuda")}, "cannot have its own distributed.device"),
        ({"distributed": Distributed(dtype="float64")}, "cannot have its own distributed.dtype"),
        ({"log": Log(wandb=True)}, "cannot have its own log.wandb"),
        ({"checkpoint": Checkpoints(every_minutes=1.0)}, "cannot have its own checkpoint.every_minutes"),
        ({"global_batch_size": None}, "must state its own batch as a number in global_batch_size"),
        ({"accumulation": 2}, "leave accumulation as it is"),
    ],
)
def test_what_only_a_run_has_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=f"stage 'align' .*{sentence}"):
        stage_config(stage(lambda c: replace(c, **change)), RUN)


def test_another_type_is_refused() -> None:
    for made in (None, OtherConfig()):
        with pytest.raises(UserError, match="the config function of stage 'align' must return a Config, not a"):
            stage_config(stage(lambda c: made), RUN)  # noqa: B023


def test_fp16_needs_a_gpu_in_a_stage_too() -> None:
    world = replace(World.single(), device=torch.device("cpu"))
    with pytest.raises(UserError, match="needs a GPU"):
        check_precision(replace(RUN, distributed=Distributed(mixed_precision="fp16")), world)


@pytest.mark.parametrize(
    ("device", "precision", "products"),
    [("cuda", "none", "highest"), ("cuda", "tf32", "high"), ("cuda", "bf16", "high"), ("cpu", "bf16", "highest")],
)
def test_none_is_true_float32(device: str, precision: Any, products: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[str] = []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", set_to.append)
    config = replace(RUN, distributed=Distributed(mixed_precision=precision))
    set_precision(config, replace(World.single(), device=torch.device(device)))
    assert set_to == [products]


@pytest.mark.parametrize(
    ("change", "stage_name"),
    [
        (None, ""),
        (lambda c: c, ""),
        (lambda c: replace(c, batch_size=2 * c.batch_size), ""),
        (lambda c: replace(c, batch_size=3), "align"),
    ],
)
def test_out_of_memory_knows_a_batch_size_that_does_not_follow_the_run(change: Any, stage_name: str) -> None:
    session = Session("x", Recipe(Config, lambda config: []), replace(RUN, batch_size=1), World.single())
    assert session.own_batch_size() == "", "before any stage runs"
    session._running = stage(change)
    assert session.own_batch_size() == stage_name


def test_a_resume_with_other_settings_of_the_stage_is_refused() -> None:
    saved = dump(replace(RUN, learning_rate=2.0))
    found = Checkpoint(Path("step_00000002"), 2, Manifest(2, 1, {}, {"config": saved}))
    own = stage(lambda c: replace(c, learning_rate=2.0))
    refuse_other_settings(own, replace(RUN, learning_rate=2.0, num_workers=3), found, RunDir(Path("runs/a")))
    with pytest.raises(UserError, match=r"trained with other settings so far \(learning_rate differ\)"):
        refuse_other_settings(own, replace(RUN, learning_rate=3.0), found, RunDir(Path("runs/a")))
