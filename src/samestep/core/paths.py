"""Paths as people write them."""

from pathlib import Path

from samestep.core.errors import UserError


def expand_home(path: str | Path) -> Path:
    """A path whose `~` or `~name` at the beginning stands for a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # what pathlib raises for a user that does not exist
        raise UserError(f"there is no user {Path(path).parts[0][1:]!r}, whose home folder {path} begins with") from None
