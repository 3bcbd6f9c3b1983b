"""The teacher's vectors: what a killed stage has computed is not computed again."""

from pathlib import Path

import numpy as np
import pytest
import torch

from samestep import Batch
from samestep.cli.main import main
from samestep.recipes.distill.teacher import LiveTeacher
from samestep.train.artifacts.array_rows import ArrayRows

BATCH = 5


def vectors_of(run: Path) -> ArrayRows:
    return ArrayRows(run / "artifacts" / "teacher" / "vectors")


def test_a_killed_cache_resumes_without_computing_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    compute = LiveTeacher.vectors
    calls = 10**6

    def counted(self: LiveTeacher, batch: Batch, part: str) -> torch.Tensor:
        if len(seen) == calls:
            raise RuntimeError("killed")
        seen.append(len(batch["live"]))
        return compute(self, batch, part)

    monkeypatch.setattr(LiveTeacher, "vectors", counted)
    settings = ["checkpoint.background=false", "until=teacher", f"out={tmp_path}", "log.quiet=true"]
    assert main(["train", "distill", "--preset", "verify", *settings, "name=whole"]) == 0
    whole = vectors_of(tmp_path / "whole")
    assert sum(seen) == len(whole)
    calls = len(seen) // 2
    seen.clear()
    assert main(["train", "distill", "--preset", "verify", *settings, "name=run"]) == 1
    before, calls = sum(seen), 10**6
    assert 0 < before < len(whole)
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    found = vectors_of(tmp_path / "run")
    assert len(whole) <= sum(seen) <= len(whole) + 2 * BATCH, "once more: only what came after the last save"
    every = np.arange(len(whole))
    torch.testing.assert_close(found.rows(every), whole.rows(every), rtol=0, atol=0)
