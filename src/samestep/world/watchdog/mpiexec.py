"""mpiexec waits for ever for the ssh to a node that went down, so a rank that fails ends the mpiexec above it too.

On the first node that is mpiexec itself, and with it the job's script goes on; on another node it is mpiexec's helper
there, which may have lost mpiexec.
"""

import os
import re
from collections.abc import Mapping

from samestep.core import processes
from samestep.core.process_end import end_later

TIMEOUT = 40.0
"""Seconds that mpiexec has to end by itself: it ends all ranks as soon as one has failed."""
_LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""Set by Open MPI and by MPICH. The mpiexec of PALS is not above its ranks, and notices itself that a node is lost."""
_MPIEXEC = re.compile(r"(mpiexec|mpirun|orterun|prterun)(\.\w+)?")
_HELPER = re.compile(r"orted|prted|hydra_\w*proxy")


def end_mpiexec_later(env: Mapping[str, str]) -> None:
    """From a rank that is about to end after a failure: start a process that ends its mpiexec if it does not end.

    Two ranks of a host do so, in case that one of them cannot.
    """
    local_rank = next((env[name] for name in _LOCAL_RANK if name in env), "")
    pid = process_above(os.getpid()) if local_rank in ("0", "1") else 0
    if pid:
        end_later(pid, TIMEOUT)


def process_above(pid: int) -> int:
    """The mpiexec that started a process, or the uppermost of its helpers on this host; 0 if there is none."""
    found = 0
    while (pid := processes.parent(pid)) > 1 and processes.is_own(pid):
        name = os.path.basename("".join(processes.command(pid)[:1]))
        if _MPIEXEC.fullmatch(name):
            return pid
        if _HELPER.fullmatch(name):
            found = pid
    return found
