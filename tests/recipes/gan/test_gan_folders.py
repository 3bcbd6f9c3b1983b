"""Models in folders, trained against each other for a few steps as a user would."""

import json
from pathlib import Path
from typing import Any

import pytest

from player_folders import BRACKETS, CHATML, bytes_with_merges, player_folder, words_with_spaces
from samestep.cli.main import main


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return player_folder(tmp_path_factory.mktemp("chat"), CHATML, bytes_with_merges())


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of another kind, with another tokenizer."""
    return player_folder(tmp_path_factory.mktemp("other"), BRACKETS, words_with_spaces(begins=True), kind="gpt2")


def train(folder: Path, *settings: str, name: str = "run") -> list[dict[str, Any]]:
    """The rows of metrics of a run of some steps."""
    common = [f"out={folder}", f"name={name}", "log.every=1", "log.quiet=true", "distributed.dtype=float32"]
    assert main(["train", "gan", "--preset", "verify", "schedule=constant", *common, *settings]) == 0
    return [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]


def frozen(run: Path) -> dict[str, Any]:
    return json.loads((run / "frozen.json").read_text())  # type: ignore[no-any-return]


def test_one_model_plays_both_sides(chat: Path, tmp_path: Path) -> None:
    rows = train(tmp_path, f"model_name={chat}", "objective.kl_coef=0.1", "max_steps=3")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert abs(rows[0]["generator/kl"]) < 1e-5 < rows[2]["generator/kl"], "it leaves its frozen copy"
    assert rows[0]["generator/clipped"] == 0, "log-probabilities in training are those of the rollout"
    assert rows[0]["judge/verdict"] > 0
    assert all(row[f"{side}/skipped"] == 0 for row in rows for side in ("generator", "judge"))


def test_adapters_on_both_sides(chat: Path, other: Path, tmp_path: Path) -> None:
    """The reference of a generator with adapters is its own base, of which nothing is copied."""
    sides = [f"generator.model={chat}", f"judge.model={other}", "generator.lora_rank=2", "judge.lora_rank=2"]
    rows = train(tmp_path, *sides, "objective.kl_coef=0.1", "learning_rate=0.03", "max_steps=3")
    assert abs(rows[0]["generator/kl"]) < 1e-5 < rows[2]["generator/kl"]
    assert not list((tmp_path / "run").rglob("frozen_*"))
    print(json.dumps(frozen(tmp_path / "run"), indent=1))


def test_a_run_that_stopped_goes_on(chat: Path, other: Path, tmp_path: Path) -> None:
    """Adapters on one side, and a group of completions per prompt."""
    sides = [f"generator.model={other}", "generator.lora_rank=2", f"judge.model={chat}", "max_steps=3"]
    settings = [*sides, "objective.kind=grpo", "objective.group_size=2", "objective.kl_coef=0.1"]
    whole = train(tmp_path, *settings, name="whole")
    train(tmp_path, *settings, "until=1", name="parts")
    parts = train(tmp_path, *settings, "until=null", name="parts")
    figures = ("generator/loss", "generator/kl", "judge/loss", "judge_accuracy", "tokens_written")
    assert [[row[name] for name in figures] for row in parts] == [[row[name] for name in figures] for row in whole]
