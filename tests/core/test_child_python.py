"""The environment of a Python that imports nothing from the working directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import samestep
from samestep.core.child_python import child_env, leave_out_working_directory, python_command


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "lib").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "work")
    (tmp_path / "work" / "planted.py").write_text("")
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.parametrize("given", ["", ".", "lib", "./", "{}/work", "{}/link", "{}/work/lib/.."])
def test_entries_that_mean_the_working_directory_are_left_out(given: str, tmp_path: Path) -> None:
    here = given.format(tmp_path)
    env = child_env({"PYTHONPATH": os.pathsep.join(["/first", here, "/last"]), "A": "1"})
    assert env == {"PYTHONPATH": "/first:/last", "PYTHONSAFEPATH": "1", "A": "1"}
    assert child_env({}, import_path=["/first", here])["PYTHONPATH"] == "/first"


def test_what_the_user_names_otherwise_stays(tmp_path: Path) -> None:
    given = f"/none:{tmp_path / 'work' / 'lib'}"
    assert child_env({"PYTHONPATH": given})["PYTHONPATH"] == given
    assert child_env({})["PYTHONPATH"] == ""


def test_the_folder_of_samestep_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who works on samestep itself, without installing it."""
    source = Path(samestep.__file__).parents[1]
    monkeypatch.chdir(source)
    assert child_env({"PYTHONPATH": str(source)})["PYTHONPATH"] == str(source)


@pytest.mark.parametrize("how", ["-c", "-m"])
def test_the_command_finds_nothing_there(how: str) -> None:
    args = ["import planted"] if how == "-c" else ["planted"]
    assert subprocess.run([sys.executable, how, *args], capture_output=True).returncode == 0
    assert subprocess.run(python_command(how, *args), capture_output=True).returncode == 1
    assert subprocess.run([sys.executable, how, *args], env=child_env(), capture_output=True).returncode == 1


def test_a_process_of_ours_leaves_it_out_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = ["", str(tmp_path / "work"), str(tmp_path / "work" / "lib"), "/first"]
    monkeypatch.setattr(sys, "path", path)
    env = {"PYTHONPATH": ":lib:/first"}
    assert leave_out_working_directory(env) == ["lib"]
    assert (sys.path, env["PYTHONPATH"]) == (["/first"], "/first")
    path[:] = [str(tmp_path / "work"), "/first"]
    assert leave_out_working_directory({}) == []
    assert path == [str(tmp_path / "work"), "/first"], "a folder of installed packages may be the working directory too"
