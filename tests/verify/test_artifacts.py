"""Artifacts of two runs are compared by content."""

import json
from pathlib import Path

import numpy as np
import pytest

from samestep.verify.artifacts import artifacts_checks, compare_artifacts
from samestep.verify.tolerance import STRICT, ProofStatus


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    for run in ("one", "two"):
        folder = tmp_path / run / "artifacts" / "dump"
        (folder / "outputs").mkdir(parents=True)
        np.save(folder / "outputs" / "score.npy", np.linspace(0.0, 1.0, 12).reshape(6, 2))
        np.save(folder / "outputs" / "small.npy", np.full(3, 0.1, dtype=np.float32))
        np.save(folder / "outputs" / "index.npy", np.arange(6))
        (folder / "outputs" / "arrays.json").write_text(json.dumps({"digest": run}))
        (folder / "outputs" / ".steps.npy").write_text(run)
        (folder / "done.json").write_text(json.dumps({"run": run}))
        (folder / "words.json").write_text(json.dumps({"rows": [{"p": 0.5}, {"p": 0.25, "text": "a"}]}))
        (folder / "picture.png").write_bytes(run.encode())
    return tmp_path / "one", tmp_path / "two"


def array(run: Path, name: str) -> np.ndarray:
    return np.load(run / "artifacts" / "dump" / "outputs" / name, mmap_mode="r+")


def test_equal_artifacts_pass(runs: tuple[Path, Path]) -> None:
    found = compare_artifacts(*runs)
    assert (found.difference, found.files, found.others) == ("", 4, 1)
    (check,) = artifacts_checks(runs[0], {2: runs[1]}, STRICT)
    assert (check.result, check.sentence) == (
        ProofStatus.OK,
        "4 files, largest difference 0.0e+00; 1 other file by name",
    )


@pytest.mark.parametrize(("name", "change"), [("score.npy", 1e-12), ("small.npy", 1e-8)])
def test_rounding_passes_between_world_sizes_but_not_after_a_resume(
    runs: tuple[Path, Path], name: str, change: float
) -> None:
    values = array(runs[1], name)
    values[2] += change * (1 + values[2])
    assert compare_artifacts(*runs).difference == f"row 2 of the array dump/outputs/{name} differs"
    found = compare_artifacts(*runs, tolerance=1e-8)
    assert found.difference == "" and 0 < found.largest < 1e-6


def test_another_value_is_named(runs: tuple[Path, Path]) -> None:
    array(runs[1], "score.npy")[4, 1] += 1e-4
    (check,) = artifacts_checks(runs[0], {3: runs[1]}, STRICT)
    assert check.result is ProofStatus.FAILED
    assert check.sentence == (
        "row 4 of the array dump/outputs/score.npy differs; the largest difference in it is 1.0e-04 at 1 and 3 ranks"
    )


def test_whole_numbers_and_shapes_must_be_equal(runs: tuple[Path, Path]) -> None:
    array(runs[1], "index.npy")[5] = 7
    assert compare_artifacts(*runs, tolerance=1.0).difference == "row 5 of the array dump/outputs/index.npy differs"
    np.save(runs[1] / "artifacts/dump/outputs/index.npy", np.arange(7))
    assert "int64 [6] in one run and int64 [7] in the other" in compare_artifacts(*runs, tolerance=1.0).difference


def test_json_and_names(runs: tuple[Path, Path]) -> None:
    words = runs[1] / "artifacts" / "dump" / "words.json"
    words.write_text(words.read_text().replace("0.25", "0.250000000001"))
    assert compare_artifacts(*runs, tolerance=1e-8).difference == ""
    assert compare_artifacts(*runs).difference == "the artifact dump/words.json differs at rows.1.p"
    words.unlink()
    assert compare_artifacts(*runs, 1.0).difference == "the artifact dump/words.json is in one of both runs only"


def test_runs_without_artifacts_have_no_check(tmp_path: Path) -> None:
    assert artifacts_checks(tmp_path, {2: tmp_path}, STRICT) == []
