"""Paths as people write them, and where their own settings are."""

from collections.abc import Mapping
from pathlib import Path

from samestep.core.errors import UserError


def expand_home(path: str | Path) -> Path:
    """A path whose `~` or `~name` at the beginning stands for a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:  # what pathlib raises for a user that does not exist
        raise UserError(f"there is no user {Path(path).parts[0][1:]!r}, whose home folder {path} begins with") from None


def settings_folder(env: Mapping[str, str]) -> Path | None:
    """Where samestep keeps what belongs to the user and to no run; None where the user has no home."""
    return _folder_of_user(env.get("XDG_CONFIG_HOME") or "~/.config")


def cache_folder(env: Mapping[str, str]) -> Path | None:
    """Where samestep keeps what it could make again; None where the user has no home."""
    return _folder_of_user(env.get("XDG_CACHE_HOME") or "~/.cache")


def required_cache_folder(env: Mapping[str, str]) -> Path:
    """The same, for what cannot do without it."""
    folder = cache_folder(env)
    if folder is None:
        raise UserError("Set XDG_CACHE_HOME to a folder, by its whole path: without a home folder there is no cache.")
    return folder


def _folder_of_user(above: str) -> Path | None:
    try:
        folder = Path(above).expanduser()
    except RuntimeError:
        return None
    return folder / "samestep" if folder.is_absolute() else None


def check_new_file(option: str, path: Path) -> None:
    """Refuse a path that an option names for a file to write, where there is no folder for it, or it is one."""
    if not path.absolute().parent.is_dir():
        raise UserError(f"Make the folder of {option} {path} first; it does not exist.")
    if path.is_dir():
        raise UserError(f"Name a file with {option}; {path} is a folder.")
