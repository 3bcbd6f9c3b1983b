"""Runs that lack something: open files, shared memory, somebody who reads the output, a working directory.

Each ends with a sentence that names what is missing, or trains to its end without it.
"""

import os
import random
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from fuzz.real_command import TRAIN, Ended, run
from fuzz.trial import ACCEPTED, REFUSED, SILENT, TRACEBACK, Trial

GROUP = "what a machine lacks"


@dataclass(frozen=True)
class Lack:
    """What a run lacks."""

    name: str
    cause: str
    """In the sentence of a run that cannot do without."""
    before: Callable[[], object] | None = None
    """What the process does first."""
    around: Sequence[str] = ()
    """The command that starts it."""


def open_files(limit: int) -> Lack:
    """So many files may be open."""
    return Lack(f"ulimit -n {limit}", "ulimit -n", partial(resource.setrlimit, resource.RLIMIT_NOFILE, (limit, limit)))


def shared_memory(size: str) -> Lack:
    """So much memory can be shared."""
    script = f'mount -t tmpfs -o size={size} tmpfs /dev/shm; exec "$@"'
    return Lack(f"{size} of shared memory", "/dev/shm, is full", around=("unshare", "-m", "sh", "-c", script, "sh"))


def closed(*numbers: int) -> Lack:
    """These of standard input, output and error are closed."""
    return Lack(f"closed {numbers}", "nothing: it trains", lambda: [os.close(number) for number in numbers])


def no_working_directory() -> Lack:
    """The folder in which the command is typed is gone."""
    return Lack("no working directory", "the working directory was deleted", lambda: os.rmdir(os.getcwd()))


LACKS = (
    *map(open_files, (10, 20, 30, 40, 50, 60, 70, 80, 100, 128)),
    *map(shared_memory, ("4k", "8k", "16k", "64k", "256k")),
    *(closed(*numbers) for numbers in ((0,), (1,), (2,), (1, 2), (0, 1, 2))),
    no_working_directory(),
)
HOW: dict[str, Sequence[str]] = {
    "alone": (),
    "workers": ("--num_workers", "2"),
    "2 ranks": ("--nproc", "2"),
    "2 ranks with workers": ("--nproc", "2", "--num_workers", "2"),
}


@cache
def can_mount() -> bool:
    """Whether /dev/shm can be replaced for a process alone."""
    return subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0


def trial(folder: Path, lack: Lack, how: str) -> Trial:
    """One run."""
    folder.mkdir(parents=True)
    ended = run([*TRAIN, *HOW[how]], folder, before=lack.before, around=lack.around)
    shutil.rmtree(folder, ignore_errors=True)
    return judged(f"{lack.name}, {how}", ended, lack.cause)


def judged(label: str, ended: Ended, cause: str) -> Trial:
    """Whether a run that lacks something has said so, or has trained."""
    detail = f"{ended.problem} (exit code {ended.code}, status {ended.status!r})\n{ended.output[-3000:]}"
    if ended.problem or ended.code not in (0, 1, 2):
        return Trial(GROUP, label, TRACEBACK, detail)
    if ended.code == 0:
        return Trial(GROUP, label, ACCEPTED) if ended.status == "done" else Trial(GROUP, label, SILENT, detail)
    is_named = any(cause in sentence for sentence in ended.sentences)
    return Trial(GROUP, label, REFUSED) if is_named else Trial(GROUP, label, TRACEBACK, f"no cause is named\n{detail}")


def trials(folder: Path, count: int | None, rng: random.Random) -> Iterator[Trial]:
    """So many of all lacks with all ways to run, in a random order."""
    cases = [(lack, how) for lack in LACKS for how in HOW if not lack.around or can_mount()]
    rng.shuffle(cases)
    for number, (lack, how) in enumerate(cases[:count]):
        yield trial(folder / str(number), lack, how)
