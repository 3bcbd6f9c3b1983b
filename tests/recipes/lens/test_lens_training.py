"""The training stages, run for a few steps as a user would."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lens_runs import model_folder, rows_of, train
from torch import Tensor

from samestep import UserError, World
from samestep.core.config import build
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.measuring import variance_of
from samestep.recipes.lens.network import relative_error
from samestep.recipes.lens.stages import stages
from samestep.recipes.lens.task import check_reinsertion, last_tokens
from samestep.train.weights.run_checkpoints import choose_checkpoint

FLOAT = "distributed.dtype=float32"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Training, then rewards."""
    return train(tmp_path_factory.mktemp("lens"), "verify-grpo")


def test_stages_and_what_they_log(run: Path) -> None:
    names = [stage.name for stage in stages(build(LensConfig, read_json(run / "config.json")["config"]))]
    assert names == ["pretokenize", "pretrain", "dump", "train", "grpo", "eval"]
    first, last = rows_of(run, "train")
    assert (first["tau"], first["alpha"], last["alpha"]) == (1.0, 0.0, 0.5)
    assert last["tau"] == pytest.approx(0.5**0.5), "half of an epoch of three steps"
    weighted = last["kl"] + 0.1 * 0.5 * last["lm"] - 0.01 * last["entropy"] + last["mse"]
    assert last["loss"] == pytest.approx(weighted)
    (found,) = rows_of(run, "train", "val/fve")
    assert {"val/kl", "val/lm", "val/entropy", "val/mse"} <= found.keys()
    weighted = found["val/kl"] + 0.1 * 0.5 * found["val/lm"] - 0.01 * found["val/entropy"] + found["val/mse"]
    assert found["val/loss"] == pytest.approx(weighted)
    assert not rows_of(run, "grpo", "val/loss"), "it trains another loss"
    rewards = rows_of(run, "grpo")
    assert len(rewards) == 3
    assert rewards[0]["reward"] < 0 < rewards[0]["reward_std"]
    assert rewards[-1]["clipped"] >= 0


def test_banner_and_progress_name_the_stage_and_its_loss(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(
        tmp_path, "verify-live", "log.quiet=false", "evaluation.rows=0", "grpo.max_steps=2", "grpo.entropy_weight=0.1"
    )
    shown = capfd.readouterr().out
    banners = {text.split()[1]: " ".join(text.split()) for text in shown.split("samestep · lens")[1:]}
    assert list(banners) == ["pretokenize", "pretrain", "warm_start", "train", "grpo", "done"]
    losses = {
        "pretokenize": "",
        "pretrain": "loss 1 nats of the next byte",
        "warm_start": "loss 1 nats + 0.5 mse",
        "train": "loss 1 kl + 0.1 alpha lm - 0.01 entropy + 1 mse (alpha from 0 to 1)",
        "grpo": "loss 1 policy + 1 mse - 0.1 entropy",
    }
    for stage, loss in losses.items():
        assert loss in banners[stage] and (" loss " in banners[stage]) == bool(loss)
        steps = re.findall(r"(\w+) (\d+)/\2 ", banners[stage])
        assert [name for name, _ in steps] == [stage], "of its progress"


def test_a_warm_start_repeats_the_context(tmp_path: Path) -> None:
    settings = (
        "warm_start.max_steps=15",
        "warm_start.learning_rate=0.1",
        "learning_rate=0",
        "max_steps=15",
        "validate_every=15",
        "evaluation.rows=0",
    )
    run = train(tmp_path, "verify-live", *settings)
    first, *_, last = rows_of(run, "warm_start")
    assert last["nats"] < first["nats"] - 0.1
    assert last["loss"] == pytest.approx(last["nats"] + 0.5 * last["mse"])
    (warm,), (start, end) = (rows_of(run, stage, "val/fve") for stage in ("warm_start", "train"))
    assert (start["step"], start["val/fve"]) == (0, warm["val/fve"]), "training begins with its weights"
    assert end["val/fve"] == pytest.approx(warm["val/fve"], abs=1e-9)


def test_training_that_makes_a_warm_start_worse_does_not_count(tmp_path: Path) -> None:
    settings = ("warm_start.max_steps=3", "learning_rate=1.0", "mse_weight=0", "evaluation.rows=0")
    run = train(tmp_path, "verify-live", *settings)
    start, *later = (row["val/fve"] for row in rows_of(run, "train", "val/fve"))
    assert start > max(later)
    assert choose_checkpoint(RunDir(run), "best", stage="train").name == "step_00000000"


def test_the_last_tokens_of_a_context() -> None:
    tokens = torch.tensor([[9, 1, 2, 3, 4], [9, 5, 6, 7, 8]])
    assert last_tokens(tokens, torch.tensor([4, 1]), 3).tolist() == [[2, 3, 4], [9, 9, 5]]


def test_variance_explained() -> None:
    """By hand: 1 for what is rebuilt exactly, 0 for the mean, and less for zeros."""
    rows = torch.randn(50, 4, dtype=torch.float64) + 3
    total = variance_of(rows)
    assert total == pytest.approx(float(((rows - rows.mean(0)) ** 2).sum() / 50))
    zeros = rows.square().sum(1).mean()
    assert 1 - float(zeros) / total < -5


def test_relative_error() -> None:
    error = relative_error(torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 4.0]]))
    assert float(error) == pytest.approx(9 / 25)


