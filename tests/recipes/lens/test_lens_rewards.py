"""What may follow a warm start in place of training through draws: the encoder alone, then rewards near a beginning."""

from pathlib import Path

import pytest
import torch
from lens_runs import rows_of, train

from samestep.core.config import build
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.stages import stages
from samestep.recipes.lens.task import rewards_mix
from samestep.train.weights.run_checkpoints import choose_checkpoint
from samestep.train.weights.sources import find_weights

PRESET = "verify-encoder"
BEGINNING_AND_END = (("best", "warm_start"), ("last", "encoder"))
SMALL = ("evaluation.rows=0", "validate_every=3")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warm start, the encoder alone, rewards."""
    return train(tmp_path_factory.mktemp("lens"), PRESET, *SMALL, "grpo.inner_epochs=1")


def test_training_through_draws_is_left_out(run: Path) -> None:
    names = [stage.name for stage in stages(build(LensConfig, read_json(run / "config.json")["config"]))]
    assert names == ["pretokenize", "pretrain", "dump", "warm_start", "encoder", "grpo"]
    assert not rows_of(run, "train")


def test_only_the_encoder_learns_in_its_stage(run: Path) -> None:
    chosen = (choose_checkpoint(RunDir(run), which, stage=stage) for which, stage in BEGINNING_AND_END)
    before, after = map(find_weights, chosen)
    changed = [name for name, value in after.items() if not torch.equal(value, before[name])]
    assert changed and all("encoder" in name for name in changed), changed
    first, *_ = rows_of(run, "encoder")
    assert first["loss"] == pytest.approx(first["mse"]), "of the decoder nothing is asked"


def test_a_stage_begins_with_the_best_of_the_one_before(run: Path) -> None:
    best = max(row["val/fve"] for row in rows_of(run, "warm_start", "val/fve"))
    start, *_ = rows_of(run, "encoder", "val/fve")
    assert (start["step"], start["val/fve"]) == (0, pytest.approx(best, abs=1e-12))
    best = max(row["val/fve"] for row in rows_of(run, "encoder", "val/fve"))
    start, *_ = rows_of(run, "grpo", "val/fve")
    assert (start["step"], start["val/fve"]) == (0, pytest.approx(best, abs=1e-12))


def test_the_divergence_is_from_the_beginning_of_the_stage(run: Path) -> None:
    first, *later = rows_of(run, "grpo")
    assert abs(first["kl"]) < 1e-12, "the decoder is what it is compared with"
    assert all(row["kl"] > 0 for row in later)
    for row in (first, *later):
        assert row["loss"] == pytest.approx(row["policy"] + row["mse"] + 0.1 * row["kl"])


def test_activations_a_step_are_those_of_rewards_alone() -> None:
    config = build(LensConfig, {"grpo": {"max_steps": 1, "activations": 4}, "global_batch_size": 6, "batch_size": 6})
    found = {stage.name: stage.config(config) if stage.config else config for stage in stages(config)}
    assert (found["grpo"].global_batch_size, found["grpo"].batch_size) == (4, 4)
    assert found["train"].global_batch_size == 6


def test_without_a_weight_there_is_no_divergence_and_no_copy() -> None:
    config = build(LensConfig, {"grpo": {"max_steps": 1}})
    assert "kl" not in rewards_mix(config)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (("through_draws=false", "warm_start.max_steps=0"), "Set warm_start.max_steps, or through_draws=true"),
        (("through_draws=false", "max_steps=3"), "max_steps has no effect"),
        (("encoder_alone.max_steps=0", "encoder_alone.learning_rate=1"), "encoder_alone.learning_rate has no effect"),
    ],
)
def test_careless_settings(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], settings: tuple[str, ...], sentence: str
) -> None:
    train(tmp_path, PRESET, *settings, code=2)
    shown = capfd.readouterr()
    assert sentence in " ".join((shown.out + shown.err).split())
