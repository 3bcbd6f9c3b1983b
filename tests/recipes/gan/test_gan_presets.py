"""The flags and presets that users of older programs know, and what is refused before a run has a name on the disk."""

import os
from pathlib import Path

import pytest

from samestep import UserError
from samestep.cli.args import RecipeArgs
from samestep.recipes.gan import GanConfig, recipe
from samestep.recipes.gan.config import PRESETS


def config_of(*args: str) -> GanConfig:
    config = RecipeArgs.parse(["gan", "--data_path=stories.csv", *args], "train").config(recipe)
    assert isinstance(config, GanConfig)
    return config


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    text = "Once upon a time there were many of them and they lived in a small house by the sea."
    rows = [f"A{number},crime,{number}. {text}" for number in range(9)]
    Path("stories.csv").write_text("\n".join(["title,genre,human_story", *rows]))
    return tmp_path


def value_of(config: object, path: str) -> object:
    for name in path.split("."):
        config = getattr(config, name)
    return config


FLAGS = [
    ("model_name", "some/folder", "model_name", "some/folder"),
    ("data_path", "stories.csv", "data.path", "stories.csv"),
    ("domain", "stories", "data.domain", "stories"),
    ("batch_size", "3", "batch_size", 3),
    ("epochs", "7", "epochs", 7),
    ("learning_rate", "1e-5", "learning_rate", 1e-5),
    ("max_story_length", "2000", "data.max_story_length", 2000),
    ("min_story_length", "20", "data.min_story_length", 20),
    ("max_agent_tokens", "77", "writing.max_new_tokens", 77),
    ("max_judge_tokens", "99", "judging.answer_tokens", 99),
    ("use_ppo", "False", "objective.kind", "reinforce"),
    ("clip_eps", "0.1", "objective.clip_eps", 0.1),
    ("entropy_coef", "0", "objective.entropy_coef", 0.0),
    ("project_name", "stories", "log.wandb_project", "stories"),
    ("run_name", "first", "name", "first"),
    ("save_checkpoints", "true", "checkpoint.weights", True),
    ("checkpoint_freq", "5", "checkpoint.every_steps", 5),
]
"""Flag, what is given, and the setting with its value."""


@pytest.mark.parametrize("form", ["--{} {}", "--{}={}", "{}={}"])
def test_a_flag_sets_what_its_users_mean(form: str) -> None:
    config = config_of("--preset=test", *(arg for flag, given, *_ in FLAGS for arg in form.format(flag, given).split()))
    assert {path: value_of(config, path) for *_, path, _ in FLAGS} == {path: value for *_, path, value in FLAGS}


def test_flags_without_a_value() -> None:
    config = config_of("--use_ppo", "--save_checkpoints", "--preset", "verify-spin", "--max_story_length=null")
    assert (config.objective.kind, config.checkpoint.weights) == ("ppo", True)
    config = config_of("--no_use_ppo", "--no_save_checkpoints", "--preset", "full")
    assert (config.objective.kind, config.checkpoint.weights) == ("reinforce", False)


@pytest.mark.parametrize(("preset", "epochs", "files"), [("test", 5, False), ("small", 20, False), ("full", 100, True)])
def test_presets(preset: str, epochs: int, files: bool) -> None:
    config = config_of("--preset", preset)
    assert (config.epochs, config.max_steps) == (epochs, None)
    assert config.checkpoint.weights == files
    assert config.checkpoint.every_steps == 20, "the default of --checkpoint_freq"
    waits = (config.generator_pauses_below, config.judge_pauses_above)
    assert waits == ((0.0, 1.0) if preset == "test" else (0.6, 0.75)), "each side waits for the other"
    assert config.global_batch_size is None, "or --batch_size would only bound memory"


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_only_has_settings_that_exist(preset: str) -> None:
    assert config_of("--preset", preset, "--data.max_story_length=null").preset == preset


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ("--max_agent_token 3", "no setting 'max_agent_token'; did you mean max_agent_tokens"),
        ("--learningrate 3", "did you mean learning_rate"),
        ("--use_ppo maybe", "use_ppo must be true or false, not 'maybe'"),
        ("--use_ppo=maybe", "use_ppo must be true or false, not 'maybe'"),
        ("--save_checkpoints maybe", "checkpoint.weights must be true or false, not 'maybe'"),
        ("--checkpoint_freq -1", "checkpoint.every_steps must be a whole number of at least 0, not '-1'"),
        ("--epochs two", "epochs must be a whole number of at least 1, not 'two'"),
        ("--preset tset", "no preset 'tset'; choose test"),
        ("--use_ppo false --objective.inner_epochs 2", "Set objective.kind=ppo"),
        ("--data_path nowhere.csv", "nowhere.csv does not exist"),
        ("--domain poems", "Set data.domain to one of 'stories', 'proofs'"),
        ("--max_story_length null --min_story_length 500", "0 of 9 records of stories.csv"),
        ("--data_path null --domain stories", "Name the file with data.path"),
        ("--init_from generator_step_2.pt", "generator.init_from=generator_step_2.pt or judge.init_from="),
        ("--judge.init_from judge_step_2.pt", "Set judge.init_from to .*; judge_step_2.pt does not exist"),
        ("--continue_from judge_epoch_1.pt", "generator.init_from=judge_epoch_1.pt or judge.init_from="),
    ],
)
def test_one_sentence_and_nothing_on_the_disk(args: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        config_of("--run_name", "a", *args.split())
    assert os.listdir() == ["stories.csv"], "with the mistake corrected, the name is still free"


def test_a_run_with_both_models_may_be_named_to_begin_with() -> None:
    assert config_of("--init_from", "earlier").init_from == "earlier"
