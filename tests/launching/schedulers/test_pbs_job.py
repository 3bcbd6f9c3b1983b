"""PBS jobs from the inside: their time limit, submitting themselves again, and what they record; with a stub PBS."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.launching.schedulers import pbs, pbs_job
from samestep.launching.schedulers.job import Allocation, Job, JobPart
from samestep.launching.schedulers.script import ScriptContext

PART = JobPart("train", ["recipe"], Allocation(1, 1, 1), ["fit"])
LAST = JobPart("last", ["recipe"], Allocation(1, 1, 1), ["two"])
QSTAT = """Job Id: 11.server
    Job_Name = sine-default-1
    Job_Owner = me@login
    job_state = R
    queue = workq
    Resource_List.ncpus = 1
    Resource_List.nodect = 1
    Resource_List.place = scatter
    Resource_List.select = 1:ncpus=1:mpiprocs=1
    Resource_List.walltime = {}
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=en_US.UTF-8,
\tPBS_O_LOGNAME=me,PBS_O_WORKDIR=/home/me
"""


class StubPbs:
    """A folder with qsub, qstat and mpiexec, and the run directory of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.context = ScriptContext(folder / "run", folder, sys.executable)
        self.context.job.mkdir(parents=True)
        self.program("qsub", 'echo "$@" >> asked; n=$(wc -l < asked); echo "$(( 11 + n )).server"')
        self.program("qstat", f"cat <<'END'\n{QSTAT.format('02:00:00')}END")

    def program(self, name: str, body: str) -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def status(self, status: str) -> None:
        (self.context.run / "status.json").write_text(json.dumps({"status": status}, indent=2))

    def run(
        self, number: str = "11.server", following: JobPart | None = None, part: JobPart = PART, **asked: Any
    ) -> tuple[int, str]:
        """Run the script of a job; its exit code and its output."""
        env = {
            "PATH": f"{self.folder}:/usr/bin:/bin",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            "PBS_JOBID": number,
            "PBS_NODEFILE": "nodes",
            "SAMESTEP_TURN": "100",
        }
        text = pbs.script(part, Job(**asked), self.context, following)
        done = subprocess.run(["bash"], input=text, text=True, env=env, cwd=self.folder, timeout=60, check=False)
        return done.returncode, (self.context.job / f"{number}.out").read_text()

    @property
    def jobs(self) -> list[tuple[str, int]]:
        return [(job["job"], job["requeues"]) for job in read_json(self.context.job / "job.json")["jobs"]]

    @property
    def asked(self) -> str:
        path = self.folder / "asked"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def stub(tmp_path: Path) -> StubPbs:
    return StubPbs(tmp_path)


SAVING = "mkdir -p run/checkpoints/fit/step_$(date +%s%N); exit 75"


def test_a_job_that_stopped_submits_itself_and_is_recorded(stub: StubPbs) -> None:
    stub.program("mpiexec", SAVING)
    stub.status("preempted")
    code, printed = stub.run(max_requeues=2)
    assert code == 75
    assert "stopped and saved (stage fit at step" in printed and "job 12.server goes on from there" in printed
    logs, script = stub.context.job, stub.context.script(PART)
    assert stub.asked == f"-j oe -o {logs}/ {script}\n", "no -v: it would replace the script's"
    assert stub.jobs == [("11.server", 0), ("12.server", 1)]
    assert "job 13.server goes on" in stub.run("12.server", max_requeues=2)[1]
    printed = stub.run("13.server", max_requeues=2)[1]
    assert "not submitted again: it was queued again as often as --max-requeues allows, 2 times; go on with:" in printed
    assert stub.jobs == [("11.server", 0), ("12.server", 1), ("13.server", 2)]


def test_a_job_that_makes_no_step_is_not_submitted_for_ever(stub: StubPbs) -> None:
    stub.program("mpiexec", "exit 75")
    stub.status("preempted")
    printed = stub.run()[1]
    assert "stopped before a new step was saved" in printed and "saved (" not in printed
    printed = stub.run("12.server")[1]
    assert "2 launches in a row made no step, so the time limit is too short for start-up; go on with: qsub" in printed
    assert stub.jobs == [("11.server", 0), ("12.server", 1)]


@pytest.mark.parametrize(
    ("mpiexec", "status", "ends_with"),
    [
        ("exit 75", "failed", 1),  # MPICH combines the codes of ranks by OR: 75 | 1 is 75
        ("exit 2", "preempted", 2),
        ("exit 0", "done", 0),
    ],
)
def test_who_is_not_submitted_again(stub: StubPbs, mpiexec: str, status: str, ends_with: int) -> None:
    stub.program("mpiexec", mpiexec)
    stub.status(status)
    assert stub.run()[0] == ends_with
    assert stub.asked == ""


BY_CLOCK = {"status": "preempted", "reason": "max_time"}
GOES_ON = "job 12.server goes on from there"


