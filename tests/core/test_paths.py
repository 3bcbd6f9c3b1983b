"""Home folders in paths."""

from pathlib import Path

import pytest

from samestep import UserError
from samestep.core.paths import expand_home


def test_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~/data.txt") == tmp_path / "data.txt"
    assert expand_home(Path("data/~x")) == Path("data/~x")


def test_an_unknown_user() -> None:
    with pytest.raises(UserError, match="there is no user 'nobody-of-that-name'"):
        expand_home("~nobody-of-that-name/data.txt")
