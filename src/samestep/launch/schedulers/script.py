"""What the scripts of all schedulers share, as pure text. Nothing here reads a clock, a disk or the environment."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.core.errors import EXIT_PREEMPTED
from samestep.core.rundir import RunDir
from samestep.launch.schedulers.job import Job, JobPart


@dataclass(frozen=True)
class Surroundings:
    """What a script must know of the place it was made in, all paths absolute."""

    run: Path
    """The run directory."""
    workdir: Path
    """Where the command was given, and where it runs: recipes and data are found from there."""
    python: str
    """The interpreter."""

    @property
    def job(self) -> Path:
        """Scripts and their output."""
        return RunDir(self.run).job

    def script(self, part: JobPart) -> Path:
        """Where the script of a part lies."""
        return self.job / f"{part.label}.sh"


def head(mark: str, lines: Sequence[str], *, login: bool) -> list[str]:
    """The first lines: the shell and what the scheduler reads."""
    shell = "#!/bin/bash -l" if login else "#!/bin/bash"
    return [
        shell,
        "# Made by `samestep submit`. The same script goes on with the run wherever it stopped.",
        *(f"#{mark} {line}" for line in lines),
        "",
    ]


def preparation(job: Job) -> list[str]:
    """Modules, lines of the site and variables, before the ranks start."""
    return [
        *(f"module load {shlex.quote(name)}" for name in job.site.modules),
        *job.site.setup,
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{job.cpus_per_task or 1}}}"',
        *(f"export {name}={shlex.quote(value)}" for name, value in job.site.env.items()),
    ]


def training(part: JobPart, around: Surroundings, *more: str) -> str:
    """The command of every rank."""
    return shlex.join([around.python, "-u", "-m", "samestep", "train", *part.words, *more])


def verdict(part: JobPart, around: Surroundings) -> list[str]:
    """Lines that take ranks which were stopped before training began, and ended with 0, for what they are."""
    at_end = "done|waiting" if part.unfinished else "done"
    status = shlex.quote(str(RunDir(around.run).status))
    return [
        "",
        f"# {EXIT_PREEMPTED}: stopped and saved. Ranks that are stopped before training begins end with 0.",
        f"""if [ "$code" = 0 ] && ! grep -qsE '"status": "({at_end})"' {status}; then code={EXIT_PREEMPTED}; fi""",
    ]


def resume(around: Surroundings) -> str:
    """How a user goes on by hand."""
    return shlex.join(["samestep", "train", "--resume", str(around.run)])


def text(lines: Sequence[str]) -> str:
    """A script."""
    return "\n".join(lines) + "\n"
