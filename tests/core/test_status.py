"""How a run ended, in its status: what it said itself counts, and nothing stays at running."""

from pathlib import Path

from samestep.core.exit_report import ExitReport
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.core.status import set_failed, set_status, set_stopped


def test_a_run_that_was_stopped_without_a_save(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    set_status(rundir, "running", stage="fit", step=3, steps=9)
    assert set_stopped(rundir, "SIGHUP")
    expected = {"status": "preempted", "stage": "fit", "step": 3, "steps": 9, "reason": "SIGHUP", "saved": False}
    assert read_json(rundir.status) == expected
    assert not set_stopped(rundir, "SIGTERM") and read_json(rundir.status) == expected
    set_status(rundir, "done")
    set_failed(rundir, ExitReport("too late", 1))
    assert read_json(rundir.status) == {"status": "done"}
