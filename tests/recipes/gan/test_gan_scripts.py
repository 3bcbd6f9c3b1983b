"""The scripts that users know, on 2 CPU processes."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(900)
SCRIPTS = Path(__file__).parents[3] / "scripts" / "gan"
SHELL_SCRIPT, TRAIN = SCRIPTS / "run_ddp_training.sh", SCRIPTS / "train_ddp.py"
SHORT = ["--max_steps=2", "--max_agent_tokens=6", "--no-log.tensorboard", "--save_checkpoints"]


def call(command: Sequence[str | Path], folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": python, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=100)


def status_and_files(run: Path) -> tuple[str, set[str]]:
    return read_json(run / "status.json")["status"], set(os.listdir(run / "weights"))


def test_the_shell_script_trains_on_2_processes_in_the_folder_it_is_called_from(tmp_path: Path) -> None:
    found = call([SHELL_SCRIPT, "test", *SHORT, "--run_name=a", "--checkpoint_freq=1"], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "0 (2 processes on the CPU)" in found.stdout
    files = {f"{model}_step_{step}.pt" for model in ("generator", "judge") for step in (1, 2)}
    assert status_and_files(tmp_path / "runs" / "a") == ("done", files)


@pytest.mark.long
def test_torchrun_trains_stories_with_the_python_script(tmp_path: Path) -> None:
    rows = [f"A{number},crime,Once upon a time there were {number} of them." for number in range(20)]
    (tmp_path / "stories.csv").write_text("\n".join(["title,genre,human_story", *rows]))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", TRAIN, "--preset=test"]
    flags = ["--data_path=stories.csv", "--domain=stories", "--batch_size=2", "--use_ppo", "false", "--run_name=a"]
    found = call([*torchrun, *SHORT, *flags], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "0 (2 processes on the CPU)" in found.stdout
    run = tmp_path / "runs" / "a"
    assert status_and_files(run) == ("done", {"generator_step_2.pt", "judge_step_2.pt"})
    config = read_json(run / "config.json")["config"]
    assert (config["objective"]["kind"], config["data"]["domain"]) == ("reinforce", "stories")
    assert read_json(run / "config.json")["global_batch"] == 4


@pytest.mark.parametrize(("preset", "nproc"), [("test", "2"), ("small", "4"), ("full", "auto")])
def test_processes_of_each_preset_and_further_flags_last(preset: str, nproc: str, tmp_path: Path) -> None:
    found = call([SHELL_SCRIPT, preset, "--run_name", "my run", "--nproc", "3"], tmp_path, python="echo")
    assert found.stdout.split(" ", 1)[1].strip() == f"--preset {preset} --nproc {nproc} --run_name my run --nproc 3"


@pytest.mark.parametrize("args", [[], ["tset"], ["--help"], ["Full", "--epochs", "3"]])
def test_a_wrong_preset_is_answered_with_the_usage(args: list[str], tmp_path: Path) -> None:
    found = call([SHELL_SCRIPT, *args], tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("usage: run_ddp_training.sh test|small|full [further flags")
    assert not os.listdir(tmp_path)


def test_the_python_script_explains_itself(tmp_path: Path) -> None:
    found = call([sys.executable, TRAIN, "--help"], tmp_path)
    assert found.returncode == 0
    assert "--max_judge_tokens" in found.stdout
