"""The project of mdlm: every command that its users know works as typed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from llada_folder import llada_folder
from projects import make_project, project_for_settings, really, typed
from samestep.core.json_files import read_json

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return project_for_settings("mdlm", tmp_path / "my-llada", monkeypatch)


def machine(folder: Path, gpu: bool) -> dict[str, str]:
    """Variables with which the script sees a GPU, or none; that is all that it asks torch for."""
    folder.mkdir()
    (folder / "torch.py").write_text(f"class accelerator:\n    is_available = staticmethod(lambda: {gpu})\n")
    return {"PYTHONPATH": str(folder)}


@pytest.fixture
def gpu(tmp_path: Path) -> dict[str, str]:
    return machine(tmp_path / "with_gpu", True)


def test_defaults(project: Path, gpu: dict[str, str]) -> None:
    config: Any = typed("python train_llada_pretrained.py", project, gpu).config()
    assert (config.init_from, config.data.path) == ("GSAI-ML/LLaDA-8B-Instruct", "shakespeare_processed")
    assert (config.batch_size, config.global_batch_size, config.accumulation) == (1, None, 1)
    assert (config.learning_rate, config.out) == (1e-5, "checkpoints_pretrained")
    assert (config.distributed.mixed_precision, config.pt_checkpoints) == ("fp16", True)


TORCHRUN = "torchrun --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=localhost --master_port=12355"
FLAGS = "--data_dir shakespeare_processed --batch_size 1 --epochs 5 --fp16"


@pytest.mark.parametrize(
    ("command", "launcher", "path"),
    [
        ("./launch_training.sh", ["--nproc_per_node=2"], "shakespeare_processed"),
        ("./launch_training.sh 4", ["--nproc_per_node=4"], "shakespeare_processed"),
        ("./launch_training.sh 2 /path/to/dataset", ["--nproc_per_node=2"], "/path/to/dataset"),
        (f"{TORCHRUN} train_llada_pretrained.py {FLAGS}", TORCHRUN.split()[1:], "shakespeare_processed"),
        (f"python train_llada_pretrained.py {FLAGS}", None, "shakespeare_processed"),
        (
            f"NCCL_DEBUG=INFO torchrun --nproc_per_node=2 train_llada_pretrained.py {FLAGS}",
            ["--nproc_per_node=2"],
            "shakespeare_processed",
        ),
    ],
)
def test_commands_as_typed(
    project: Path, gpu: dict[str, str], command: str, launcher: list[str] | None, path: str
) -> None:
    found = typed(command, project, gpu)
    assert found.done.returncode == 0, found.done.stderr
    assert found.launchers == ([("torchrun", launcher)] if launcher else [])
    config = found.config()
    assert (config.data.path, config.epochs, config.batch_size) == (path, 5, 1)
    assert config.distributed.mixed_precision == "fp16"


def test_fp16_can_be_switched_off(project: Path, gpu: dict[str, str]) -> None:
    found = typed("python train_llada_pretrained.py --no_fp16 --model_name ../model --save_dir x", project, gpu)
    config: Any = found.config()
    assert (config.distributed.mixed_precision, config.init_from, config.out) == ("none", "../model", "x")


def test_without_a_gpu_it_is_float32_and_says_so(project: Path, tmp_path: Path) -> None:
    cpu = machine(tmp_path / "without_gpu", False)
    found = typed("python train_llada_pretrained.py --fp16", project, cpu)
    first, second = found.done.stdout.splitlines()
    assert "README.md says what else differs" in first
    assert second == "No GPU here, and fp16 needs one: training in float32."
    config: Any = found.config()
    assert config.distributed.mixed_precision == "none"
    config = typed("python train_llada_pretrained.py distributed.mixed_precision=bf16", project, cpu).config()
    assert config.distributed.mixed_precision == "bf16"


@pytest.mark.parametrize("args", ["data", "0", "--help"])
def test_a_wrong_call_is_answered_with_the_usage(project: Path, args: str) -> None:
    found = typed(f"./launch_training.sh {args}", project)
    assert (found.done.returncode, found.samestep) == (2, [])
    assert found.done.stderr.startswith("usage: launch_training.sh [GPUs] [data folder]")


def test_it_trains_a_published_model_with_the_banner_and_files_that_people_look_for(tmp_path: Path) -> None:
    project = make_project("mdlm", tmp_path / "my-llada")
    llada_folder(tmp_path / "llada", tmp_path / "ran")
    really("samestep data prepare data/lighthouse.txt --tokenizer ../llada --sequence_length 64 --out corpus", project)
    done = really("./launch_training.sh 2 corpus --model_name ../llada --epochs 1 --name a --log.samples 0", project)
    rows = {line[:20].strip(): line[20:].strip() for line in done.stdout.splitlines()}
    assert rows["available GPUs"] == str(torch.cuda.device_count())
    assert rows["dataset"] == "corpus"
    assert (rows["batch size per GPU"], rows["total batch size"]) == ("1", "2")
    assert (rows["learning rate"].split(",")[0], rows["vocabulary size"]) == ("1e-05", "262")
    assert {"model", "epochs", "save directory", "number of GPUs", "parameters"} <= set(rows)
    run = project / "checkpoints_pretrained" / "a"
    assert read_json(run / "status.json")["status"] == "done"
    published = load_file(tmp_path / "llada" / "model.safetensors")
    assert set(torch.load(run / "checkpoint_epoch_1.pt", weights_only=True)["model_state_dict"]) == set(published)
    assert not (tmp_path / "ran").exists(), "code of the model was run"
