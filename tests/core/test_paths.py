"""Home folders in paths."""

from pathlib import Path

import pytest

from samestep import UserError
from samestep.core.paths import cache_folder, expand_home, required_cache_folder


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~/data.txt") == tmp_path / "data.txt"
    assert expand_home(Path("data/~x")) == Path("data/~x")


def test_an_unknown_user() -> None:
    with pytest.raises(UserError, match="there is no user 'nobody-of-that-name'"):
        expand_home("~nobody-of-that-name/data.txt")


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert required_cache_folder({}) == cache_folder({}) == tmp_path / ".cache" / "samestep"
    assert required_cache_folder({"XDG_CACHE_HOME": "/c"}) == Path("/c/samestep")
    assert cache_folder({"XDG_CACHE_HOME": "here"}) is None
    with pytest.raises(UserError, match="Set XDG_CACHE_HOME to a folder, by its whole path"):
        required_cache_folder({"XDG_CACHE_HOME": "here"})
