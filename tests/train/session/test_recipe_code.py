"""A resume reports which files of its recipe have changed."""

import json
import shutil
import sys
from pathlib import Path

import pytest

import samestep
from cli.conftest import Shell
from samestep.core.json_files import JsonLines, read_json, write_json
from samestep.train.record.config import Config
from samestep.train.record.run_record import CodeChanges, open_run
from samestep.train.session.recipe_code import recipe_code
from train.resumed_line import ARGS, LOSS, SOURCE

pytestmark = pytest.mark.timeout(900)
RUN = Path("runs/a")
MESSAGE = "the recipe's code is not that of the run's last launch"


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "line.py").write_text(SOURCE)
    (shell.folder / "line_loss.py").write_text(LOSS)
    for name in ("rows.json", "held.json"):
        (shell.folder / name).write_text(json.dumps([{"x": float(i), "y": 2.0 * i} for i in range(20)]))
    return shell


def events(kind: str) -> list[dict]:
    return [event for event in JsonLines(RUN / "events.jsonl") if event["kind"] == kind]


@pytest.mark.parametrize("ranks", [1, 2])
def test_changed_code_is_reported_once_and_recorded(shell: Shell, ranks: int) -> None:
    codes, output = shell(*ARGS, ranks=ranks, env={"FAILS_AT": "3"})
    assert codes == [1] * ranks and MESSAGE not in output
    assert sorted(read_json(RUN / "config.json")["code"]) == ["line.py", "line_loss.py"]
    codes, output = shell("train", "--resume", "a", ranks=ranks, env={"FAILS_AT": "3"})
    assert MESSAGE not in output and not events("code_changed")
    (shell.folder / "line_loss.py").write_text(LOSS.replace("square()", "abs()"))
    codes, output = shell("train", "--resume", "a", ranks=ranks, env={"FAILS_AT": "5"})
    assert output.count(f"WARNING: {MESSAGE} (changed: line_loss.py); the run continues with the current code") == 1
    (event,) = events("code_changed")
    assert (event["changed"], event["appeared"], event["vanished"]) == (["line_loss.py"], [], [])
    codes, output = shell("train", "--resume", "a", ranks=ranks)
    assert codes == [0] * ranks and MESSAGE not in output and len(events("code_changed")) == 1


def test_files_that_appeared_and_vanished_are_named(shell: Shell) -> None:
    assert shell(*ARGS, env={"FAILS_AT": "3"})[0] == [1]
    (shell.folder / "line_loss.py").rename(shell.folder / "new_loss.py")
    (shell.folder / "line.py").write_text(SOURCE.replace("line_loss", "new_loss"))
    codes, output = shell("train", "--resume", "a")
    assert codes == [0], output
    assert f"{MESSAGE} (changed: line.py; new: new_loss.py; gone: line_loss.py)" in output


def test_a_run_of_an_older_version_reports_nothing(shell: Shell) -> None:
    assert shell(*ARGS, env={"FAILS_AT": "3"})[0] == [1]
    record = read_json(RUN / "config.json")
    del record["code"]
    write_json(RUN / "config.json", record)
    (shell.folder / "line_loss.py").write_text(LOSS.replace("square()", "abs()"))
    codes, output = shell("train", "--resume", "a", env={"FAILS_AT": "3"})
    assert codes == [1] and MESSAGE not in output
    assert len(read_json(RUN / "config.json")["code"]) == 2, "from now on it can be compared"


@pytest.mark.parametrize("again", [("train", "--resume", "a"), ARGS])
def test_a_run_of_another_version_of_the_recipe_is_not_continued(shell: Shell, again: tuple[str, ...]) -> None:
    assert shell(*ARGS, env={"FAILS_AT": "3"})[0] == [1]
    before = (RUN / "config.json").read_bytes()
    newer = SOURCE.replace("=Fit.validate)])", "=Fit.validate)], version=2)")
    assert newer != SOURCE
    (shell.folder / "line.py").write_text(newer)
    codes, output = shell(*again)
    assert codes == [2], output
    assert "was begun with version 1 of the recipe" in output and "this is version 2" in output
    assert "init_from=" in output and "Traceback" not in output
    assert (RUN / "config.json").read_bytes() == before
    (shell.folder / "line.py").write_text(SOURCE)
    assert shell("train", "--resume", "a")[0] == [0], "with the version that began it"


def test_a_restart_within_one_launch_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAMESTEP_LAUNCH_ID", "x")

    def changes(launch: str, **code: str) -> CodeChanges | None:
        opened = open_run("toy", Config(out=str(tmp_path), name="a"), 1, [launch], code)
        opened.lock.release()
        return opened.code_changes

    assert changes("first", a="1") is None
    assert changes("first", a="2") is None, "the same launch, once more"
    assert changes("second", a="2") == CodeChanges(["a"], [], []), "the next launch reports it"
    assert changes("third", a="2") is None
    assert changes("fourth", b="2") == CodeChanges([], ["b"], ["a"])


def test_of_a_shipped_recipe_all_files_count() -> None:
    folder = Path(samestep.__file__).parent / "recipes" / "mdlm"
    assert set(recipe_code("mdlm")) == {f"mdlm/{path.name}" for path in folder.glob("*.py")}


def test_of_a_users_package_what_is_loaded_counts_and_nothing_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_package_under_test"
    contents = {
        "__init__.py": "",
        "deep/__init__.py": "",
        "deep/recipe.py": "from .. import parts\nfrom ..venv.lib import library\n",
        "parts.py": "",
        "unused.py": "",
        "venv/pyvenv.cfg": "",
        "venv/lib/library.py": "",
    }
    for name, content in contents.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(content)
    (tmp_path / "beside_the_package.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    import beside_the_package  # type: ignore[import-not-found]  # noqa: F401

    try:
        found = recipe_code("own_package_under_test.deep.recipe")
        before = "own_package_under_test"
        assert set(found) == {
            f"{before}/{name}" for name in ("__init__.py", "deep/__init__.py", "deep/recipe.py", "parts.py")
        }
        assert set(recipe_code("beside_the_package.py")) >= {"beside_the_package.py", f"{before}/parts.py"}
        site = tmp_path / "site-packages"
        site.mkdir()
        shutil.copy(package / "parts.py", site / "alone_in_site.py")
        monkeypatch.syspath_prepend(str(site))
        assert set(recipe_code("alone_in_site")) == {"alone_in_site.py"}
        assert not any("alone_in_site" in name for name in recipe_code("beside_the_package.py"))
    finally:
        for name in [name for name in sys.modules if name.startswith((before, "beside_the", "alone_in"))]:
            del sys.modules[name]
