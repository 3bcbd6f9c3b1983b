"""The project of distill: every command that its users know works as typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from distill_runs import rows_of, validations_of

from projects import make_project, project_for_settings, really, typed
from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(900)
SHORT = "--preset verify --max_steps=2 --no-log.tensorboard --log.every=1 --teacher_model null --student_model null"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return project_for_settings("distill", tmp_path / "my-retriever", monkeypatch)


def test_defaults(project: Path) -> None:
    config: Any = typed("python train_ddp.py", project).config()
    assert config.teacher_model == "infly/inf-retriever-v1-pro"
    assert config.student_model == "sentence-transformers/all-mpnet-base-v2"
    assert (config.use_projection, config.batch_size, config.global_batch_size) == (True, 64, None)
    assert (config.phase1_epochs, config.phase2_epochs, config.phase1_lr, config.phase2_lr) == (1, 3, 2e-5, 5e-6)
    assert (config.max_samples_phase1, config.phase1_samples, config.max_samples_phase2) == (100000, "texts", 500000)
    assert (config.out, config.artifacts_dir, config.save_to_artifacts) == ("checkpoints", "artifacts", False)
    assert (config.skip_phase1, config.skip_phase2, config.data.train) == (False, False, "data/records.jsonl")


@pytest.mark.parametrize(
    ("command", "launcher", "changed"),
    [
        ("./run_ddp.sh 8 True", "--nproc_per_node=8", {"use_projection": True}),
        ("./run_ddp.sh 8 False", "--nproc_per_node=8", {"use_projection": False}),
        (
            "torchrun --nproc_per_node=8 train_ddp.py --use_projection=False --phase1_lr=3e-5 --phase2_lr=1e-5",
            "--nproc_per_node=8",
            {"use_projection": False, "phase1_lr": 3e-5, "phase2_lr": 1e-5},
        ),
        ("torchrun --nproc_per_node=4 train_ddp.py --batch_size=128", "--nproc_per_node=4", {"batch_size": 128}),
        ("torchrun --nproc_per_node=8 train_ddp.py --skip_phase1", "--nproc_per_node=8", {"skip_phase1": True}),
        (
            "torchrun --nproc_per_node=8 train_ddp.py --save_to_artifacts --artifacts_dir=./my_models",
            "--nproc_per_node=8",
            {"save_to_artifacts": True, "artifacts_dir": "./my_models"},
        ),
        (
            "torchrun --nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=MASTER_IP --master_port=29500 "
            "train_ddp.py",
            "--nproc_per_node=8 --nnodes=2 --node_rank=0 --master_addr=MASTER_IP --master_port=29500",
            {"batch_size": 64},
        ),
    ],
)
def test_commands_as_typed(project: Path, command: str, launcher: str, changed: dict[str, Any]) -> None:
    found = typed(command, project)
    assert found.done.returncode == 0, found.done.stderr
    assert found.launchers == [("torchrun", launcher.split())]
    assert len(found.done.stdout.splitlines()) == 1, "says once what differs"
    config = found.config()
    assert {name: getattr(config, name) for name in changed} == changed


def test_a_notebooks_file_is_taken_without_a_flag(project: Path) -> None:
    """What the command line says counts before the file."""
    notebook = {"output_dir": "my checkpoints", "batch_size": 3, "phase1_lr": 1e-3, "use_projection": False}
    (project / "ddp_config.json").write_text(json.dumps({**notebook, "matryoshka_dims": [16, 8]}))
    config: Any = typed("torchrun --nproc_per_node=8 train_ddp.py --batch_size=4", project).config()
    assert (config.out, config.batch_size, config.phase1_lr) == ("my checkpoints", 4, 1e-3)
    assert (config.use_projection, config.student.matryoshka_dims) == (False, [16, 8])


@pytest.mark.parametrize("args", ["", "2", "0 True", "2 maybe", "--help"])
def test_a_wrong_call_is_answered_with_the_usage(project: Path, args: str) -> None:
    found = typed(f"./run_ddp.sh {args}", project)
    assert (found.done.returncode, found.samestep) == (2, [])
    assert found.done.stderr.startswith("usage: run_ddp.sh N|auto True|False [further flags")


def test_it_trains_and_the_student_lies_in_the_artifacts_folder(tmp_path: Path) -> None:
    project = make_project("distill", tmp_path / "my-retriever")
    flags = "--max_samples_phase1=10 --save_to_artifacts --artifacts_dir=./my_models name=a"
    done = really(f"./run_ddp.sh 2 False {SHORT} {flags}", project, NCCL_TIMEOUT="7200")
    assert "0 (2 processes on the CPU)" in done.stdout
    assert "10 texts," in done.stdout
    run = project / "checkpoints" / "a"
    assert read_json(run / "status.json")["status"] == "done"
    assert read_json(run / "config.json")["config"]["use_projection"] is False
    assert [row["step"] for row in rows_of(run, "rank")] == [1, 2] and validations_of(run, "align")
    assert {"modules.json", "README.md"} <= {path.name for path in (project / "my_models" / "a").iterdir()}
