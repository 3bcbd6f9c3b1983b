"""The settings that every recipe has."""

import pytest

from samestep.core.config import compose
from samestep.core.errors import UserError
from samestep.train.config import Checkpoints, Config


def test_the_files_of_the_package_change_no_default() -> None:
    assert compose(Config) == Config()


@pytest.mark.parametrize("name", ["every_steps", "every_epochs", "every_minutes"])
def test_saves_cannot_be_less_frequent_than_never(name: str) -> None:
    with pytest.raises(UserError, match=rf"Set checkpoint.{name} to 0 \(never\) or more; it is -1"):
        Checkpoints(**{name: -1})
    Checkpoints(**{name: 0})
