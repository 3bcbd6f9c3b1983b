"""The scripts that users know, on 2 CPU processes."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from distill_runs import rows_of, validations_of

from samestep.core.json_files import read_json
from samestep.recipes.distill import recipe
from samestep.recipes.distill.presets import PRESETS

pytestmark = pytest.mark.timeout(900)
SCRIPTS = Path(__file__).parents[3] / "scripts" / "distill"
PYTHON_SCRIPT, LOCAL = SCRIPTS / "train_ddp.py", SCRIPTS / "run_ddp.sh"
SHORT = ["--preset=verify", "--max_steps=2", "--no-log.tensorboard", "--log.every=1", "name=a"]


def call(command: Sequence[str | Path], folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHON": python, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=100)


@pytest.mark.long
def test_the_shell_script_trains_on_2_processes_without_a_projection(tmp_path: Path) -> None:
    found = call([LOCAL, "2", "False", *SHORT], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "0 (2 processes on the CPU)" in found.stdout
    run = tmp_path / "runs" / "a"
    assert read_json(run / "status.json")["status"] == "done"
    assert read_json(run / "config.json")["config"]["use_projection"] is False
    assert [row["step"] for row in rows_of(run, "rank")] == [1, 2] and validations_of(run, "align")


def test_torchrun_trains_with_familiar_flags_and_a_notebooks_config(tmp_path: Path) -> None:
    """What the command line says counts before the file."""
    notebook = {"output_dir": "checkpoints", "batch_size": 3, "phase1_lr": 1e-3, "use_projection": False}
    (tmp_path / "ddp_config.json").write_text(json.dumps(notebook))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", PYTHON_SCRIPT]
    flags = ["--use_projection", "True", "--phase1_epochs=2", "--phase2_epochs=1", "--phase2_lr=4e-4"]
    flags += ["--max_samples_phase1=10", "--max_samples_phase2=12", "--skip_phase2", "--save_to_artifacts"]
    found = call([*torchrun, *SHORT, "--config", "ddp_config.json", *flags, "--artifacts_dir", "./out"], tmp_path)
    assert found.returncode == 0, found.stderr
    config = read_json(tmp_path / "checkpoints" / "a" / "config.json")["config"]
    assert (config["phase1_lr"], config["phase2_lr"], config["batch_size"]) == (1e-3, 4e-4, 3)
    assert (config["use_projection"], config["skip_phase1"], config["skip_phase2"]) == (True, False, True)
    assert (config["phase1_epochs"], config["max_samples_phase1"], config["max_samples_phase2"]) == (2, 10, 12)
    assert (tmp_path / "out" / "a" / "modules.json").is_file() and (tmp_path / "out" / "a" / "README.md").is_file()


@pytest.mark.parametrize("args", [[], ["2"], ["0", "True"], ["2", "maybe"], ["--help"]])
def test_a_wrong_call_is_answered_with_the_usage(args: list[str], tmp_path: Path) -> None:
    found = call([LOCAL, *args], tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("usage: run_ddp.sh N|auto True|False [further flags")
    assert not os.listdir(tmp_path)


def test_further_flags_come_last(tmp_path: Path) -> None:
    found = call([LOCAL, "auto", "True", "--train_data", "my records.jsonl"], tmp_path, python="echo")
    assert found.stdout.split(" ", 1)[1].strip() == "--nproc auto --use_projection True --train_data my records.jsonl"


def test_the_published_defaults() -> None:
    values = {field: getattr(recipe.config(), field) for field in ("phase1_epochs", "phase2_epochs", "use_projection")}
    assert values == {"phase1_epochs": 1, "phase2_epochs": 3, "use_projection": True}
    config = recipe.config()
    assert (config.phase1_lr, config.phase2_lr, config.artifacts_dir) == (2e-5, 5e-6, "artifacts")
    assert (config.max_samples_phase1, config.max_samples_phase2) == (100_000, 500_000)
    preset = PRESETS["retriever"]
    assert (preset["teacher_model"], preset["batch_size"]) == ("infly/inf-retriever-v1-pro", 64)
    assert (preset["student_model"], preset["out"]) == ("sentence-transformers/all-mpnet-base-v2", "checkpoints")
    assert PYTHON_SCRIPT.read_text().count('["--preset", "retriever"]') == 1
