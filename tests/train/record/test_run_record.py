"""Which run directory a launch opens, and the order of its stages."""

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from samestep.core.errors import UserError
from samestep.core.json_files import read_json
from samestep.core.rundir import RunDir
from samestep.core.safe_files import temporary_name
from samestep.train.record.config import Config
from samestep.train.record.first_launch import FirstLaunch
from samestep.train.record.run_record import discard_files_of_rank, discard_run, has_results, open_run, stage_folders
from samestep.world.world import World


def opened(out: Path, *launches: str) -> str:
    rundir, lock, *_ = open_run("toy", Config(out=str(out)), launches=launches)
    lock.release()
    return rundir.path.name


def test_a_restart_finds_its_run_though_rank_0_moved_to_another_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAMESTEP_LAUNCH_ID", raising=False)
    assert opened(tmp_path, "node1:7:none", "node2:9:none") == "toy-default-1"
    assert opened(tmp_path, "node1:8:none") == "toy-default-2"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert opened(tmp_path, "node2:9:none", "node3:5:none") == "toy-default-1"
    assert opened(tmp_path, "node3:5:none") == "toy-default-1", "the run has the nodes that joined"
    assert opened(tmp_path, "node4:5:none") == "toy-default-3"


def test_a_restart_with_a_smaller_batch_size_keeps_the_batch_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SAMESTEP_LAUNCH_ID", raising=False)
    of_preset = Config(out=str(tmp_path), name="a", batch_size=8, global_batch_size=8)
    halved = replace(of_preset, batch_size=4, global_batch_size=None)  # the launcher adds --batch_size=4
    rundir, lock, *_ = open_run("toy", of_preset, launches=["node1:7:none"])
    lock.release()
    rundir.first_launch.write_text("{}")
    with pytest.raises(UserError, match=r"a different run \(global_batch_size differ"):
        open_run("toy", halved, launches=["node1:8:none"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    _, lock, batch, *_ = open_run("toy", halved, launches=["node1:7:none"])
    lock.release()
    assert batch == read_json(rundir.config)["config"]["global_batch_size"] == 8


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.txt").touch()
    with pytest.raises(UserError, match="holds no samestep run"):
        open_run("toy", Config(out=str(tmp_path), name="a"))


def test_a_run_that_was_killed_while_it_was_first_recorded_is_opened(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "lock").touch()
    left = temporary_name(tmp_path / "a" / "config.json")
    left.write_text('{"recipe": "to')
    rundir, lock, *_ = open_run("toy", Config(out=str(tmp_path), name="a"))
    lock.release()
    assert rundir.config.exists() and not left.exists()


def precision_of(config: Config, here: str) -> str:
    found = open_run("toy", config, precision=here)
    found.lock.release()
    return found.precision


def test_the_first_launch_decides_what_auto_means(tmp_path: Path) -> None:
    config = Config(out=str(tmp_path), name="a")
    assert precision_of(config, "none") == "none"
    assert precision_of(config, "bf16") == "bf16", "no step was planned yet"
    (tmp_path / "a" / "first_launch.json").write_text("{}")
    assert precision_of(config, "none") == "bf16", "the same arithmetic on another device"


def test_a_run_keeps_its_arithmetic_where_none_is_given(tmp_path: Path) -> None:
    config = Config(out=str(tmp_path), name="a")
    precision_of(config, "none")
    (tmp_path / "a" / "first_launch.json").write_text("{}")
    assert precision_of(config, "bf16") == "none"
    given = replace(config, distributed=replace(config.distributed, mixed_precision="bf16"))
    with pytest.raises(UserError, match=r"holds a different run \(distributed.mixed_precision differ\)"):
        open_run("toy", given)


def test_stages_are_in_the_order_in_which_they_began_whatever_was_touched_last(tmp_path: Path) -> None:
    rundir = RunDir(tmp_path)
    for age, stage in enumerate(("rank", "align", "dump")):
        rundir.checkpoints(stage).mkdir(parents=True)
        os.utime(rundir.checkpoints(stage), (1000 + age, 1000 + age))
    FirstLaunch(World.single(), rundir, "dump").fix("size", lambda: 4)
    for stage in ("dump", "align", "rank"):
        FirstLaunch(World.single(), rundir, stage).begin()
    assert read_json(rundir.first_launch) == {"dump": {"size": 4}, "align": {}, "rank": {}}
    assert [folder.name for folder in stage_folders(rundir)] == ["dump", "align", "rank"]


@pytest.fixture
def frequent_switches() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("frequent_switches")
def test_ranks_discard_a_run_at_the_same_time(tmp_path: Path) -> None:
    """One may find a folder that the other removes before it is read."""
    start = Barrier(2)

    def at_once(*work: Callable[[], object]) -> None:
        start.wait(60)
        for each in work:
            each()

    with ThreadPoolExecutor(2) as pool:
        for number in range(300):
            rundir = RunDir(tmp_path / str(number))
            for path in (rundir.log(0), rundir.log(1), rundir.watch / "rank_1.json", rundir.checkpoints("fit") / "x"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            rank_1 = pool.submit(at_once, lambda r=rundir: has_results(r), lambda r=rundir: discard_files_of_rank(r, 1))
            rank_0 = pool.submit(at_once, lambda r=rundir: discard_run(r))
            rank_0.result(), rank_1.result()
            assert not rundir.path.exists()
