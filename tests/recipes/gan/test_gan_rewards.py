"""What the generator is rewarded with, functions of the user's among them: who may name one, and what it sees."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recipes.gan.test_gan_training import FLOAT, rollouts, train
from samestep import UserError
from samestep.cli.main import main
from samestep.recipes.gan import recipe
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import Record
from samestep.recipes.gan.rewards import make_rewards, unrepeated
from samestep.train.api.named_code import require_trusted_code
from samestep.train.api.recipe_registry import file_module
from samestep.train.api.trusted_recipes import remember_recipe
from toys import run_on_ranks

RECORDS = [Record("One?", "a person", "calm"), Record("Two?", "another", "wild")]
OWN = """
from pathlib import Path

def reward(text):
    return len(text.generated) + 0.25 * text.probability

def half(text):
    return float("nan")

def pair(a, b):
    return 0.0

def word(text):
    return text.generated

def careless(text):
    return 1 / text.generated.count("!")

constant = 1.0
"""


def judged(*log_odds: float) -> dict[str, torch.Tensor]:
    odds = torch.tensor(log_odds)
    return {"log_odds": odds, "reward": torch.sigmoid(odds)}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of reward functions, and a home of the user's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = tmp_path / "code" / "own_rewards.py"
    file.parent.mkdir()
    file.write_text(OWN)
    return file


def test_log_odds_are_those_of_the_probability_and_clipped() -> None:
    rows = judged(-0.5, 9.0)
    odds = make_rewards("log_odds", 4.0)(RECORDS, ["x", "y"], rows)
    assert odds.tolist() == [-0.5, 4.0]
    probability = make_rewards("probability", 4.0)(RECORDS, ["x", "y"], rows)
    assert torch.logit(probability[0]).item() == pytest.approx(odds[0].item(), abs=1e-6)
    assert make_rewards("log_odds", 2.0)(RECORDS, ["x", "y"], judged(-torch.inf, 0.0)).tolist() == [-2.0, 0.0]


def test_a_function_of_the_users_sees_each_text(own: Path) -> None:
    found = make_rewards(f"{own}:reward", 4.0)(RECORDS, ["four", "seventeen letters"], judged(0.0, -torch.inf))
    assert found.tolist() == [4 + 0.125, 17.0]
    shipped = make_rewards("samestep.recipes.gan.rewards:unrepeated", 4.0)
    assert shipped(RECORDS, ["a b a B", ""], judged(0.0, 0.0)).tolist() == [0.25, 0.0]
    assert unrepeated.__module__ == "samestep.recipes.gan.rewards"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fluency", "module:function; it is 'fluency'"),
        ("{file}:missing", "it has: careless, half, pair, reward, word"),
        ("{file}:constant", "has no function 'constant' for reward"),
        ("{file}:pair", r"must be a function of \(text\)"),
        ("{file}:", "reward=module:function"),
        ("no_such_module:reward", "Correct the module 'no_such_module'"),
        ("{folder}/absent.py:reward", "Correct the module '.*absent.py' .* does not exist"),
        (
            "{folder}/broken.py:reward",
            r"raised NameError: name 'absent' is not defined \(.*broken.py, line 2",
        ),
    ],
)
def test_what_is_no_reward_is_refused(name: str, told: str, own: Path) -> None:
    (own.parent / "broken.py").write_text("x = 1\nabsent\n")
    with pytest.raises(UserError, match=told):
        make_rewards(name.format(file=own, folder=own.parent), 4.0)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("half", "finite number; it gave nan for 'x'"),
        ("word", "finite number; it gave 'x' for 'x'"),
        ("careless", r"it raised ZeroDivisionError: division by zero \(.*own_rewards.py, line 17\) for 'x'"),
    ],
)
def test_what_a_reward_may_not_do(name: str, told: str, own: Path) -> None:
    with pytest.raises(UserError, match=told):
        make_rewards(f"{own}:{name}", 4.0)(RECORDS[:1], ["x"], judged(0.0))


def test_a_run_with_an_own_reward(own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a path from the working directory; a resume elsewhere finds the same file, and says that it has changed."""
    monkeypatch.chdir(own.parent)
    rows = train(tmp_path, "reward=own_rewards.py:reward", "max_steps=2", "schedule=constant")
    for text in rollouts(tmp_path):
        assert text["generator_reward"] == pytest.approx(len(text["generated"]) + 0.125, abs=0.125)
    assert rows[0]["generator_reward_mean"] > 1
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert record["config"]["reward"] == f"{own}:reward"
    assert "own_rewards.py" in record["code"]
    monkeypatch.chdir(tmp_path)
    own.write_text(OWN.replace("0.25", "0.5"))
    assert main(["train", "--resume", str(tmp_path / "run"), "max_steps=3", "log.quiet=true"]) == 0
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "code_changed" in events
    assert "own_rewards.py" in events


@pytest.fixture
def ran(own: Path, tmp_path: Path) -> Path:
    """The file that is there once the own code was imported."""
    found = tmp_path / "ran"
    own.write_text(f"open({str(found)!r}, 'w').close()\n{OWN}")
    return found


