"""Models in folders, trained against each other for a few steps as a user would."""

import json
from pathlib import Path
from typing import Any

import pytest

from player_folders import BRACKETS, CHATML, bytes_with_merges, player_folder, words_with_spaces
from samestep.cli.main import main
from toys import run_on_ranks

METRICS = ("generator/loss", "generator/kl", "generator/entropy", "judge/loss", "judge_accuracy", "tokens_written")


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return player_folder(tmp_path_factory.mktemp("chat"), CHATML, bytes_with_merges())


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another kind, with another tokenizer."""
    return player_folder(tmp_path_factory.mktemp("other"), BRACKETS, words_with_spaces(begins=True), kind="gpt2")


def train(run: Path, *settings: str, ranks: int = 1) -> list[dict[str, Any]]:
    """The rows of metrics of a run of some steps."""
    common = [f"out={run.parent}", f"name={run.name}", "log.every=1", "schedule=constant", "objective.kl_coef=0.1"]
    command = ["train", "gan", "--preset", "verify", *common, "distributed.dtype=float32", *settings]
    if ranks > 1:
        run_on_ranks(main, ranks, command, logs=run.parent / "logs")
    else:
        assert main(command) == 0
    return metrics(run)


def metrics(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "judge_accuracy" in row]


def values(rows: list[dict[str, Any]]) -> list[list[float]]:
    return [[row[name] for name in METRICS] for row in rows]


@pytest.mark.timeout(900)
def test_one_model_plays_both_sides_on_any_ranks(chat: Path, tmp_path: Path) -> None:
    settings = [f"model_name={chat}", "max_steps=2"]
    alone = train(tmp_path / "alone", *settings)
    assert [row["step"] for row in alone] == [1, 2]
    assert abs(alone[0]["generator/kl"]) < 1e-5 < alone[1]["generator/kl"], "it leaves its frozen copy"
    assert alone[0]["generator/clipped"] == 0, "log-probabilities in training are those of the rollout"
    two = train(tmp_path / "two", *settings, ranks=2)
    for mine, theirs in zip(values(two), values(alone), strict=True):
        assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.timeout(900)
def test_models_of_different_kinds_with_adapters(chat: Path, other: Path, tmp_path: Path) -> None:
    """The reference of a generator with adapters is its own base, of which nothing is copied."""
    sides = [f"generator.model={other}", f"judge.model={chat}", "generator.lora_rank=2", "judge.lora_rank=2"]
    rows = train(tmp_path / "run", *sides, "learning_rate=0.03", "max_steps=2")
    assert abs(rows[0]["generator/kl"]) < 1e-5 < rows[1]["generator/kl"]
    assert not list((tmp_path / "run").rglob("frozen_*")), "no copy of a reference"
    recorded = json.loads((tmp_path / "run" / "first_launch.json").read_text())["gan"]
    assert {"base/generator", "base/judge"} <= recorded.keys()


@pytest.mark.timeout(900)
def test_a_run_with_one_adapter_goes_on_where_it_stopped(chat: Path, other: Path, tmp_path: Path) -> None:
    sides = [f"generator.model={chat}", "generator.lora_rank=2", f"judge.model={other}"]
    settings = [*sides, "objective.kind=grpo", "objective.group_size=2", "learning_rate=0.03"]
    whole = train(tmp_path / "whole", *settings, "max_steps=2")
    train(tmp_path / "parts", *settings, "max_steps=1")
    assert main(["train", "--resume", str(tmp_path / "parts"), "max_steps=2"]) == 0
    assert values(metrics(tmp_path / "parts")) == values(whole)


def test_blocks_that_are_computed_again_change_nothing(other: Path, tmp_path: Path) -> None:
    sides = [
        f"generator.model={other}",
        f"judge.model={other}",
        "max_steps=2",
        "objective.kl_coef=0",
        "benchmark.size=0",
    ]
    plain, again = (train(tmp_path / kind, *sides, f"activation_checkpointing={kind}") for kind in ("none", "full"))
    for row, other_row in zip(plain, again, strict=True):
        for name in ("generator/loss", "judge/loss", "generator/grad_norm", "judge/grad_norm"):
            assert row[name] == pytest.approx(other_row[name], rel=1e-4, abs=1e-6)
