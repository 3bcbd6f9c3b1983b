"""What a failed rank writes into the run directory, also on a full disk."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.fault_injection import fill_disk
from samestep.core.exit_report import ExitReport
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.core.status import set_status
from samestep.train.record.config import Config
from samestep.train.record.run_record import open_run
from samestep.train.record.run_status import write_exit_report


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one megabyte."""
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if made.returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def opened(out: Path) -> RunDir:
    rundir, lock, *_ = open_run("toy", Config(out=str(out), name="a"))
    lock.release()
    return rundir


def test_every_rank_writes_its_exit_report_and_rank_0_the_status(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    assert read_json(rundir.status) == {"status": "running"}, "from the moment it is opened"
    set_status(rundir, "running", stage="fit", step=0, steps=9)
    write_exit_report(rundir, ExitReport("bad", 1, 3), is_main=False)
    assert read_json(rundir.status)["status"] == "running"
    write_exit_report(rundir, ExitReport("worse", 77, 0, kind="memory"), is_main=True)
    assert ExitReport(**read_json(rundir.exit_report(3))).text == "bad"
    expected = {"status": "failed", "stage": "fit", "step": 0, "steps": 9, "kind": "memory", "text": "worse"}
    assert read_json(rundir.status) == expected


def test_the_next_launch_begins_with_an_empty_watch(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    write_exit_report(rundir, ExitReport("bad", 1), is_main=True)
    rundir.heartbeat(0).write_text("{}")
    rundir = opened(tmp_path)
    assert [path.name for path in rundir.watch.iterdir()] == [".spare"]
    assert read_json(rundir.status) == {"status": "running"}


def test_a_run_that_is_done_stays_so_whatever_another_launch_of_it_comes_to(tmp_path: Path) -> None:
    rundir = opened(tmp_path)
    set_status(rundir, "done")
    rundir = opened(tmp_path)
    write_exit_report(rundir, ExitReport("until=tune is no stage", 2, kind="user"), is_main=True)
    assert read_json(rundir.status) == {"status": "done"}
    set_status(rundir, "done", stage="fit", step=3, steps=3)
    assert read_json(opened(tmp_path).status) == {"status": "running"}, "only one of its stages was done"


def test_a_full_disk_still_takes_an_exit_report(disk: Path) -> None:
    rundir = opened(disk)
    fill_disk(disk / "ballast")
    with pytest.raises(OSError, match="No space left"):
        (disk / "more").write_text("x")
    write_exit_report(rundir, ExitReport("OSError: No space left on device", 1, traceback="line\n" * 900), is_main=True)
    assert read_json(rundir.exit_report(0))["traceback"].count("line") == 900
    assert read_json(rundir.status)["status"] == "failed"
    fill_disk(disk / "ballast")
    write_exit_report(rundir, ExitReport("again", 1, 1, traceback="line\n" * 9000), is_main=False)
    assert not rundir.exit_report(1).exists(), "there is no space left, and that is no error"
