"""A run with adapters and frozen networks: what its checkpoints hold and name, and what a resume refuses."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import LORA
from samestep import Bench, Config, Fit, Recipe, Stage
from samestep.checkpoint.loading import read_tensors
from samestep.checkpoint.manifest import read_manifest
from samestep.core.json_files import JsonLines, read_json
from samestep.data.loading import Batch
from samestep.train.session.entry import train_with
from toys import Net, Points, made, run_on_ranks

pytest.importorskip("peft")


@dataclass(frozen=True)
class Aligned(Config):
    """A small run of both kinds."""

    base: int = 1
    """The seed of the base, and of the teacher."""
    adapters: bool = True
    """Whether adapters are trained, or all weights."""


def build(bench: Bench) -> Fit:
    config: Aligned = bench.config
    network: Callable[[], nn.Module] = lambda: made(Net, config.base).float()  # noqa: E731
    policy = bench.learner(network, lora=LORA if config.adapters else None)
    teacher, reference = bench.frozen(network, name="teacher"), bench.frozen(policy)

    def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        inputs = batch["x"].float(), batch["tokens"]
        now = module(*inputs)
        held = (now - reference(*inputs)).square() + (now - teacher(*inputs)).square()
        return {"error": ((now - batch["y"].float()).square() + held).sum(1)}

    return Fit(policy, bench.feed(Points(24)), loss)


recipe = Recipe(Aligned, lambda config: [Stage("align", build)])
BASE: dict[str, Any] = {
    "name": "run",
    "batch_size": 3,
    "global_batch_size": 8,
    "epochs": 2,
    "learning_rate": 0.05,
    "distributed": {"device": "cpu"},
    "checkpoint": {"every_steps": 2, "background": False, "keep_last": 1, "weights": True},
    "log": {"tensorboard": False, "level": "warning", "every": 1},
}


def launch(out: Path, nproc: int = 1, expect: int = 0, **changes: Any) -> str:
    """Train; what was printed."""
    config, logs = {**BASE, "out": str(out), **changes}, out / f"logs_{len(list(out.iterdir()))}"
    if expect == 0:
        return run_on_ranks(train_with, nproc, __name__, config, logs=logs)
    with pytest.raises(AssertionError, match=rf"exit codes \[{expect}") as raised:
        run_on_ranks(train_with, nproc, __name__, config, logs=logs)
    return str(raised.value)


def losses(run: Path) -> list[float]:
    return [row["loss"] for row in JsonLines(run / "metrics.jsonl") if "loss" in row]


def test_checkpoints_and_weight_files_hold_what_trains_and_name_the_rest(tmp_path: Path) -> None:
    output = launch(tmp_path)
    assert "32 trained of 104" in output
    checkpoint = tmp_path / "run/checkpoints/align/step_00000006"
    names = {f"{layer}.lora_{matrix}.default.weight" for layer in ("first", "last") for matrix in "AB"}
    assert read_tensors(checkpoint, "model/model").keys() == names
    assert torch.load(tmp_path / "run/weights/model_step_6.pt").keys() == names
    known = read_json(tmp_path / "run/first_launch.json")["align"]
    hashes = {name: value for name, value in known.items() if name.startswith(("base/", "frozen/"))}
    assert read_manifest(checkpoint).about["frozen"] == hashes
    assert hashes.keys() == {"base/model", "frozen/teacher"}
    assert launch(tmp_path, name="other", init_from=str(tmp_path / "run")).count("another base") == 0
    assert "trained on another base" in launch(
        tmp_path, name="third", init_from=str(tmp_path / "run"), base=2, expect=2
    )


@pytest.mark.parametrize("adapters", [True, False])
def test_a_stopped_run_goes_on_with_the_same_frozen_networks_or_not_at_all(tmp_path: Path, adapters: bool) -> None:
    launch(tmp_path, 2, adapters=adapters, name="whole")
    launch(tmp_path, 2, adapters=adapters, max_time="0s", expect=75)
    stored = tmp_path / "run/artifacts/align/frozen_reference.safetensors"
    assert stored.exists() != adapters
    if not adapters:
        stored.rename(tmp_path / "elsewhere")
        assert "frozen_reference.safetensors is gone, which holds a copy" in launch(
            tmp_path, expect=2, adapters=adapters
        )
        (tmp_path / "elsewhere").rename(stored)
    launch(tmp_path, 1, adapters=adapters)
    assert losses(tmp_path / "run") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)
