"""Runs of the recipe in this process, and what they log."""

import json
from pathlib import Path
from typing import Any

from samestep.cli.main import main

FLOAT = "distributed.dtype=float32"


def train(folder: Path, preset: str, *settings: str, name: str = "run") -> list[dict[str, Any]]:
    """The rows of metrics of the training stage of a run of some steps."""
    common = [f"out={folder}", f"name={name}", "log.every=1", "log.quiet=true", "log.tensorboard=false", FLOAT]
    assert main(["train", "dpo", "--preset", preset, *common, *settings]) == 0
    return rows_of(folder / name)


def rows_of(run: Path) -> list[dict[str, Any]]:
    """The rows of the steps of the training stage."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "dpo" in row]


def validations_of(run: Path) -> list[dict[str, Any]]:
    """The rows of its validations."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "val/loss" in row]


def write_records(path: Path, records: list[Any]) -> Path:
    """A .json or .jsonl file."""
    lines = path.suffix == ".jsonl"
    path.write_text("\n".join(map(json.dumps, records)) if lines else json.dumps(records))
    return path


def text_records(count: int) -> list[dict[str, str]]:
    """Pairs of short texts, all of them different and of different lengths."""
    return [
        {"prompt": f"say {number}:", "chosen": " yes" * (1 + number % 3) + f" {number}", "rejected": f" no {number}"}
        for number in range(count)
    ]
