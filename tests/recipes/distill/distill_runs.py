"""Runs of the recipe in this process, and what they log."""

import json
from pathlib import Path
from typing import Any

from samestep.cli.main import main

FLOAT = "distributed.dtype=float32"


def train(folder: Path, preset: str, *settings: str, name: str = "run") -> Path:
    """A run of some steps; its folder."""
    common = [f"out={folder}", f"name={name}", "log.every=1", "log.quiet=true", "log.tensorboard=false", FLOAT]
    assert main(["train", "distill", "--preset", preset, *common, *settings]) == 0
    return folder / name


def rows_of(run: Path, stage: str) -> list[dict[str, Any]]:
    """The rows of metrics of a stage's steps."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["stage"] == stage and "loss" in row]


def validations_of(run: Path, stage: str) -> list[dict[str, Any]]:
    """The rows of its validations."""
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if row["stage"] == stage and "val/ndcg@10" in row]


def write_records(path: Path, count: int, negatives: int = 2) -> Path:
    """Questions about numbers, each with its own answer and some of others."""
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

    def spelled(number: int) -> str:
        return " ".join(words[int(digit)] for digit in str(number))

    records = [
        {
            "query": f"what is {number}",
            "positive": f"it is spelled {spelled(number)}" + " of course" * (number % 3),
            "negatives": [f"it is spelled {spelled(number + 1 + other)}" for other in range(negatives)],
        }
        for number in range(count)
    ]
    path.write_text("\n".join(map(json.dumps, records)))
    return path
