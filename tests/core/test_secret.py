"""The secret of a user: made once, readable by nobody else, refused where it may be known to others."""

import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from samestep.core import secret
from samestep.core.errors import UserError
from samestep.core.launch_env import SECRET
from samestep.core.secret import derive_key, find_secret, new_secret


def secret_file(env: dict[str, str]) -> Path:
    found = secret.secret_file(env)
    assert found is not None
    return found


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_the_environment_comes_first(env: dict[str, str]) -> None:
    assert find_secret({**env, SECRET: "x" * 16}) == b"x" * 16
    assert not secret_file(env).exists()


def test_a_file_is_made_once_for_the_user_alone(env: dict[str, str]) -> None:
    before = os.umask(0)
    try:
        first = find_secret(env)
    finally:
        os.umask(before)
    assert len(first) == 64
    assert find_secret(env) == first
    assert stat.S_IMODE(secret_file(env).stat().st_mode) == 0o600
    assert stat.S_IMODE(secret_file(env).parent.stat().st_mode) == 0o700
    assert [path.name for path in secret_file(env).parent.iterdir()] == ["secret"]


def test_processes_that_make_it_at_once_have_the_same(env: dict[str, str]) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        assert len(set(pool.map(find_secret, [env] * 64))) == 1


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620])
def test_a_file_that_others_can_use_is_refused(env: dict[str, str], mode: int) -> None:
    find_secret(env)
    secret_file(env).chmod(mode)
    with pytest.raises(UserError, match="nobody else can read"):
        find_secret(env)


def test_a_link_is_not_followed(env: dict[str, str], tmp_path: Path) -> None:
    find_secret(env)
    secret_file(env).rename(tmp_path / "elsewhere")
    secret_file(env).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=SECRET):
        find_secret(env)


def test_an_empty_file_is_refused(env: dict[str, str]) -> None:
    find_secret(env)
    secret_file(env).write_text("")
    with pytest.raises(UserError, match="holds no secret"):
        find_secret(env)


def test_a_secret_that_can_be_guessed_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(UserError, match="at least 16"):
        find_secret({**env, SECRET: ""})


def test_without_a_folder_to_write_the_variable_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=f"set {SECRET}"):
        find_secret({"XDG_CONFIG_HOME": str(tmp_path / "file")})


def test_without_a_home_the_variable_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret, "settings_folder", lambda env: None)
    with pytest.raises(UserError, match=f"no home directory.* set {SECRET}"):
        find_secret({})


def test_keys_follow_from_the_secret_and_the_purpose() -> None:
    purposes = [("store", "a"), ("store", "b"), ("storea",), ("store", "a", ""), ("nodes", "a")]
    keys = {derive_key(secret, *purpose) for purpose in purposes for secret in (b"1" * 16, b"2" * 16)}
    assert len(keys) == 10
    assert derive_key(b"1" * 16, "store") == derive_key(b"1" * 16, "store")
    assert new_secret() != new_secret()
