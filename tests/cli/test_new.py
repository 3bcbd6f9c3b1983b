"""`samestep new`: what it makes, what it refuses, and what it leaves alone."""

import os
import pkgutil
import re
import stat
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from projects import make_project
from samestep.cli import new
from samestep.cli.main import main
from samestep.train.api.recipe_registry import known_recipes

SHIPPED = [None, *(name for name in known_recipes() if new.project_template(name).is_dir())]


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda name: name or "own")
def test_a_project_is_complete_and_tidy(recipe: str | None, tmp_path: Path) -> None:
    files = new.make_project(recipe, tmp_path / "made")
    names = {str(file) for file in files}
    assert {"README.md", "settings.yaml"} <= names
    assert any(name.startswith("tests/test_") for name in names)
    assert any(name.startswith("data/") or name.endswith("_processed") for name in names)
    assert os.listdir(tmp_path) == ["made"]
    for file in (tmp_path / "made" / name for name in files):
        starts = file.read_bytes()[:2] == b"#!"
        assert bool(file.stat().st_mode & stat.S_IXUSR) == starts, file
        assert file.suffix != new.TEMPLATE
    check = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select=E,F,UP,B,N", "--line-length=120"], ["format", "--check", "--line-length=120"]):
        done = subprocess.run([*check, *command, "--isolated", "made"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("recipe", SHIPPED, ids=lambda name: name or "own")
def test_nothing_in_it_is_a_module_of_ours(recipe: str | None) -> None:
    package = f"samestep.recipes.{recipe}.project" if recipe else "samestep.recipes.project"
    folder = new.project_template(recipe)
    assert not [module.name for module in pkgutil.walk_packages([str(folder)])]
    assert not list(folder.rglob("*.py")), "Python files end in .py.template"
    scripts = [path.name.removesuffix(".py.template") for path in folder.glob("*.py.template")]
    assert all(find_spec(f"{package}.{name}") is None for name in scripts)


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert (make_project("gan", tmp_path / "empty") / "train_ddp.py").is_file()


def test_what_to_type_next_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "two words; rm").mkdir()
    make_project("gan", tmp_path / "two words; rm" / "mine")
    assert f"next: cd '{tmp_path}/two words; rm/mine'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["gan"], "name the folder too: samestep new gan ./my-gan"),
        (["gna", "mine"], "there is no recipe 'gna'"),
        (["gan", "a", "b"], r"samestep new \[RECIPE\] FOLDER; it got 3 names"),
        (["gan", "mine", "--force"], "there is no option --force"),
        (["gan", "full"], "full is not empty"),
        (["gan", "file"], "file is a file"),
        (["gan", "link"], "link is a symbolic link"),
        (["gan", "dangling"], "dangling is a symbolic link"),
        (["gan", "missing/mine"], "make the folder .*missing first"),
        (["gan", "."], "is not empty"),
        (["gan", "full/.."], "name the folder with letters"),
        (["gan", "my project"], "name the folder with letters"),
        (["gan", ".hidden"], "name the folder with letters"),
        (["gan", "a\nb"], "name the folder with letters"),
        (["gan", "$(touch x)"], "name the folder with letters"),
        (["gan", ""], "is not empty"),
        (["../recipes/gan", "mine"], "there is no recipe"),
    ],
)
def test_what_is_refused(
    args: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = sorted(tmp_path.rglob("*"))
    assert main(["new", *args]) == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1
    assert re.search(sentence, error), error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_new_recipe_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    assert main(["new", str(tmp_path / "mine")]) == 0
    assert not (tmp_path / "settings").exists()
