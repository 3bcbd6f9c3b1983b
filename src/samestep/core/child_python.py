"""How a Python is started that imports nothing from the working directory.

`python -m x` and `python -c` look for modules in the working directory first, and so does every Python with an empty or
relative entry in its PYTHONPATH: a `json.py` in a downloaded folder would be run by whoever works there. The option
`-P` is for the Python that is started, the variable PYTHONSAFEPATH also for those that it starts itself, or that
libraries start: the fork server and the resource tracker of multiprocessing, torch's compile workers. A recipe in the
working directory needs neither: each process finds it by its name (see train/api/recipe_registry.py).
"""

import os
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

_SAFE_PATH, _IMPORT_PATH = "PYTHONSAFEPATH", "PYTHONPATH"
_OWN_FOLDER = Path(__file__).resolve().parents[2]  # what lies there is run already


def python_command(*args: str, python: str = sys.executable) -> list[str]:
    """The command of a Python with these arguments; it needs `child_env()` as its environment."""
    return [python, "-P", *args]


def child_env(env: Mapping[str, str] = os.environ, *, import_path: Sequence[str] | None = None) -> dict[str, str]:
    """`env` for a Python that is started in the working directory; `import_path` takes the place of its PYTHONPATH."""
    return {**env, **import_variables(env, import_path=import_path)}


def import_variables(
    env: Mapping[str, str] = os.environ, *, import_path: Sequence[str] | None = None
) -> dict[str, str]:
    """The variables in which `child_env` differs from `env`."""
    entries = _entries(env) if import_path is None else import_path
    kept = [entry for entry in entries if not _is_working_directory(entry)]
    return {_IMPORT_PATH: os.pathsep.join(kept), _SAFE_PATH: "1"}


def leave_out_working_directory(env: MutableMapping[str, str] = os.environ) -> list[str]:
    """For a process that is ours alone: neither it nor any Python that it starts imports the working directory.

    Returns the folders inside of it that PYTHONPATH named; they are left out too, since it names others elsewhere.
    """
    dropped = [entry for entry in _entries(env) if _is_working_directory(entry)]
    sys.path[:] = [entry for entry in sys.path if entry and not any(_is_same(entry, other) for other in dropped)]
    env.update(import_variables(env))
    return [entry for entry in dropped if not _is_same(entry, os.curdir)]


def _entries(env: Mapping[str, str]) -> list[str]:
    path = env.get(_IMPORT_PATH)
    return path.split(os.pathsep) if path else []


def _is_working_directory(entry: str) -> bool:
    """Whether an entry of an import path means the working directory, or something that depends on it."""
    return (not os.path.isabs(entry) or _is_same(entry, os.curdir)) and not _is_same(entry, str(_OWN_FOLDER))


def _is_same(entry: str, other: str) -> bool:
    with suppress(OSError):  # one of them does not exist
        return os.path.samefile(entry or os.curdir, other or os.curdir)
    return False
