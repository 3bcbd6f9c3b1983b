"""Samples that a recipe writes at validation change nothing of the training, and do not depend on the ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep.cli.main import main

SETTINGS = ["max_steps=3", "validate_every=2", "log.every=1", "log.quiet=true", "log.tensorboard=false"]


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [{name: value for name, value in row.items() if not name.endswith("/s")} for row in found]


@pytest.mark.parametrize(
    ("recipe", "preset", "kind"),
    [
        ("mdlm", "verify", "text"),
        ("dpo", "verify", "alignment"),
        ("dpo", "verify-text", "pair"),
    ],
)
def test_training_is_the_same_without_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recipe: str, preset: str, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("with", 2), ("without", 0)):
        assert main(["train", recipe, f"preset={preset}", *SETTINGS, f"log.samples={count}", f"name={name}"]) == 0
    found = rows(Path("runs/with/samples.jsonl"))
    assert [(row["step"], row["kind"]) for row in found] == [(2, kind)] * 2 + [(3, kind)] * 2
    assert not Path("runs/without/samples.jsonl").exists()
    assert rows(Path("runs/with/metrics.jsonl")) == rows(Path("runs/without/metrics.jsonl"))
