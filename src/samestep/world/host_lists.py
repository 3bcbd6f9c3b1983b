"""Lists of hosts as schedulers write them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from samestep.core.errors import UserError


def expand_hosts(text: str) -> list[str]:
    """SLURM's short form expanded: `n[01-03,7],m` is n01, n02, n03, n7, m."""
    return [host for part in _split(text) if part for host in _expand_part(part)]


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand outside of brackets."""
    depth, part = 0, ""
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    yield part


def _expand_part(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    found = []
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            found += [f"{before}{number:0{len(first)}d}{tail}" for tail in _expand_part(after)]
    return found


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
