"""The hosts of a job, as its scheduler names them."""

import re
from collections.abc import Mapping
from pathlib import Path

from samestep.core.errors import UserError
from samestep.core.host_lists import expand_hosts


def tasks_per_node(text: str) -> list[int]:
    """SLURM's tasks of each node as a list: `2(x3),1` is 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            raise UserError(f"SLURM's tasks per node are not understood: {text!r}")
        counts += [int(found[1])] * int(found[2] or 1)
    return counts


def job_hosts(env: Mapping[str, str]) -> list[str]:
    """The hosts of this process's job, from PBS's node file or SLURM's variables; empty outside of a job."""
    return node_file_hosts(env) or expand_hosts(env.get("SLURM_JOB_NODELIST", ""))


def node_file_hosts(env: Mapping[str, str]) -> list[str]:
    """The hosts in PBS's node file, each once, in its order; empty where there is no such file."""
    path = env.get("PBS_NODEFILE")
    if not path:
        return []
    try:
        lines = Path(path).read_text().split()
    except OSError:
        return []  # the file lies on the first node only at some sites
    return list(dict.fromkeys(lines))
