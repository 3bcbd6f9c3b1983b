"""What the scripts of all schedulers share, as pure text: nothing here reads a clock, a disk or the environment."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from samestep.core.child_python import python_command
from samestep.core.errors import EXIT_PREEMPTED, EXIT_USER, UserError
from samestep.core.rundir import RunDir
from samestep.launching.schedulers.job import Job, JobPart, require_one_line

_NAME_LENGTH = 60
"""Characters of a job's name: every scheduler takes that many."""
_HAS_PACKAGES = 'import importlib.util as found, sys; sys.exit(not all(map(found.find_spec, ("samestep", "torch"))))'
"""Whether an interpreter can train, without importing torch, which takes seconds."""


@dataclass(frozen=True)
class ScriptContext:
    """The paths that a script needs, all absolute."""

    run: Path
    """The run directory."""
    workdir: Path
    """Where the command was typed, and where it runs: recipes and data are found from there."""
    python: str
    """The interpreter that submits; the job's own is in the script's variable `python`."""

    @property
    def job(self) -> Path:
        """The folder of the scripts and their output."""
        return RunDir(self.run).job

    def python_command(self, *args: str) -> str:
        """A command of the job's interpreter, for the shell after `setup_lines`."""
        return f'"$python" {shlex.join(python_command(*args)[1:])}'

    def script(self, part: JobPart) -> Path:
        return self.job / f"{part.label}.sh"


def header(mark: str, lines: Sequence[str], *, login: bool) -> list[str]:
    """The first lines: the shell and what the scheduler reads."""
    for line in lines:
        require_one_line("a line for the head of the job script", line)
    shell = "#!/bin/bash -l" if login else "#!/bin/bash"
    return [
        shell,
        "# Made by `samestep submit`. The same script goes on with the run wherever it stopped.",
        *(f"#{mark} {line}" for line in lines),
        "",
    ]


def job_name(run: Path) -> str:
    """The name of a run's jobs: that of the run, without its middle if it is long, since its end may be a number."""
    name = run.name
    return name if len(name) <= _NAME_LENGTH else f"{name[:40]}..{name[40 - _NAME_LENGTH + 2 :]}"


def setup_lines(job: Job, context: ScriptContext, cores: int) -> list[str]:
    """Modules, lines of the site, variables and the interpreter, before the ranks start; `cores` of each rank."""
    return [
        *(f"module load {shlex.quote(name)}" for name in job.site.modules),
        *(['python_before="$(command -v python)"'] if _may_activate(job) else []),
        *job.site.setup,
        f'export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-{cores}}}"',
        *(f"export {name}={shlex.quote(value)}" for name, value in job.site.env.items()),
        *_interpreter_lines(job, context),
    ]


def _may_activate(job: Job) -> bool:
    """Whether the lines of the site may choose the interpreter."""
    return bool(job.site.setup) and job.site.python is None


def _interpreter_lines(job: Job, context: ScriptContext) -> list[str]:
    """Lines that set `python`; one that did not submit may not have samestep, which is said before ranks start."""
    lines = [f"python={shlex.quote(job.site.python or context.python)}"]
    if _may_activate(job):
        lines += [
            'python_now="$(command -v python)"  # --setup may have activated another environment',
            'if [ -n "$python_now" ] && [ "$python_now" != "$python_before" ]; then',
            '    python="$python_now"; echo "samestep: the interpreter of this job is $python, as --setup says"',
            "fi",
        ]
    if job.site.python is not None or _may_activate(job):
        refusal = "has no samestep or no torch: install them there, or name another one with --python"
        lines += [
            f'if ! "$python" -P -c {shlex.quote(_HAS_PACKAGES)}; then',
            f'    echo "samestep: the interpreter of this job, $python, {refusal}"; exit {EXIT_USER}',
            "fi",
        ]
    return lines


def train_command(part: JobPart, context: ScriptContext, *more: str) -> str:
    return context.python_command("-u", "-m", "samestep", "train", *part.args, *more)


def exit_code_lines(part: JobPart, context: ScriptContext) -> list[str]:
    """Lines that set the exit code by the run directory: the codes of several ranks may be combined into one."""
    at_end = "done|waiting" if part.unfinished else "done"
    status = shlex.quote(str(RunDir(context.run).status))
    return [
        "",
        f"# {EXIT_PREEMPTED}: stopped and saved, if the run says so: of a failed rank, 1 and 75 together are 75 too.",
        f"""if [ "$code" = {EXIT_PREEMPTED} ] && ! grep -qs '"status": "preempted"' {status}; then code=1; fi""",
        "# Ranks that are stopped before training begins end with 0.",
        f"""if [ "$code" = 0 ] && ! grep -qsE '"status": "({at_end})"' {status}; then code={EXIT_PREEMPTED}; fi""",
    ]


def resume_command(context: ScriptContext) -> str:
    """The command with which a user resumes the run by hand."""
    return shlex.join(["samestep", "train", "--resume", str(context.run)])


def join_lines(lines: Sequence[str]) -> str:
    script = "\n".join(lines) + "\n"
    try:
        script.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"{script[error.start - 40 : error.end]!r} ends with bytes that are not UTF-8; fix them"
        ) from None
    return script