@pytest.mark.parametrize("way", ["file", "defaults", "name"])
def test_a_file_of_settings_names_no_code(
    way: str, own: Path, ran: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither itself nor by a file that it lists, also where the command line sets something else."""
    folder = tmp_path / "conf"
    folder.mkdir()
    (folder / "named.yaml").write_text(f"reward: {own}:reward\n")
    (folder / "listing.yaml").write_text("defaults: [named]\nseed: 3\n")
    found = {
        "file": ["--config", str(folder / "named.yaml")],
        "defaults": ["--config", str(folder / "listing.yaml")],
        "name": ["--config-path", str(folder), "--config-name", "listing"],
    }
    args = ["train", "gan", "--preset", "verify", f"out={tmp_path}", "reward_clip=2.0", *found[way]]
    assert main(args) == 2
    assert f"Give reward={own}:reward on the command line" in " ".join(capsys.readouterr().err.split())
    assert not ran.exists()


@pytest.mark.parametrize("text", ["builtins:print", "posix:_exit", "gan:describe", "gone.py:reward", "{own}:half"])
def test_a_record_names_no_other_function(text: str, own: Path, ran: Path, tmp_path: Path) -> None:
    """Not one of the interpreter, of a shipped recipe, nor another of a module whose function this user has started."""
    text = text.format(own=own)
    remember_recipe(str(own))
    remember_recipe(str(own), "reward")
    trusted = GanConfig(reward=f"{own}:reward")
    require_trusted_code(recipe, trusted, [], tmp_path / "run")
    with pytest.raises(UserError, match="if you trust it, give reward="):
        require_trusted_code(recipe, replace(trusted, reward=text), [], tmp_path / "run")
    require_trusted_code(recipe, replace(trusted, reward=text), ["reward"], tmp_path / "run")
    assert not ran.exists()


def test_a_run_that_is_only_used_runs_no_reward(own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Samples, a comparison and an export need none; nor does a run that begins with its weights."""
    train(tmp_path, f"reward={own}:reward", "max_steps=1", "schedule=constant")
    run, ran = str(tmp_path / "run"), tmp_path / "ran"
    own.write_text(f"open({str(ran)!r}, 'w').close()\n{OWN}")
    sys.modules.pop(file_module(own))
    assert main(["sample", run, "--prompt", "One?"]) == 0
    assert main(["evaluate", run]) == 0
    assert main(["export", run, str(tmp_path / "exported"), "--learner=generator"]) == 0
    train(tmp_path, f"init_from={run}", "max_steps=1", "schedule=constant", name="next")
    assert not ran.exists()


def test_a_folder_names_no_code(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that somebody else made is not resumed with the code that it names; the user's own is."""
    short = ["max_steps=1", "schedule=constant"]
    train(tmp_path, f"reward={own}:reward", *short)
    resume = ["train", "--resume", str(tmp_path / "run"), "max_steps=2", "log.quiet=true"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another user"))
    assert main(resume) == 2
    assert f"if you trust it, give reward={own}:reward again" in " ".join(capsys.readouterr().err.split())
    inside = tmp_path / "run" / "own_rewards.py"
    shutil.copy(own, inside)
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    changed: dict[str, Any] = {**record, "config": {**record["config"], "reward": f"{inside}:reward"}}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "run" / "config.json").write_text(json.dumps(changed))
    assert main(resume) == 2
    (tmp_path / "run" / "config.json").write_text(json.dumps(record))
    assert main(resume) == 0


@pytest.mark.timeout(300)
def test_an_own_reward_is_the_same_on_any_number_of_ranks(own: Path, tmp_path: Path) -> None:
    settings = [f"reward={own}:reward", "max_steps=3", "schedule=constant"]
    alone = train(tmp_path, *settings, name="alone")
    common = ["--preset", "verify", f"out={tmp_path}", "log.quiet=true", "log.every=1", FLOAT, *settings]
    run_on_ranks(main, 2, ["train", "gan", *common, "name=both"], logs=tmp_path / "logs")
    lines = (tmp_path / "both" / "metrics.jsonl").read_text().splitlines()
    both = [row for row in map(json.loads, lines) if "judge_accuracy" in row]
    rewards = [[row["generator_reward_mean"] for row in rows] for rows in (alone, both)]
    assert rewards[0] == pytest.approx(rewards[1], rel=1e-5)
    assert len(set(rewards[0])) == 3


def test_the_judge_learns_in_every_so_many_steps(tmp_path: Path) -> None:
    rows = train(tmp_path, "judge_every=3", "schedule=constant")
    assert ["judge/loss" in row for row in rows] == [True, False, False, True]
    waiting = train(tmp_path, "judge_every=3", "generator_pauses_below=0.99", "schedule=constant", name="waiting")
    assert ["judge/loss" in row for row in waiting] == [True] * 4
    assert not any("generator/loss" in row for row in waiting)
