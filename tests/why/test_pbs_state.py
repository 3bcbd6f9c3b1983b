"""The state of a PBS job, from what `qstat -xf` of OpenPBS 23.06 prints."""

import pytest

from samestep.why.scheduler import pbs_state

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
