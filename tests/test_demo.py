"""What `make demo` does beside training: it kills a process, and says what came of it."""

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from samestep.core.json_files import JsonLines, write_json
from samestep.core.rundir import RunDir
from samestep.recipes.mdlm.config import PRESETS
from samestep.recipes.mdlm.corpus import DataConfig, load

SLEEP = [sys.executable, "-c", "import time; time.sleep(300)"]


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    loader = SourceFileLoader("demo", str(Path(__file__).parents[1] / "scripts" / "demo"))
    spec = spec_from_loader("demo", loader)
    assert spec is not None
    module = module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader.exec_module(module)
    return module


def row(step: int, loss: float, speed: float = 1.0) -> dict[str, Any]:
    return {"stage": "pretrain", "step": step, "loss": loss, "tokens/s": speed}


def test_the_last_rank_of_the_new_run_is_killed_once_rows_follow_a_checkpoint(demo: ModuleType) -> None:
    rundir = RunDir(Path("runs/new"))
    Path("runs/old").mkdir(parents=True)
    JsonLines(rundir.events).append({"kind": "save", "step": 20})
    rows = JsonLines(rundir.metrics)
    for step in range(10, 70, 10):
        rows.append(row(step, 1.0))
    with subprocess.Popen(SLEEP) as training, subprocess.Popen(SLEEP) as rank:
        try:
            write_json(rundir.heartbeat(0), {"pid": training.pid})
            write_json(rundir.heartbeat(1), {"pid": rank.pid})
            found, lost = demo.kill_one(training, {Path("runs/old")})
            assert rank.wait(30) == -9 and training.poll() is None
        finally:
            training.kill()
            rank.kill()
    assert found == rundir and [each["step"] for each in lost] == [30, 40, 50, 60]


@pytest.mark.parametrize(
    ("again", "text"), [(2.5, "are bit for bit the same"), (2.5000000000000004, "are NOT the same")]
)
def test_what_was_trained_twice_is_compared(demo: ModuleType, again: float, text: str) -> None:
    lines = demo.report([row(10, 3.0), row(20, again, speed=2.0)], lost=[row(20, 2.5, speed=1.0)])
    assert "at steps 20 to 20, before and after, " in lines[-1] and text in lines[-1]
    assert any("*" in line for line in lines), "the curve"


def test_the_preset_is_there_and_saves_before_the_run_is_over(demo: ModuleType) -> None:
    preset = PRESETS[demo.COMMAND[demo.COMMAND.index("--preset") + 1]]
    rows = len(load(DataConfig(**preset["data"])).train)
    steps_per_epoch = -(-rows // preset["global_batch_size"])
    assert preset["checkpoint"]["every_epochs"] * steps_per_epoch < preset["max_steps"] / 2, "there is a time to kill"


def test_a_run_that_ended_before_the_kill_claims_nothing(demo: ModuleType) -> None:
    assert not any("killed" in line for line in demo.report([row(10, 3.0)], lost=[]))
    with subprocess.Popen([sys.executable, "-c", ""]) as training:
        assert demo.kill_one(training, set()) == (None, [])
