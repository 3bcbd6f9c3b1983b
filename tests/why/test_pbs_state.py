"""The state of a PBS job, from what `qstat -xf` of OpenPBS 23.06 prints, or from what PBS writes into its file."""

from dataclasses import replace
from pathlib import Path

import pytest

from samestep.why.diagnose import diagnose
from samestep.why.records import Evidence, SchedulerJob
from samestep.why.scheduler import last_job, pbs_state

SHOWN = """Job Id: 17.server
    Job_Name = sine-default-1
    Job_Owner = me@login
    resources_used.cpupercent = 98
    resources_used.walltime = {used}
    job_state = {state}
    queue = workq
    Resource_List.select = 1:ncpus=2:mpiprocs=2
    Resource_List.walltime = 00:10:00
    substate = {substate}
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=en_US.UTF-8,
\tPBS_O_WORKDIR=/home/me,job_state = R
    comment = Job run at Tue Nov 17 at 04:30 on (node1:ncpus=2) and finished
{ended}
"""


@pytest.mark.parametrize(
    ("state", "code", "substate", "used", "wanted"),
    [
        ("Q", None, 10, "00:00:00", "PENDING"),
        ("H", None, 20, "00:00:00", "PENDING"),
        ("R", None, 42, "00:01:00", "RUNNING"),
        ("F", 0, 92, "00:01:00", "COMPLETED"),
        ("F", 1, 93, "00:01:00", "FAILED"),
        ("F", 75, 93, "00:01:00", "STOPPED"),
        ("F", 271, 91, "00:01:00", "CANCELLED"),
        ("F", -29, 93, "00:10:05", "TIMEOUT"),
        ("F", 271, 93, "00:10:05", "TIMEOUT"),
        ("F", -27, 93, "00:01:00", "OUT_OF_MEMORY"),
    ],
)
def test_states(state: str, code: int | None, substate: int, used: str, wanted: str) -> None:
    ended = "" if code is None else f"    Exit_status = {code}"
    assert pbs_state(SHOWN.format(state=state, substate=substate, used=used, ended=ended)) == wanted


@pytest.mark.parametrize("text", ["", "qstat: Unknown Job Id 17.server", "    job_state = ?", "    job_state"])
def test_what_cannot_be_read_is_unknown(text: str) -> None:
    assert pbs_state(text) == ""


class NoHistory:
    """A PBS that keeps no history of jobs, and the folder of a run's jobs."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.answer("echo 'qstat: Unknown Job Id 17.server' >&2; exit 153")
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def answer(self, shell: str) -> None:
        (self.folder / "qstat").write_text(f"#!/bin/sh\n{shell}\n")
        (self.folder / "qstat").chmod(0o755)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def job(self) -> SchedulerJob:
        noted = {"job": "17.server", "scheduler": "pbs", "output": str(self.folder / "17.server.out")}
        found = last_job([noted])
        assert found is not None
        return found

    def sentence(self) -> str:
        return diagnose(Evidence(self.folder, now=1000.0, here="node1", job=self.job())).sentence


@pytest.fixture
def no_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NoHistory:
    return NoHistory(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("written", "state"),
    [
        ("=>> PBS: job killed: walltime 123 exceeded limit 60\nTerminated\n", "TIMEOUT"),
        ("=>> PBS: job killed: mem 2097152kb exceeded limit 1048576kb\n", "OUT_OF_MEMORY"),
        ("Cgroup mem limit exceeded: oom-kill\n", "OUT_OF_MEMORY"),
        ("=>> PBS: job killed: node 1 (node2) requested job terminate, 'EOF' (code 1099) - received", "NODE_FAIL"),
        ("=>> PBS: job killed: ncpus 3.1 exceeded limit 1 (sum)\n", "FAILED"),
    ],
    ids=["walltime", "memory", "cgroup", "node", "other"],
)
def test_what_pbs_writes_into_a_jobs_file_is_read(no_history: NoHistory, written: str, state: str) -> None:
    no_history.write("17.server.OU", written)
    no_history.write("16.server.OU", "=>> PBS: job killed: ncpus 3.1 exceeded limit 1 (sum)\n")
    no_history.write("17.server.out", "samestep: job 17.server ended with exit code 1\n")
    job = no_history.job()
    assert (job.state, job.source) == (state, str(no_history.folder / "17.server.OU"))


def test_a_job_that_pbs_has_forgotten_is_not_said_to_be_submitted(no_history: NoHistory) -> None:
    assert no_history.sentence() == "job 17.server has ended, and no rank has begun to train"
    no_history.write("17.server.out", "cannot import\nsamestep: job 17.server ended with exit code 1\n")
    assert no_history.sentence() == "job 17.server has failed, and no rank has begun to train"
    no_history.write("name.o17", "=>> PBS: job killed: walltime 123 exceeded limit 60\n")
    assert no_history.sentence() == "job 17.server reached its time limit, and no rank has begun to train"
    job = no_history.job()
    found = diagnose(Evidence(no_history.folder, now=1000.0, here="node1", job=job))
    assert found.next == [f"less {job.output}", f"less {no_history.folder / 'name.o17'}"]
    trained = Evidence(no_history.folder, 1000.0, "node1", {"status": "running", "stage": "fit", "steps": 9}, job=job)
    found = diagnose(replace(trained, launch={"kind": "launch", "world": 2}, step=7))
    assert found.sentence.startswith("job 17.server reached its time limit at step 7 of 9 of stage fit")


def test_why_a_job_waits_is_said(no_history: NoHistory) -> None:
    comment = "Not Running: Insufficient amount of resource: ngpus"
    no_history.answer(f"[ $1 = -f ] && echo '    job_state = Q' && echo '    comment = {comment}'")
    assert no_history.sentence() == f"job 17.server waits in the queue ({comment}), and no rank has begun to train"
