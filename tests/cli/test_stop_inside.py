"""A stop inside a long rollout: all ranks leave the step at once, and a resume does it again, bit for bit."""

import signal
import time
from pathlib import Path

import pytest

from cli.conftest import Shell
from cli.test_train import metrics_of, weights_of
from samestep.checkpoint.manifest import find_checkpoints
from samestep.core.json_files import read_json

RECIPE = str(Path(__file__).with_name("slow_rollout.py"))
SETTINGS = ["--no-log.tensorboard", "--log.every", "1", "--distributed.device", "cpu", "--max_steps", "6"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("args", "saved"), [(["--distributed.strategy", "fsdp"], [3]), (["--early", "--checkpoint.every_steps", "2"], [2])]
)
def test_sigterm_inside_a_rollout(shell: Shell, args: list[str], saved: list[int]) -> None:
    """What the step has not changed is saved as it was before it; if a learner was updated, the last save counts."""
    run = ["train", RECIPE, *SETTINGS, *args, "--batch_size", "2", "--name"]
    assert shell(*run, "whole", ranks=2)[0] == [0, 0]
    Path("slow").touch()
    workers = shell.start(*run, "stopped", ranks=2)
    end = time.monotonic() + 60
    while not all(Path(f"inside_{rank}").exists() for rank in range(2)) and time.monotonic() < end:
        time.sleep(0.02)
    workers.signal(signal.SIGTERM)
    assert workers.wait(20) == [75, 75], workers.output(0)
    assert "stopped by SIGTERM" in workers.output(0)
    assert ("nothing new is saved" in workers.output(0)) == (saved == [2])
    status = read_json(Path("runs/stopped/status.json"))
    assert (status["status"], status["step"], status["reason"]) == ("preempted", 3, "SIGTERM")
    assert [found.step for found in find_checkpoints(Path("runs/stopped/checkpoints/fit"))] == saved
    Path("slow").unlink()
    codes, output = shell("train", "--resume", "stopped", ranks=2)
    assert codes == [0, 0] and f"step {saved[0]}" in output, output
    assert weights_of("runs/stopped") == weights_of("runs/whole")
    assert metrics_of(Path("runs/stopped")) == metrics_of(Path("runs/whole"))
