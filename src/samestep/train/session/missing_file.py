"""A file that a setting names and that does not exist: a mistake of the user, not one in the recipe's code."""

from pathlib import Path

from samestep.core.config import dump
from samestep.core.config.merging import flatten
from samestep.core.errors import UserError
from samestep.train.record.config import Config


def missing_file(error: FileNotFoundError, config: Config) -> UserError | None:
    """The sentence for it; None if no setting names the file that was looked for."""
    for name, value in flatten(type(config), dump(config)):
        if isinstance(value, str) and value and value == str(error.filename):
            return UserError(f"Set {name} to a file that exists; there is no {value} (from {Path.cwd()}).")
    return None
