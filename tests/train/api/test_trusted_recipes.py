"""Nothing that was downloaded is run: a folder may name any recipe, but only shipped ones and the user's own run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path

import pytest
from safetensors.torch import save_file
from torch import ones

import samestep
from samestep.checkpoint.manifest import read_manifest, write_manifest
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.train.api.trusted_recipes import remember_recipe, require_trusted
from samestep.train.trained.published import PublishedRecord

pytestmark = pytest.mark.timeout(900)
EXAMPLE = Path(__file__).parents[3] / "examples" / "sine.py"
SMALL = ["--preset=verify", "--no-log.tensorboard", "--quiet", "--distributed.device=cpu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a recipe file."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(EXAMPLE, folder / "mine.py")
    assert main(["train", str(folder / "mine.py"), *SMALL, f"--out={folder / 'runs'}", "--name=a"]) == 0
    return folder / "runs" / "a"


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that the attacker's code makes; the test begins in an empty working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path / "ran"


def code(marker: Path) -> str:
    return f"open({str(marker)!r}, 'w').close()\n{EXAMPLE.read_text()}"


def unpacked(trained: Path, folder: Path, recipe: str) -> Path:
    """A run as somebody publishes it: all checksums are right, and it names a recipe of his choice."""
    shutil.copytree(trained, folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, "recipe": recipe}))
    for path in folder.glob("checkpoints/*/step_*"):
        manifest = read_manifest(path)
        write_manifest(path, replace(manifest, about={**manifest.about, "recipe": recipe}))
    return folder


def verbs(run: Path, out: Path) -> dict[str, Callable[[], object]]:
    """All that a user may do with it; each must refuse."""
    step = max(run.glob("checkpoints/*/step_*"))
    return {
        "resume": lambda: main(["train", "--resume", str(run)]),
        "submit": lambda: main(["submit", "--resume", str(run), "--on=local"]),
        "sample": lambda: main(["sample", str(run)]),
        "sample a checkpoint": lambda: main(["sample", str(step)]),
        "help": lambda: main(["sample", str(run), "--help"]),
        "evaluate": lambda: main(["evaluate", str(run)]),
        "export": lambda: main(["export", str(run), str(out)]),
        "export weights": lambda: main(["export", str(step), str(out), "--weights"]),
        "load": lambda: _code_of(lambda: samestep.load(run).network),
    }


def _code_of(work: Callable[[], object]) -> int:
    with pytest.raises(UserError, match="which does not ship with samestep; if you trust it, give --recipe"):
        work()
    return 2


PLACES = ["inside of the folder", "at an absolute path", "at a relative path", "by import path", "in a package"]


def plant(place: str, run: Path, marker: Path) -> str:
    """Put the attacker's code somewhere: the name by which the folder calls it."""
    names = {
        "inside of the folder": (run / "recipe.py", str(run / "recipe.py")),
        "at an absolute path": (run.parent / "elsewhere.py", str(run.parent / "elsewhere.py")),
        "at a relative path": (Path("near.py").absolute(), "near.py"),
        "by import path": (Path("planted_module.py").absolute(), "planted_module"),
        "in a package": (Path("planted_package/__init__.py").absolute(), "planted_package.recipe"),
    }
    file, name = names[place]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code(marker))
    return name


