"""Projects made by `samestep new`, and what commands typed in them start.

`typed` runs a command line as a user types it, by bash, with `python`, `torchrun`, `mpiexec`, `srun`, `sbatch` and
`qsub` replaced by programs that write down what they were given. What a Python script of the project then asks of
samestep is written down as well, so a test can compare settings without training.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import samestep
from samestep.cli.args import parse_train
from samestep.cli.main import main
from samestep.core.config import split_options
from samestep.train.api import recipe_registry

SOURCE = Path(samestep.__file__).parents[1]
LAUNCHERS = ("torchrun", "mpiexec", "srun")
SCHEDULERS = ("sbatch", "qsub")
_RECORD = f"""#!{sys.executable}
import json, os, pathlib, runpy, sys

sys.path.insert(0, {str(SOURCE)!r})
if {str(SOURCE)!r} not in os.environ.get("PYTHONPATH", ""):
    os.environ["PYTHONPATH"] = {str(SOURCE)!r}
program, args = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
record = pathlib.Path(os.environ["RECORD"])


def note(who, what):
    with record.open("a") as file:
        file.write(json.dumps([who, list(what)]) + "\\n")


if program in {SCHEDULERS!r}:
    note(program, args)
    sys.exit(0)
if program in {LAUNCHERS!r}:
    # Its own options end where the program begins: `-m MODULE`, a script, or the name of a Python.
    is_start = [arg in ("-m", "python") or arg.endswith((".py", "/python")) for arg in args]
    note(program, args[: is_start.index(True)])
    args = args[is_start.index(True) :]
    args = args[1:] if pathlib.Path(args[0]).name == "python" else args
while args and args[0] in ("-P", "-u"):
    args.pop(0)


def run_main(args):
    note("samestep", args)
    return 0


if args[:2] == ["-m", "samestep"] or program == "samestep":
    sys.exit(run_main(args[2:] if program != "samestep" else args))
import samestep.cli.main

samestep.cli.main.main = run_main
if args[0] == "-c":
    exec(args[1])
elif args[0] == "-m":
    sys.path.insert(0, os.getcwd())
    sys.argv = args[1:]
    runpy.run_module(args[1], run_name="__main__")
else:
    sys.path.insert(0, str(pathlib.Path(args[0]).resolve().parent))
    sys.argv = args
    runpy.run_path(args[0], run_name="__main__")
"""


@dataclass
class Typed:
    """What a command line started."""

    done: subprocess.CompletedProcess[str]
    launchers: list[tuple[str, list[str]]] = field(default_factory=list)
    """Each launcher and scheduler with its own arguments."""
    samestep: list[list[str]] = field(default_factory=list)
    """The arguments that samestep was called with, each time."""

    def config(self) -> Any:
        """The settings of the training that was started; relative paths are those of the working directory."""
        assert len(self.samestep) == 1, self
        verb, *rest = self.samestep[0]
        assert verb == "train"
        return parse_train(split_options(rest, ["nproc"])[1])[2]


def make_project(recipe: str, folder: Path) -> Path:
    """A project, made as a user makes it."""
    assert main(["new", recipe, str(folder)]) == 0
    return folder


def project_for_settings(recipe: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as the working directory, with its models and data not looked at: only settings are compared."""
    monkeypatch.chdir(make_project(recipe, folder))
    find = recipe_registry.find_recipe
    monkeypatch.setattr(recipe_registry, "find_recipe", lambda name: replace(find(name), resolve=None))
    return folder


def typed(command: str, project: Path, env: Mapping[str, str] | None = None, **options: Any) -> Typed:
    """Type a command in the project."""
    programs, record = project.parent / "programs", project.parent / "record.jsonl"
    programs.mkdir(exist_ok=True)
    for name in ("python", "samestep", *LAUNCHERS, *SCHEDULERS):
        file = programs / name
        file.write_text(_RECORD)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
    record.write_text("")
    paths = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "RECORD": str(record), **(env or {})}
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=project,
        env={**os.environ, **paths},
        capture_output=True,
        text=True,
        timeout=100,
        **options,
    )
    found = [json.loads(line) for line in record.read_text().splitlines()]
    own = [args for who, args in found if who == "samestep"]
    return Typed(done, [(who, args) for who, args in found if who != "samestep"], own)


def really(command: str, project: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Type a command in the project, with the real programs; it must succeed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shell = {"PATH": path, "PYTHONPATH": str(SOURCE), "PYTHONSAFEPATH": ""}  # `make_project` sets it in this process
    variables = {**os.environ, **shell, "OMP_NUM_THREADS": "1", **env}
    done = subprocess.run(
        ["bash", "-c", command], cwd=project, env=variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
