"""Whatever text an option holds, a job script executes none of it; what is accepted comes through unchanged."""

import os
import shlex
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samestep.cli.args import SubmitArgs
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.launching.schedulers.job import Allocation, Job, JobPart, allocate
from samestep.launching.schedulers.script import ScriptContext
from samestep.launching.schedulers.submit import scripts, submit

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "sine.py")
RECORD = """#!/bin/bash
printf '%s\\0' "$@" > "$RECORDS/$(basename "$0")"
env -0 > "$RECORDS/env"
while [ $# != 0 ] && [ "$1" != PY ]; do shift; done
[ $# = 0 ] || printf '%s\\0' "${@:2}" > "$RECORDS/python"
"""
DIRECTIVES = {
    "slurm": ("account", "partition", "qos", "constraint", "nodelist", "mem"),
    "pbs": ("account", "queue", "select", "site.place", "filesystems"),
}
OTHERS = ("directive", "module", "srun", "env", "cpu-bind", "mpiexec", "name", "arg", "stage", "time")
HOSTILE = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.tuples(
        st.sampled_from(["", "x", "x ", "'", '"', "\\", "A=", "A", "-n ", "#", "\t"]),
        st.sampled_from(
            ["\n", "\r\n", ";", "&", "|", "$(", "`", "';", '";', "\\\n", "'$(", "\x0b", "\u2028", "}", "<("]
        ),
        st.sampled_from(["touch MARKER", "touch MARKER #", "touch MARKER;B=1", "touch MARKER\n"]),
        st.sampled_from(["", ")", "`", "'", '"', ";", "\n"]),
    ).map("".join),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stand-ins for all commands of a script, which write down what they got."""
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "bin").mkdir()
    for name in ("srun", "mpiexec", "scontrol", "qsub", "module"):
        (folder / "bin" / name).write_text(RECORD)
        (folder / "bin" / name).chmod(0o755)
    return folder


def rendered(scheduler: str, option: str, text: str, folder: Path) -> str:
    given = [f"--{option}={text}"] if option not in ("name", "arg", "stage") else []
    job = SubmitArgs.parse(given, {}).job
    allocate(job, scheduler)
    part = JobPart("train", ["recipe", text if option == "arg" else "a=1"], Allocation(1, 1, 1), ["one"])
    last = JobPart("last", ["recipe"], Allocation(1, 1, 1), [text if option == "stage" else "two"])
    run = folder / (text.replace("/", "_") if option == "name" else "run")
    context = ScriptContext(run, folder, "PY")
    return next(iter(scripts([part, last], job, context, scheduler).values()))


def run_script(script: str, folder: Path, *, env: dict[str, str]) -> None:
    records = folder / "records"
    records.mkdir(exist_ok=True)
    for old in records.iterdir():
        old.unlink()
    subprocess.run(["bash", "-n"], input=script.encode(), check=True, cwd=folder, capture_output=True)
    path = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "RECORDS": str(records), "HOME": str(folder)}
    shell = ["bash", "-c", script]
    subprocess.run(shell, cwd=folder, env=path | env, check=False, capture_output=True, timeout=20)
    assert not list(folder.rglob("MARKER*")), script


def arrived(folder: Path, name: str) -> list[str]:
    return (folder / "records" / name).read_bytes().decode().split("\0")[:-1]


@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_text_is_executed(scheduler: str, folder: Path, data: st.DataObject) -> None:
    option = data.draw(st.sampled_from([*DIRECTIVES[scheduler], *OTHERS]))
    text = data.draw(HOSTILE)
    if option == "mpiexec":
        text = f"mpiexec {text}"  # its first word is a command, because that is what it is for
    try:
        script = rendered(scheduler, option, text, folder)
    except UserError:
        return
    (folder / "run" / "job").mkdir(parents=True, exist_ok=True)
    run_script(script, folder, env={"PBS_JOBID": "1", "PBS_NODEFILE": "nodes", "SLURM_JOB_ID": "1"})
    mark = {"slurm": "#SBATCH ", "pbs": "#PBS "}[scheduler]
    head = [line.removeprefix(mark) for line in script.split("\n") if line.startswith(mark)]
    if option in DIRECTIVES[scheduler] and text.lower() not in ("null", "none"):
        words = [word for line in head for word in shlex.split(line)]
        assert any(text in word for word in words)
    if option == "directive":
        assert text in head
    elif option == "arg":
        assert arrived(folder, "python")[4:] == ["train", "recipe", text]
    elif option == "env":
        assert text in arrived(folder, "env")
    elif option == "srun" and scheduler == "slurm":
        assert text in arrived(folder, "srun")
    elif option == "module":
        assert arrived(folder, "module") == ["load", text]


@pytest.mark.parametrize(
    "args",
    [
        ["--queue=a\ntouch MARKER"],
        ["--env", "A;touch MARKER;B=1"],
        ["--env", "A\nB=1"],
        ["--env", "=1"],
        ["--directive", "--mail-type=END\ntouch MARKER"],
        ["--account=a\rb"],
        ["--mpiexec=mpiexec 'x"],
        ["name=a\ntouch MARKER"],
    ],
    ids=str,
)
@pytest.mark.parametrize("on", ["slurm", "pbs"])
def test_one_sentence_and_nothing_is_written(
    on: str, args: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SAMESTEP_SITE", raising=False)
    assert main(["submit", EXAMPLE, "--on", on, "--time=1h", *args]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_nobody_else_can_read_scripts_jobs_and_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    before = os.umask(0)
    try:
        context = ScriptContext(tmp_path / "run", tmp_path, "python")
        context.job.mkdir(parents=True, mode=0o777)  # by somebody else
        (context.job / "train.sh").touch(0o644)
        job = replace(Job(), site=replace(Job().site, env={"TOKEN": "secret"}))
        for _ in range(2):
            submit([JobPart("train", ["recipe"], Allocation(1, 1, 1))], job, context, "slurm")
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in [context.job, *context.job.iterdir()]}
            assert modes == {"job": 0o700, **dict.fromkeys(["train.sh", "job.json", "progress.json"], 0o600)}
    finally:
        os.umask(before)
