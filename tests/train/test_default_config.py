"""The settings that every recipe has."""

from samestep.core.config import compose
from samestep.train.config import Config


def test_the_files_of_the_package_change_no_default() -> None:
    assert compose(Config) == Config()