@pytest.mark.parametrize(
    ("preset", "settings"),
    [
        ("verify", ("kl_base_weight=0", "mse_weight=0")),
        ("verify-grpo", ("grpo.mse_weight=0", "grpo.max_steps=1")),
        ("verify-live", ("warm_start.mse_weight=0", "warm_start.max_steps=1")),
    ],
)
def test_an_encoder_without_a_loss_is_no_error(tmp_path: Path, preset: str, settings: tuple[str, ...]) -> None:
    """Also where gradients are reduced, which refuses parameters that get none."""
    train(tmp_path, preset, *settings, "max_steps=1", "evaluation.rows=0", "--nproc=1")


def test_a_warm_start_is_taken_over_by_training_with_other_weights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    small = ("warm_start.max_steps=1", "max_steps=1", "evaluation.rows=0")
    train(tmp_path, "verify-live", *small)
    other = ("lm_base_weight=0.5", "gumbel_tau_schedule.start=0.9", "learning_rate=1e-3", "max_steps=2")
    train(tmp_path, "verify-live", *small, *other, "stages_from=run", "log.quiet=false", name="second")
    assert "stage 'warm_start' is taken over from" in capfd.readouterr().out


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3"])
def test_models_of_transformers(tmp_path: Path, kind: str) -> None:
    """From local folders: every family, with all kinds of trained parts; copies of weights in bfloat16 too."""
    folder = model_folder(tmp_path / "model", kind, torch.bfloat16 if kind == "llama" else torch.float32)
    parts = {
        "gpt2": "{decoder: {base_model: lora}, encoder: {base_model: lora}, lora_targets: [c_attn], lora_dropout: 0.1}",
        "llama": "{decoder: {base_model: true, output_head: true}, encoder: {base_model: true}}",
    }.get(kind, "{}")
    few = (
        "max_steps=1",
        "activation_dumper.num_samples=6",
        "activation_dumper.validation_samples=4",
        "validate_every=0",
    )
    found = train(tmp_path, "verify", f"model_name={folder}", FLOAT, f"trainable_components={parts}", *few)
    (row,) = rows_of(found, "train")
    assert all(np.isfinite(row[name]) for name in ("kl", "lm", "entropy", "mse"))
    assert not (found / "artifacts" / "pretrain").exists()


def test_a_run_as_the_model(tmp_path: Path) -> None:
    """What the first stage of one run trained is what another one explains."""
    few = ("max_steps=2", "evaluation.rows=0", "validate_every=0")
    own = train(tmp_path, "verify", *few)
    other = train(tmp_path, "verify", f"model_name={own}", *few, name="other")
    assert not (other / "artifacts" / "pretrain").exists()
    names = ("kl", "lm", "entropy", "mse")
    first, second = ([[row[name] for name in names] for row in rows_of(run, "train")] for run in (own, other))
    assert first == second


class Inserting:
    """A network whose output with an activation put back is `apart` from its own."""

    def __init__(self, apart: float) -> None:
        self.apart = apart

    def __enter__(self) -> Any:
        plain = torch.tensor([[1.0, -2.0]], dtype=torch.float32)
        return lambda batch, what: {"plain": plain, "inserted": plain + self.apart}

    def __exit__(self, *error: object) -> None: ...


def test_reinsertion_is_checked_before_training() -> None:
    def rows(indices: np.ndarray) -> dict[str, Tensor]:
        return {"activation": torch.ones(len(indices), 2, dtype=torch.float32)}

    world = World.single()
    bench: Any = SimpleNamespace(world=world, config=LensConfig())
    held_out: Any = SimpleNamespace(validation=type("Rows", (), {"rows": staticmethod(rows), "__len__": lambda s: 3})())
    good: Any = SimpleNamespace(inference=lambda: Inserting(1e-6))
    check_reinsertion(bench, good, held_out)
    for apart in (0.1, float("nan")):
        bad: Any = SimpleNamespace(inference=lambda apart=apart: Inserting(apart))
        with pytest.raises(UserError, match="does not give the model's own logits"):
            check_reinsertion(bench, bad, held_out)


def test_other_settings_take_over_earlier_stages(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shown = ("stages_from=run", "log.quiet=false", "max_steps=1", "grpo.max_steps=1", "grpo.inner_epochs=1")
    second = train(run.parent, "verify-grpo", *shown, "t_text=2", "learning_rate=1e-3", name="second")
    assert capfd.readouterr().out.count("is taken over from") == 3, "the model, its tokens and its activations"
    (row,) = rows_of(second, "grpo")
    assert row["clipped"] == 0 and abs(row["policy"]) < 1e-9, "the first update compares a network with itself"
    train(run.parent, "verify-grpo", *shown, "layer_l=1", "until=dump", name="third")
    assert capfd.readouterr().out.count("is taken over from") == 2, "other activations of the same texts"
