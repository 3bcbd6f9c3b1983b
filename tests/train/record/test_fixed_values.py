"""first_launch.json is what was written, or it is refused."""

from pathlib import Path
from typing import Any

import pytest

from samestep.core.json_files import DamagedFile, write_json
from samestep.core.rundir import RunDir
from samestep.train.record.fixed_values import read_fixed

PLAN = {"samples": 9, "steps_per_epoch": 3, "steps": 6, "learning_rate": 0.1, "warmup_steps": 0}
DATA = {"training": [{"rows": 9, "digest": {"sha256": "a", "floats": {"x": [1.0, 2.0]}}}]}
FROZEN: dict[str, Any] = {"fit": {"plan": PLAN, "data": DATA}, "next": {}}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_fixed(RunDir(tmp_path)) == {}
    write_json(tmp_path / "first_launch.json", FROZEN)
    assert read_fixed(RunDir(tmp_path)) == FROZEN


@pytest.mark.parametrize(
    "fixed",
    [
        [],
        None,
        {"plan": None},
        {"plan": {**PLAN, "steps": "abc"}},
        {"plan": {**PLAN, "steps": 0}},
        {"plan": {**PLAN, "learning_rate": None}},
        {"plan": {key: value for key, value in PLAN.items() if key != "samples"}},
        {"data": []},
        {"batch_size": "auto"},
        {"batch_size": 0},
        {"data": {"training": 3}},
        {"data": {"training": [{}]}},
        {"data": {"training": [{"rows": 9, "files": [{"name": "x"}]}]}},
        {"data": {"training": [{"rows": 9, "digest": {"sha256": "a", "floats": {"x": ["b"]}}}]}},
    ],
)
def test_anything_else_is_refused(tmp_path: Path, fixed: Any) -> None:
    write_json(tmp_path / "first_launch.json", {"fit": fixed})
    with pytest.raises(DamagedFile, match=r"first_launch\.json is damaged"):
        read_fixed(RunDir(tmp_path))