@pytest.mark.parametrize(
    ("mpiexec", "status", "said"),
    [
        # What the run recorded decides: its save outlasted the grace time, and PBS sent SIGTERM at the limit.
        ("launched; asked; exit 75", BY_CLOCK, GOES_ON),
        ("launched; asked; exit 75", BY_CLOCK | {"reason": "SIGTERM"}, "stopped by SIGTERM, so not submitted again"),
        ("asked; exit 75", BY_CLOCK, "stopped by SIGTERM"),  # it stopped before training: an earlier job wrote that
        ("launched; asked; exit 143", {"status": "running"}, "ended by SIGTERM before it could save"),
        (
            "launched; sleep 1; asked; exit 143",
            {"status": "running"},
            "the time limit came before the save was complete, so not submitted again: give it a longer --grace",
        ),
    ],
    ids=["limit", "qdel", "qdel before training", "qdel without a save", "limit without a save"],
)
def test_sigterm_is_the_limit_or_qdel(stub: StubPbs, mpiexec: str, status: dict[str, str], said: str) -> None:
    events, limit = stub.context.run / "events.jsonl", "00:00:02" if "sleep" in mpiexec else "02:00:00"
    stub.program("qstat", f"cat <<'END'\n{QSTAT.format(limit)}END")
    launched = f'launched() {{ echo "{{\\"kind\\": \\"launch\\", \\"time\\": $(date +%s).9}}" >> {events}; }}'
    stub.program("mpiexec", f"[ $1 = --version ] && exit\n{launched}\nasked() {{ kill -TERM $PPID; }}\n{mpiexec}")
    (stub.context.run / "status.json").write_text(json.dumps(status))
    code, printed = stub.run()
    assert said in printed
    assert bool(stub.asked) == (said == GOES_ON)
    assert f"go on with: qsub {stub.context.script(PART)}" in printed or said == GOES_ON
    assert printed.endswith(f"samestep: job 11.server ended with exit code {code}\n")


def test_a_job_in_which_nothing_trains_says_so(stub: StubPbs, capsys: pytest.CaptureFixture[str]) -> None:
    """Under Open MPI no rank begins before all nodes answer, so the script has to say it."""
    run, nodes = RunDir(stub.context.run), stub.folder / "nodes"
    nodes.write_text("node1\nnode1\nnode2\n")
    env = {"SAMESTEP_BEGAN": "1000", "PBS_NODEFILE": str(nodes)}
    JsonLines(run.events).append({"kind": "launch", "time": 999.0})  # of an earlier job
    pbs_job.watch_start(run, env, late=0.05)
    assert "mpiexec may be waiting for a node (node1, node2)" in capsys.readouterr().out
    JsonLines(run.events).append({"kind": "launch", "time": 1001.0})
    pbs_job.watch_start(run, env, late=50.0)
    assert capsys.readouterr().out == ""


def test_ranks_of_open_mpi_on_other_nodes_find_rank_0(stub: StubPbs) -> None:
    """By ssh they get the variables of -x alone, and the node file may lie on the first node only."""
    find = "import os; from samestep.world import rank_discovery as r; env = os.environ;"
    find += "print('rank 0 is on', r.main_address(r.discover(env), env), 'of', env['PBS_JOBID'])"
    rank = "PMIX_NAMESPACE=1 " + " ".join(f"OMPI_COMM_WORLD_{name}" for name in ("RANK=1", "SIZE=2"))
    rank += " OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1"
    stub.program(
        "mpiexec",
        f"""if [ $1 = --version ]; then echo 'mpiexec (OpenRTE) 4.1.4'; exit; fi
kept=(); while [ $# -gt 0 ]; do [ "$1" = -x ] && kept+=("$2=${{!2}}"); shift; done
rm nodes; env -i "${{kept[@]}}" {rank} {sys.executable} -c "{find}" """,
    )
    (stub.folder / "nodes").write_text("node1\nnode2\n")
    _, printed = stub.run(part=replace(PART, allocation=Allocation(2, 1, 1)))
    assert "rank 0 is on node1 of 11.server" in printed


def test_where_a_compute_node_may_not_submit_the_command_is_printed(stub: StubPbs) -> None:
    stub.program("mpiexec", "exit 75")
    stub.program("qsub", "echo refused >&2; exit 1")
    stub.status("preempted")
    assert f"go on with: qsub {stub.context.script(PART)}" in stub.run()[1]


def test_the_next_stage_is_submitted_and_recorded(stub: StubPbs) -> None:
    stub.program("mpiexec", "exit 0")
    stub.status("done")
    assert "job 12.server goes on with the next stage" in stub.run(following=LAST)[1]
    assert stub.asked.endswith("last.sh\n")
    assert stub.jobs == [("11.server", 0), ("12.server", 0)]


@pytest.mark.parametrize(
    ("walltime", "asked", "limit"), [("02:00:00", {}, 6900), ("168:00:00", {"time": "1h"}, 604500)]
)
def test_ranks_know_the_limit_that_the_job_really_has(
    stub: StubPbs, walltime: str, asked: dict[str, str], limit: int
) -> None:
    """Which may be the queue's, or another one than was asked for."""
    stub.program("mpiexec", 'echo "began $SAMESTEP_BEGAN limit $SAMESTEP_TIME_LIMIT."')
    stub.program("qstat", f"cat <<'END'\n{QSTAT.format(walltime)}END")
    printed = stub.run(**asked)[1]
    assert int(printed.split("began ")[1].split()[0]) > 1_700_000_000
    assert f"limit {limit}." in printed


@pytest.mark.parametrize(
    ("asked", "grace", "wanted"), [(7200.0, 300, 6900), (7200.0, 600, 6600), (240.0, 300, 120), (None, 300, None)]
)
def test_a_run_stops_before_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: float | None, grace: float, wanted: int | None
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # without qstat, what was asked for counts
    assert pbs_job.stop_after("11.server", grace, asked) == wanted


OTHERS = {
    "Grid Engine": "GE 6.2u5\\nusage: qsub [options]",
    "Torque": "Version: 6.1.2\\nCommit: 661e092552de43a785c15d39a3634a541d86898e",
    "SLURM": "perl: error: fetch_config: DNS SRV lookup failed",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_qsub_of_another_scheduler_is_recognised(stub: StubPbs, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{stub.folder}:/usr/bin:/bin")
    stub.program("qsub", "echo 'pbs_version = 23.06.06'")
    pbs.require_pbs()
    stub.program("qsub", f'printf "{OTHERS[name]}"; exit 1')
    with pytest.raises(UserError, match="is not the qsub of OpenPBS or PBS Pro"):
        pbs.require_pbs()