@pytest.mark.parametrize("place", PLACES)
def test_no_verb_runs_the_recipe_that_a_folder_names(
    place: str, trained: Path, marker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "download"
    name = plant(place, run, marker)
    planted = {file: file.read_text() for file in run.rglob("*.py")}
    shutil.rmtree(run, ignore_errors=True)
    unpacked(trained, run, name)
    for file, text in planted.items():
        file.write_text(text)
    for what, act in verbs(run, tmp_path / "out").items():
        assert act() == 2, what
        output = capsys.readouterr()
        assert not marker.exists(), what
        if what != "load":
            assert "which does not ship with samestep; if you trust it, give --recipe" in output.err, what
    assert main(["train", str(trained.parents[1] / "mine.py"), *SMALL, f"--init_from={run}", "--name=b"]) == 0
    assert not marker.exists(), "weights are no code"


def test_no_rank_of_several_runs_it(trained: Path, marker: Path, tmp_path: Path) -> None:
    run = unpacked(trained, tmp_path / "download", "planted_module")
    plant("by import path", run, marker)
    assert main(["train", "--resume", str(run), "--nproc=2"]) == 2
    assert not marker.exists()


def test_the_planted_code_would_have_run(trained: Path, marker: Path, tmp_path: Path) -> None:
    run = unpacked(trained, tmp_path / "download", "x")
    name = plant("at an absolute path", run, marker)
    assert main(["export", str(run), str(tmp_path / "out"), "--recipe", name]) == 0
    assert marker.exists()


def test_an_exported_model_runs_no_recipe_either(marker: Path, tmp_path: Path) -> None:
    name = plant("at an absolute path", tmp_path / "download", marker)
    record = PublishedRecord(name, "fit", 1, "model", {})
    (tmp_path / "exported").mkdir()
    record.write(tmp_path / "exported")
    save_file({"w": ones(1)}, tmp_path / "exported" / "model.safetensors")
    save_file({"w": ones(1)}, tmp_path / "single.safetensors", record.metadata())
    for path in (tmp_path / "exported", tmp_path / "single.safetensors"):
        _code_of(lambda path=path: samestep.load(path).network)
        assert main(["sample", str(path)]) == 2
        assert main(["train", str(EXAMPLE), *SMALL, f"--init_from={path}"]) == 2, "it has other weights"
    assert not marker.exists()


def test_a_folder_of_the_name_is_not_imported_for_its_help(
    trained: Path, marker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = unpacked(trained, Path("download"), "download")
    (run / "__init__.py").write_text(code(marker))
    assert main(["sample", "download", "--help"]) == 2
    assert "if you trust it" in capsys.readouterr().err
    assert not marker.exists()


@pytest.mark.parametrize("command", [["-m", "samestep"], ["-c", "from samestep.cli.main import main; main()"]])
def test_files_in_the_working_directory_replace_no_module(command: list[str], marker: Path) -> None:
    """A downloaded folder is often the working directory too."""
    for module in ("transformers", "peft", "tensorboard", "wandb", "lm_eval"):
        Path(f"{module}.py").write_text(code(marker))
    train = ["train", "mdlm", "--preset=verify", "--max_steps=1", "--distributed.device=cpu"]
    flags = [] if command[0] == "-m" else ["-P"]  # as in a console script, which has no working directory in its path
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, *flags, *command, *train], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not marker.exists()


def test_a_name_cannot_be_more_than_a_name(tmp_path: Path, marker: Path) -> None:
    for name, shown in (("a; touch x.py", "'a; touch x.py'"), ("\x1b[2J.py", "RECIPE")):
        Path(name).write_text("")
        with pytest.raises(UserError) as refused:
            require_trusted(name, tmp_path / "run")
        assert f"give --recipe {shown} (in Python" in str(refused.value)
        assert "\x1b" not in str(refused.value)


# The user's own recipes.


def test_the_recipe_of_ones_own_run_needs_no_flag(
    trained: Path, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["export", str(trained), str(tmp_path / "out")]) == 0
    assert main(["train", "--resume", str(trained)]) == 0
    with pytest.raises(samestep.UserError, match=r"mine.py does not exist.*say where"):
        samestep.load(tmp_path / "out")
    monkeypatch.chdir(trained.parents[1])  # an export does not tell where the recipe's file was
    assert samestep.load(tmp_path / "out").network is not None


def test_a_recipe_that_was_started_is_still_not_run_from_within_a_folder(trained: Path, tmp_path: Path) -> None:
    """Another download may have been unpacked to the same place since."""
    run = unpacked(trained, tmp_path / "download", str(tmp_path / "download" / "recipe.py"))
    shutil.copy(EXAMPLE, run / "recipe.py")
    remember_recipe(str(run / "recipe.py"))
    _code_of(lambda: require_trusted(str(run / "recipe.py"), run))
    require_trusted(str(run / "recipe.py"), tmp_path / "other")


def test_what_is_remembered_is_a_file_at_its_place(tmp_path: Path, marker: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pack.py").write_text("")
    os.chdir(tmp_path / "a")
    remember_recipe("pack")
    remember_recipe("./pack.py")
    require_trusted("pack", tmp_path / "run")
    require_trusted(str(tmp_path / "a" / "pack.py"), tmp_path / "run")
    _code_of(lambda: require_trusted(str(tmp_path / "b" / "pack.py"), tmp_path / "run"))
    _code_of(lambda: require_trusted("pack.other", tmp_path / "run"))
    os.chdir(tmp_path / "b")
    _code_of(lambda: require_trusted("pack", tmp_path / "run"))


@pytest.mark.parametrize("how", ["recipe", "recipe of another", "folder", "folder of another", "entry of another"])
def test_what_others_can_write_is_not_trusted(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    file = tmp_path / "mine.py"
    file.write_text("")
    remember_recipe(str(file))
    require_trusted(str(file), tmp_path / "run")
    folder = tmp_path / "config" / "samestep" / "trusted-recipes"
    (entry,) = folder.iterdir()
    assert (folder.stat().st_mode & 0o777, entry.stat().st_mode & 0o777) == (0o700, 0o600)
    if "another" in how and os.getuid() != 0:
        pytest.skip("a file of another user needs root")
    changed = {"recipe": file, "folder": folder, "entry": entry}[how.partition(" ")[0]]
    os.chown(changed, 12345, -1) if "another" in how else os.chmod(changed, 0o777)
    _code_of(lambda: require_trusted(str(file), tmp_path / "run"))


@pytest.mark.parametrize("home", ["a file", "/proc/nothing", "relative"])
def test_without_a_home_nothing_is_remembered_and_the_user_is_asked(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / home) if home == "a file" else home)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("")
    remember_recipe("mine.py")
    _code_of(lambda: require_trusted(str(tmp_path / "mine.py"), tmp_path / "run"))
    require_trusted("mdlm", tmp_path / "run")


def test_many_processes_may_remember_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    files = [tmp_path / f"r{number}.py" for number in range(20)]
    for file in files:
        file.write_text("")
    with ThreadPool(8) as pool:
        pool.map(remember_recipe, [str(file) for file in files] * 5)
    for file in files:
        require_trusted(str(file), tmp_path / "run")
