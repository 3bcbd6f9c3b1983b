"""The folders of torch.compile and triton: nobody else can write to them, or they are not used."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from samestep import UserError
from samestep.cli.main import main
from samestep.core.compile_caches import TORCH, TRITON, use_private_caches
from security.strangers import NOBODY
from system.requirements import require


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def mode(folder: str | Path) -> int:
    return stat.S_IMODE(os.stat(folder).st_mode)


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_by_default_they_are_in_the_cache_directory(umask: int, home: Path) -> None:
    (home / ".cache").mkdir()
    before = os.umask(umask)
    try:
        env: dict[str, str] = {}
        use_private_caches(env)
    finally:
        os.umask(before)
    assert env[TORCH] == str(home / ".cache" / "samestep" / "compile")
    assert env[TRITON].startswith(env[TORCH])
    assert mode(env[TORCH]) == 0o700
    again = dict(env)
    use_private_caches(again)
    assert again == env


def test_the_cache_directory_may_be_elsewhere(tmp_path: Path) -> None:
    env = {"XDG_CACHE_HOME": str(tmp_path / "scratch")}
    use_private_caches(env)
    assert env[TORCH] == str(tmp_path / "scratch" / "samestep" / "compile")


def test_a_choice_of_the_user_stays_and_triton_follows_it(tmp_path: Path) -> None:
    env = {TORCH: str(tmp_path / "mine")}
    use_private_caches(env)
    assert env[TORCH] == str(tmp_path / "mine")
    assert env[TRITON] == str(tmp_path / "mine" / "triton")
    assert mode(tmp_path / "mine") == 0o700
    (tmp_path / "mine").chmod(0o755)
    use_private_caches({TORCH: str(tmp_path / "mine"), TRITON: str(tmp_path / "other")})
    assert mode(tmp_path / "mine") == 0o755


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", TORCH, TRITON])
@pytest.mark.parametrize("kind", ["owner", "link", "mode", "above"])
def test_what_others_can_write_to_is_refused(kind: str, variable: str, tmp_path: Path) -> None:
    folder = tmp_path / "shared" / "samestep" / "compile"
    folder.mkdir(mode=0o755, parents=True)
    if kind in ("owner", "link"):
        require("another user", (), root=True)
    if kind == "owner":
        os.chown(folder, NOBODY, NOBODY)
    elif kind == "link":  # made by another user, who can have it lead elsewhere at any time
        folder.rename(tmp_path / "own")
        folder.symlink_to(tmp_path / "own")
        os.lchown(folder, NOBODY, NOBODY)
    else:
        (folder if kind == "mode" else folder.parent).chmod(0o777)
    named = tmp_path / "shared" if variable == "XDG_CACHE_HOME" else folder
    with pytest.raises(UserError) as refused:
        use_private_caches({variable: str(named)})
    reason = {"mode": "other users can write to", "above": "other users can replace"}
    assert f"{folder}, which {reason.get(kind, 'belongs to another user')}, so that" in str(refused.value)
    assert f"set {TORCH if variable == 'XDG_CACHE_HOME' else variable} to a folder" in str(refused.value)


def test_commands_refuse_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setenv(TORCH, str(tmp_path / "open"))
    assert main(["train", "mdlm"]) == 2
    assert capsys.readouterr().err.startswith(
        f"samestep: {TORCH} names {tmp_path}/open, which other users can write to"
    )


@pytest.mark.parametrize("home", ["unwritable", "no folder"])
def test_without_a_home_they_are_temporary(home: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code = (
        "import os; from samestep.core.compile_caches import *; use_private_caches(); "
        "print(os.environ[TORCH], oct(os.stat(os.environ[TORCH]).st_mode))"
    )
    cache = str(tmp_path / "file" / "cache") if home == "unwritable" else "relative"
    env = {**os.environ, "XDG_CACHE_HOME": cache, "TMPDIR": str(tmp_path), TORCH: "", TRITON: ""}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    folder, shown = done.stdout.split()
    assert folder.startswith(str(tmp_path / "samestep-compile-"))
    assert shown == "0o40700"
    assert not os.path.exists(folder), "it is removed at the end"
