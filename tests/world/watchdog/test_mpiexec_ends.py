"""A rank that fails ends the mpiexec above it, if that does not end by itself."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from samestep.core import processes
from samestep.world.watchdog import mpiexec

pytestmark = pytest.mark.timeout(900)
PROGRAM = """echo $$
name=$1; shift
if [ -n "$name" ]; then (exec -a "$name" bash "$0" "$@"); fi
sleep 100; true
"""
"""A process under the name of a launcher, which starts the next one; the last is a rank."""
Tree = Callable[..., list[int]]


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    program, started = tmp_path / "program.sh", []
    program.write_text(PROGRAM)

    def start(*names: str) -> list[int]:
        top = subprocess.Popen(
            [names[0], program, *names[1:]],
            executable="/bin/bash",
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(top)
        assert top.stdout
        return [int(top.stdout.readline()) for _ in names]

    yield start
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout
        process.stdout.close()


def test_which_process_is_above(tree: Tree) -> None:
    first_node = tree("/usr/bin/mpiexec.hydra", "/usr/bin/hydra_pmi_proxy", "python")
    assert mpiexec.process_above(first_node[-1]) == first_node[0]
    other_node = tree("bash", "/usr/bin/orted", "wrapper.sh", "python")
    assert mpiexec.process_above(other_node[-1]) == other_node[1], "what mpiexec left there"
    nested = tree("mpirun", "bash", "mpiexec", "python")
    assert mpiexec.process_above(nested[-1]) == nested[2], "and no launcher that started other things too"
    assert mpiexec.process_above(tree("bash", "python")[-1]) == 0


def test_it_is_ended_if_it_waits_for_ever(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does for the ssh to a node that went down."""
    monkeypatch.setattr(mpiexec, "TIMEOUT", 0.1)
    waiting, rank = tree("mpiexec", "python")
    monkeypatch.setattr(os, "getpid", lambda: rank)
    mpiexec.end_mpiexec_later({"MPI_LOCALRANKID": "0"})
    while processes.state(waiting) != "gone":
        time.sleep(0.05)


@pytest.mark.parametrize("env", [{}, {"OMPI_COMM_WORLD_LOCAL_RANK": "2"}, {"PALS_LOCAL_RANKID": "0"}])
def test_two_ranks_of_a_host_do_that_where_mpiexec_is_above_them(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(mpiexec, "end_later", lambda pid, timeout: ended.append(pid))
    monkeypatch.setattr(mpiexec, "process_above", lambda pid: 17)
    mpiexec.end_mpiexec_later(env)
    assert ended == []
    mpiexec.end_mpiexec_later({"OMPI_COMM_WORLD_LOCAL_RANK": "1"})
    assert ended == [17]
