"""Settings that have no effect are refused where they were typed, said where a file or an alias sets them."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from samestep.core.config import Alias, NoEffect, build, read_layers
from samestep.core.config.files import ConfigFile
from samestep.core.config.no_effect import check_no_effect
from samestep.core.errors import UserError


@dataclass(frozen=True)
class Reward:
    steps: int = 0
    rate: float | None = None
    clip: float = 0.2


@dataclass(frozen=True)
class Toy:
    preset: str = "default"
    schedule: str = "cosine"
    decay: float = 0.2
    mix: dict[str, float] = field(default_factory=dict)
    reward: Reward = Reward()


RULES = (
    NoEffect("decay", lambda c: c.schedule != "wsd", "only wsd decays; set schedule=wsd"),
    NoEffect("reward.*", lambda c: not c.reward.steps, "there are no rewards; set reward.steps"),
    NoEffect("mix", lambda c: True, "nothing is mixed"),
    NoEffect("decay", lambda c: True, "the rule before has told it"),
)
PRESETS = {"default": {"decay": 0.5, "reward": {"rate": 0.1}}}
ALIASES = {"lr_decay": "decay", "slow": Alias("reward.rate", {"true": 0.1, "false": 1.0})}


def told(*args: str, file: Path | None = None, rules: tuple[NoEffect, ...] = RULES) -> list[str]:
    source = ConfigFile(file.parent, file.name) if file else None
    layers = read_layers(Toy, PRESETS, ALIASES, None, source, args)
    return check_no_effect(rules, build(Toy, layers.merged()), layers.given)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["decay=0.1"], "decay has no effect: only wsd decays; set schedule=wsd"),
        (["--reward.rate", "0.1", "reward.clip=1"], "reward.rate and reward.clip have no effect: there are no rewards"),
        (["reward={rate: 0.3}"], "reward.rate has no effect"),
        (["mix.a=1"], "mix has no effect: nothing is mixed"),
        (["decay=0.1", "reward.rate=1"], "set schedule=wsd; reward.rate has no effect"),
        (["--lr_decay", "0.1", "decay=0.1"], "decay has no effect"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_typed_is_refused(args: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence.replace(".", r"\.")):
        told(*args)


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["decay=0.1", "schedule=wsd"],
        ["reward.steps=3", "reward.rate=0.1"],
        ["reward.steps=0", "reward.rate=null", "decay=0"],
    ],
    ids=lambda args: " ".join(args) or "only the preset",
)
def test_what_has_an_effect_or_is_switched_off_is_not_told(args: list[str]) -> None:
    assert told(*args, rules=RULES[:2]) == []


def test_files_and_aliases_are_said(tmp_path: Path) -> None:
    file = tmp_path / "shared.yaml"
    file.write_text("lr_decay: 0.1\nreward: {rate: 0.3}\n")
    assert told("--slow", file=file) == [
        "decay (in shared.yaml) has no effect: only wsd decays; set schedule=wsd",
        "reward.rate (--slow) has no effect: there are no rewards; set reward.steps",
    ]
    with pytest.raises(UserError, match="decay has no effect"):
        told("decay=0.3", file=file)


def test_a_complete_configuration_of_a_program_is_not_told() -> None:
    everything = ["preset=default", "schedule=cosine", "decay=0.2", "mix={}", "reward.steps=0", "reward.clip=0.2"]
    assert told(*everything, "reward.rate=0.5") == []
    with pytest.raises(UserError, match="decay has no effect"):
        told(*everything)


def test_a_rule_about_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match=r"names 'rewards\.\*', but there is no such setting"):
        told(rules=(NoEffect(("reward.*", "rewards.*"), lambda c: False, ""),))
