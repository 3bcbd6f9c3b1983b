"""Signals at moments of the start of a run: it says at once that nothing was trained, and leaves nothing that claims to
run.

A moment is what Python is about to do: an import, a file that is opened, a process that is started.
"""

import random
import shutil
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.real_command import TRAIN, Ended, run
from fuzz.trial import REFUSED, SILENT, TRACEBACK, Trial
from samestep.core.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED
from samestep.core.stop_signals import SIGNALS

GROUP = "signals while a run starts"
CODE = """
import os, sys
_, event, name, number, *args = sys.argv
sys.argv = ["samestep", *args]
pending = [int(number)]

def look(found, values):
    if pending and found == event and name in str(values[0]):
        os.kill(os.getpid(), pending.pop())

sys.addaudithook(look)
from samestep.cli.main import main
sys.exit(main())
"""


@dataclass(frozen=True)
class Moment:
    """What a process is about to do when the signal comes."""

    event: str
    """As Python's audit hooks name it."""
    name: str
    """Of the module, the file or the program."""
    nproc: int = 1

    @property
    def args(self) -> Sequence[str]:
        """The command line."""
        return TRAIN if self.nproc == 1 else (*TRAIN, "--nproc", str(self.nproc))

    def __str__(self) -> str:
        return f"{self.event} {self.name}, {self.nproc} processes"


MOMENTS = (
    Moment("import", "typing"),
    Moment("import", "logging"),
    Moment("import", "samestep.core.config"),
    Moment("import", "torch._C"),
    Moment("import", "samestep.train.session.entry"),
    Moment("open", "runs/a/lock"),
    Moment("open", "config.json"),
    Moment("open", "events.jsonl"),
    Moment("open", "first_launch.json"),
    Moment("import", "samestep.launching.launcher", 2),
    Moment("import", "torch._C._distributed_c10d", 2),
    Moment("subprocess.Popen", "python", 2),
)


def trial(folder: Path, moment: Moment, number: signal.Signals) -> Trial:
    """One start."""
    folder.mkdir(parents=True)
    ended = run([moment.event, moment.name, str(int(number)), *moment.args], folder, code=CODE)
    shutil.rmtree(folder, ignore_errors=True)
    return judged(f"{number.name} at: {moment}", ended, number)


def judged(label: str, ended: Ended, number: signal.Signals) -> Trial:
    """Whether a run that was stopped at its start has said so, and no more."""
    detail = f"{ended.problem} (exit code {ended.code}, status {ended.status!r})\n{ended.output[-3000:]}"
    if ended.problem or ended.code not in (-number, EXIT_PREEMPTED, EXIT_INTERRUPTED):
        return Trial(GROUP, label, TRACEBACK, detail)
    by_the_system = ended.code == -number and number != signal.SIGINT  # nothing was there yet that could say anything
    says = any("before" in sentence and "with a save" not in sentence for sentence in ended.sentences)
    if not says and not by_the_system:
        return Trial(GROUP, label, SILENT, detail)
    return Trial(GROUP, label, REFUSED)


def trials(folder: Path, count: int | None, rng: random.Random) -> Iterator[Trial]:
    """So many of all moments with all signals, in a random order."""
    cases = [(moment, number) for moment in MOMENTS for number in SIGNALS if number != signal.SIGUSR1]
    rng.shuffle(cases)
    for index, (moment, number) in enumerate(cases[:count]):
        yield trial(folder / str(index), moment, number)
