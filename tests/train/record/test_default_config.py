"""The settings that every recipe has."""

from dataclasses import fields
from fnmatch import filter

import pytest

from samestep.core.config import compose
from samestep.core.errors import UserError
from samestep.train.record.config import TRAINING_SETTINGS, Checkpoints, Config


def test_the_files_of_the_package_change_no_default() -> None:
    assert compose(Config) == Config()


def test_settings_of_training_are_settings() -> None:
    names = {field.name for field in fields(Config)}
    assert [pattern for pattern in TRAINING_SETTINGS if not filter(names, pattern)] == []
    assert "seed" not in [name for pattern in TRAINING_SETTINGS for name in filter(names, pattern)]


@pytest.mark.parametrize("name", ["every_steps", "every_epochs", "every_minutes"])
def test_saves_cannot_be_less_frequent_than_never(name: str) -> None:
    with pytest.raises(UserError, match=f"{name} must be a (whole )?number of at least 0, not -1"):
        Checkpoints(**{name: -1})
    Checkpoints(**{name: 0})


def test_a_measured_batch_size_keeps_the_global_batch_of_a_preset() -> None:
    presets = {"default": {"global_batch_size": 64, "accumulation": 2}}
    measured = compose(Config, presets=presets, args=["batch_size=auto"])
    assert (measured.batch_size, measured.global_batch_size, measured.rows_at_once) == ("auto", 64, 8)
    assert compose(Config, presets=presets, args=["batch_size=4"]).global_batch_size is None
