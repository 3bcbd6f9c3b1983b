"""A disk that is full when a run begins, or fills up while it runs: one sentence, and the next launch works."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cli.conftest import EXAMPLE, SMALL, Shell
from samestep.core.exit_report import parse_exit_report
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

pytestmark = pytest.mark.timeout(900)
FILLING = """
import os
from pathlib import Path

import torch
from torch import nn

from faults.fault_injection import fill_disk
from samestep import Config, Fit, Recipe, Stage


class Filling(Fit):
    def step(self, tick):
        if os.environ.get("FILLS_AT") == str(tick.step):
            fill_disk(Path("disk/ballast"))
        return super().step(tick)


def loss(model, batch):
    return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}


def build(bench):
    rows = [{"x": torch.tensor([i / 9]), "y": torch.tensor([i / 3])} for i in range(9)]
    return Filling(bench.learner(nn.Linear(1, 1)), bench.feed(rows), loss)


recipe = Recipe(Config, lambda config: [Stage("fit", build)])
"""
FILLING_ARGS = [
    *("train", "filling.py", "--out", "disk/runs", "--name", "a", "--max_steps", "120", "--global_batch_size", "3"),
    *("--log.every", "1", "--checkpoint.every_steps", "60", "--checkpoint.every_epochs", "0"),
    "--no-checkpoint.background",
]
Mount = Callable[[str], Path]


@pytest.fixture
def mount(shell: Shell) -> Iterator[Mount]:
    """Mounts a disk of some size as `disk`."""
    disk = shell.folder / "disk"
    disk.mkdir()

    def mounted(size: str) -> Path:
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True)
        if made.returncode:
            pytest.skip("a small disk cannot be mounted here")
        return disk

    yield mounted
    subprocess.run(["umount", str(disk)], capture_output=True)


def sentences(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("samestep: ")]


@pytest.mark.parametrize(("size", "ranks"), [("4k", 1), ("16k", 1), ("40k", 1), ("56k", 1), ("64k", 2), ("70k", 1)])
def test_a_disk_that_is_too_small_to_begin_on_is_refused_and_nothing_stays(
    shell: Shell, mount: Mount, size: str, ranks: int
) -> None:
    disk = mount(size)
    command = ["train", str(EXAMPLE), *SMALL, "--name", "a", "--out", "disk"]
    codes, output = shell(*command, ranks=ranks)
    assert codes == [2] * ranks, output
    assert len(sentences(output)) == 1 and "Traceback" not in output
    assert " kB are free" in output and "); free some space there, or choose" in output
    assert list(disk.iterdir()) == [], "nothing blocks the next launch, or takes a name"
    subprocess.run(["mount", "-o", "remount,size=2m", str(disk)], check=True)
    assert shell(*command, ranks=ranks)[0] == [0] * ranks


@pytest.mark.parametrize(
    ("ranks", "more"), [(1, ["--no-log.tensorboard"]), (2, ["--no-log.tensorboard"]), (1, ["--log.tensorboard"])]
)
def test_a_disk_that_fills_up_in_a_step_ends_the_run_with_a_sentence_and_it_resumes(
    shell: Shell, mount: Mount, ranks: int, more: list[str]
) -> None:
    Path("filling.py").write_text(FILLING)
    disk = mount("2m")
    run = RunDir(disk / "runs/a")
    codes, output = shell(*FILLING_ARGS, *more, ranks=ranks, env={"FILLS_AT": "61"})
    assert codes == [1] * ranks, output
    assert "Traceback" not in output and "Logging error" not in output
    sentence = r"samestep: the disk of (\S+) is full \(No space left on device, [04] kB are free\); earlier"
    assert re.findall(sentence, output)[0] == str(run.path)
    assert f"samestep train --resume {run.path}" in output
    report = parse_exit_report(read_json(run.exit_report(0)))
    assert report is not None and report.kind == "disk" and not report.traceback
    assert read_json(run.status)["kind"] == "disk"
    assert diagnose(collect_evidence(run)).verdict == "disk"
    (disk / "ballast").unlink()
    codes, output = shell("train", "--resume", str(run.path), ranks=ranks)
    assert codes == [0] * ranks, output
    assert [row["step"] for row in JsonLines(run.metrics)] == list(range(1, 121))
