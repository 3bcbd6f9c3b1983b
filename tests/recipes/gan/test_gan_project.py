"""The project of gan: every command that its users know works as typed."""

import csv
from pathlib import Path
from typing import Any

import pytest

from player_folders import player_folder
from projects import make_project, project_for_settings, really, typed
from samestep.core.json_files import read_json
from samestep.recipes.gan.data import STORIES, DataConfig, load

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return project_for_settings("gan", tmp_path / "my-gan", monkeypatch)


def test_defaults(project: Path) -> None:
    config: Any = typed("torchrun --nproc_per_node=2 train_ddp.py", project).config()
    assert config.model_name == "meta-llama/Llama-3.2-1B-Instruct"
    assert (config.data.path, config.data.domain) == ("data/stories.csv", None)
    assert (config.data.min_story_length, config.data.max_story_length) == (100, 500)
    assert config.data.too_long == "truncate"
    assert (config.batch_size, config.global_batch_size, config.accumulation) == (32, None, 1)
    assert (config.epochs, config.max_steps, config.learning_rate) == (100, None, 1e-5)
    assert (config.writing.max_new_tokens, config.judging.answer_tokens) == (512, 1024)
    assert (config.judging.mode, config.objective.kind) == ("generative", "reinforce")
    assert (config.objective.clip_eps, config.objective.entropy_coef) == (0.2, 0.01)
    assert config.log.wandb_project == "llm-gan-ddp"
    assert (config.checkpoint.weights, config.checkpoint.every_steps) == (False, 20)


@pytest.mark.parametrize(
    ("command", "nproc", "changed"),
    [
        ("scripts/run_ddp_training.sh test", "2", {"epochs": 5}),
        ("scripts/run_ddp_training.sh small", "4", {"epochs": 20}),
        ("scripts/run_ddp_training.sh full", "auto", {"epochs": 100, "checkpoint.weights": True}),
        ("torchrun --nproc_per_node=2 train_ddp.py --batch_size 16 --epochs 5", "2", {"batch_size": 16, "epochs": 5}),
        (
            "torchrun --nproc_per_node=8 train_ddp.py --batch_size 8 --epochs 100 --save_checkpoints "
            "--checkpoint_freq 10",
            "8",
            {"batch_size": 8, "checkpoint.weights": True, "checkpoint.every_steps": 10},
        ),
        ("python llm_gan/train/clean_train.py", None, {}),
        ("torchrun --nproc_per_node=2 --log_level=INFO train_ddp.py", "2 --log_level=INFO", {}),
        (
            "python train_ddp.py --domain creative_writing --use_ppo --clip_eps 0.3 --project_name p --run_name r "
            "--benchmark_freq 7",
            None,
            {"objective.kind": "ppo", "objective.clip_eps": 0.3, "log.wandb_project": "p", "name": "r"},
        ),
    ],
)
def test_commands_as_typed(project: Path, command: str, nproc: str | None, changed: dict[str, Any]) -> None:
    found = typed(command, project)
    assert found.done.returncode == 0, found.done.stderr
    assert found.launchers == ([("torchrun", f"--nproc_per_node={nproc}".split())] if nproc else [])
    config = found.config()
    for name, value in changed.items():
        part: Any = config
        for field in name.split("."):
            part = getattr(part, field)
        assert part == value, name


def test_the_first_line_says_what_differs(project: Path) -> None:
    first = typed("python train_ddp.py", project).done.stdout.splitlines()
    assert len(first) == 1
    assert "both orders" in first[0]
    assert (
        typed("RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 MASTER_ADDR=a MASTER_PORT=1 python train_ddp.py", project).done.stdout
        == ""
    )


def test_a_config_file_of_ones_own_replaces_the_settings(project: Path) -> None:
    (project / "mine.yaml").write_text("preset: test\nbatch_size: 3\n")
    config: Any = typed("python train_ddp.py --config mine.yaml", project).config()
    assert (config.preset, config.batch_size, config.model_name) == ("test", 3, None)


def test_the_check_of_ddp(project: Path) -> None:
    found = typed("torchrun --nproc_per_node=2 tests/test_ddp_setup.py", project)
    assert found.samestep == [["doctor", "--test", "ddp"]]


@pytest.mark.parametrize("args", ["", "tset", "--help"])
def test_a_wrong_kind_is_answered_with_the_usage(project: Path, args: str) -> None:
    found = typed(f"scripts/run_ddp_training.sh {args}", project)
    assert (found.done.returncode, found.samestep) == (2, [])
    assert found.done.stderr.startswith("usage: run_ddp_training.sh test|small|full")


def test_stories_of_the_project_fit_its_settings(project: Path) -> None:
    stories = list(csv.DictReader((project / "data" / "stories.csv").open()))
    assert len(stories) >= 16
    assert all(100 <= len(story["human_story"]) <= 500 for story in stories)
    assert "mystery" in {story["genre"] for story in stories}
    without_genre = [story for story in stories if not story["genre"]]
    assert len(without_genre) == 2
    texts = load(DataConfig(str(project / "data" / "stories.csv"), "creative_writing"), seed=0)
    assert texts.domain is STORIES
    assert len(texts.train) + len(texts.validation) == len(stories)
    found = next(record for record in texts.train.records + texts.validation.records if record.group == "no genre")
    assert "Genre" not in found.prompt


def test_it_trains_and_writes_the_files_that_people_look_for(tmp_path: Path) -> None:
    project = make_project("gan", tmp_path / "my-gan")
    player_folder(tmp_path / "model")
    short = "--max_agent_tokens 6 --max_judge_tokens 4 --epochs 1 --no-log.tensorboard --run_name first"
    model = "--model_name ../model --batch_size 4 --judging.max_tokens 16"
    command = f"NPROC=2 scripts/run_ddp_training.sh full {model} {short} --checkpoint_freq 1"
    done = really(command, project)
    assert "0 (2 processes on the CPU)" in done.stdout
    run = project / "runs" / "first"
    assert read_json(run / "status.json")["status"] == "done"
    files = {path.name for path in (run / "weights").iterdir()}
    kinds = ("step_1", "step_2", "epoch_1")
    assert files == {f"{model}_{kind}.pt" for model in ("generator", "judge") for kind in kinds}
