"""`samestep.launch(...)`: launch workers from a Python program, a notebook or an interactive session.

The workers are started by another process that runs `samestep train --nproc`. Nothing is forked, so it does not
matter that this process has used a GPU or has threads, and its signal handlers stay as they are. Everything is passed
as arguments of that command, so it is the same command on every node.
"""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from samestep.core import exit_report, launch_env
from samestep.core.child_python import child_env, python_command
from samestep.core.config import dump, plain
from samestep.core.errors import EXIT_DONE, EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_USER, RunFailed, UserError
from samestep.launching.launcher import GRACE, parse_nproc
from samestep.launching.nodes.options import parse_nodes


@dataclass(frozen=True)
class LaunchResult:
    """How a launch ended."""

    exit_code: int
    """0 done, 75 preempted and resumable."""
    path: Path | None
    """The run directory; None when the run was stopped before it had one."""

    @property
    def done(self) -> bool:
        """Whether the run is complete; otherwise it can be resumed."""
        return self.exit_code == EXIT_DONE


def launch(
    recipe: Any,
    config: Any = None,
    *,
    nproc: int | str = "auto",
    max_restarts: int = 0,
    grace: float = GRACE,
    hosts: Sequence[str] | None = None,
    nodes: int | str | None = None,
    rdzv: str | None = None,
    node_rank: int | None = None,
    join_timeout: float | None = None,
    **settings: Any,
) -> LaunchResult:
    """Train a recipe on `nproc` processes of this machine and wait for the end; the result has `done`, `exit_code` and
    `path`, the run directory.

        samestep.launch("my_recipe.py", nproc=2, max_steps=100)

    `max_restarts` is how often a crash may resume by itself; `grace` are the seconds that workers have to stop in good
    order. `hosts` are this machine and others that it starts by ssh, each with `nproc` processes. Or make the same
    call on several machines: `nodes` of them, or "1:4", meet at `rdzv`, "HOST:PORT" of the first.

    `recipe` is a recipe's name, import path, file or object, or a configuration, whose recipe is then found beside its
    class. Settings are a mapping, a configuration, keywords, or several of these: keywords override `config`, and both
    override a configuration given as `recipe`.
    Ctrl-C stops the run in good order; a second one stops it at once.
    """
    if "RANK" in os.environ:
        raise UserError("samestep.launch was called by one of the workers; call it under `if __name__ == '__main__':`")
    if nproc != "auto":
        parse_nproc(str(nproc))
    names = None if hosts is None else ",".join(hosts)
    several = {"hosts": names, "nodes": nodes, "rdzv": rdzv, "node-rank": node_rank, "join-timeout": join_timeout}
    given_options = {option: str(value) for option, value in several.items() if value is not None}
    parse_nodes(given_options)  # refuses wrong ones before anything starts
    options = {"nproc": nproc, "max-restarts": max_restarts, "grace": grace, **given_options}
    name, given = _recipe(recipe)
    data = _merged(_merged(_settings(given), _settings(config)), settings)
    args = [*(f"--{option}={value}" for option, value in options.items()), *_as_args(plain(data))]
    folder = Path(tempfile.mkdtemp(prefix="samestep-launch-"))
    try:
        code = _run(python_command("-m", "samestep", "train", name, *args), folder)
        return _result(code, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _recipe(recipe: Any) -> tuple[str, Any]:
    """The name by which workers find the recipe, and the configuration, if one was given instead of a recipe."""
    if isinstance(recipe, str | os.PathLike):
        return os.fspath(recipe), None
    if dataclasses.is_dataclass(recipe) and not isinstance(recipe, type) and not hasattr(recipe, "stages"):
        return _import_name(type(recipe), lambda found: found.config is type(recipe)), recipe
    if hasattr(recipe, "stages") and isinstance(getattr(recipe, "config", None), type):
        return _import_name(recipe.config, lambda found: found is recipe), None
    raise UserError(
        f"samestep.launch needs a recipe's name, a Recipe or a configuration, not a {type(recipe).__name__}"
    )


def _import_name(config: type, matches: Callable[[Any], bool]) -> str:
    """The name of the module of a configuration, or of a package around it, that has the recipe as `recipe`."""
    parts = config.__module__.split(".")
    for length in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        found = getattr(module, "recipe", None)
        if module is None or found is None or not matches(found):
            continue
        if module.__name__ != "__main__":
            return module.__name__.removeprefix("samestep.recipes.")
        file = getattr(module, "__file__", None)
        if file and Path(file).exists():  # a script; an interactive session has no file
            return str(Path(file).absolute())
    raise UserError(
        f"workers cannot import a recipe with the configuration {config.__qualname__}; put it into a file such as "
        "my_recipe.py as `recipe = Recipe(...)`, and launch 'my_recipe.py'"
    )


def _settings(config: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dump(config)
    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    raise UserError(f"settings are a mapping, a configuration or keywords, not a {type(config).__name__}")


def _merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Two sets of settings as one; `upper` overrides `lower`, and sections are merged."""
    merged = dict(lower)
    for name, value in upper.items():
        below = merged.get(name)
        merged[name] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return merged


def _as_args(settings: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Settings as command-line arguments: text unchanged, everything else as JSON."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _as_args(value, f"{above}{name}.")
        else:
            yield f"{above}{name}={value if isinstance(value, str) else json.dumps(value)}"


def _run(command: Sequence[str], folder: Path) -> int:
    """Run the launching process to its end and print what it prints; returns its exit code."""
    env = {
        **child_env(import_path=sys.path),  # so that workers can import the same
        launch_env.FOLDER: str(folder),
        launch_env.PARENT: str(os.getpid()),
    }
    output = None if _has_terminal() else subprocess.PIPE
    # In a session of its own it gets a terminal's Ctrl-C only through this process, and so just once.
    process = subprocess.Popen(
        command, env=env, stdout=output, stderr=output and subprocess.STDOUT, start_new_session=True
    )
    printer = threading.Thread(target=_copy_output, args=(process.stdout, sys.stdout), daemon=True)
    if output:
        printer.start()
    try:
        code = _wait(process)
    except BaseException:
        process.terminate()
        raise
    if output:
        printer.join(timeout=5)
    return code


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end; an interrupt is passed on.

    The wait has a timeout because the interpreter handles a signal that another thread received only after it.
    """
    while True:
        try:
            return process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)


def _has_terminal() -> bool:
    """Whether what a child process prints appears where this one's output does; not so in a notebook."""
    try:
        return sys.stdout is sys.__stdout__ and sys.stdout is not None and sys.stdout.fileno() == 1
    except (OSError, ValueError):
        return False


def _copy_output(source: IO[bytes], target: IO[str]) -> None:
    for line in source:
        target.write(line.decode(errors="replace"))
        target.flush()


def _result(code: int, folder: Path) -> LaunchResult:
    """The result of the launch, or the exception that the caller gets."""
    if code in (EXIT_DONE, EXIT_PREEMPTED):
        return LaunchResult(code, launch_env.read_run_path(folder))
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    report = exit_report.read_failure(folder)
    if code == EXIT_USER:
        raise UserError(report.text if report else "the launch was refused; the reason is printed above")
    if report is None:
        raise RunFailed(f"the launching process ended with exit code {code}; see what it printed")
    raise RunFailed(f"rank {report.rank} on {report.host}: {report.text}")
