"""Checks of a run after faults: it finished, equals the uninterrupted run bit for bit, and left nothing behind."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.toy import STEPS
from samestep.checkpoint.commit import DELETING, REPLACED, STAGING
from samestep.checkpoint.manifest import find_checkpoints, verify
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.verify.bitwise import first_change
from samestep.verify.trace import RecordedLaunch

Line = dict[str, Any]


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run of one world size."""

    path: Path
    world: int
    seconds: float
    """Seconds from the start to the end."""
    ready: float
    """Seconds from the start to the first step."""


def unfinished(path: Path) -> str:
    """Why a run does not count as finished; empty if it does."""
    status = read_json(RunDir(path).status) or {}
    if status.get("status") != "done":
        return f"the status is {status}"
    if (read_json(RunDir(path).done("fit")) or {}).get("step") != STEPS:
        return "it did not reach its last step"
    damages = {found.path.name: verify(found.path) for found in find_checkpoints(RunDir(path).checkpoints("fit"))}
    damages = {name: damage for name, damage in damages.items() if damage}
    return f"damaged checkpoints are left: {damages}" if damages else ""


def first_difference(reference: Reference, path: Path) -> str:
    """The first difference between a run and the uninterrupted one of its world size; empty if there is none."""
    for rank in range(reference.world):
        wanted = RecordedLaunch.from_lines([evidence_lines(reference.path, reference.world, rank)])
        done: set[int] = set()
        for lines in _launches(evidence_lines(path, reference.world, rank)):
            found = RecordedLaunch.from_lines([lines])
            problem = first_change(wanted, found)
            if problem:
                return f"rank {rank}: {problem}"
            done |= {line["step"] for line in lines if line["kind"] == "step"}
        if done != set(range(STEPS)):
            return f"rank {rank} never finished the steps {sorted(set(range(STEPS)) - done)}"
    if metric_rows(path) != metric_rows(reference.path):
        return f"metrics.jsonl differs: {metric_rows(path)} instead of {metric_rows(reference.path)}"
    if tensor_checksums(path) != tensor_checksums(reference.path):
        return "the tensors of the last checkpoint differ"
    return ""


def metric_rows(path: Path) -> list[Line]:
    """The rows of metrics.jsonl without throughput."""
    return [{k: v for k, v in row.items() if not k.endswith("/s")} for row in JsonLines(RunDir(path).metrics)]


def tensor_checksums(path: Path) -> dict[str, str]:
    """The checksums of the tensor files of the last checkpoint."""
    last = find_checkpoints(RunDir(path).checkpoints("fit"))[-1]
    assert last.manifest is not None
    return {name: record.sha256 for name, record in last.manifest.files.items() if name.endswith(".distcp")}


def leftovers(path: Path) -> str:
    """Hidden folders that a save left, and temporary files."""
    hidden = (STAGING, DELETING, REPLACED)
    found = [str(p.relative_to(path)) for p in path.rglob(".*") if p.name.startswith(hidden) or p.suffix == ".tmp"]
    return ", ".join(sorted(found))


def orphans(folder: Path, label: str, timeout: float) -> str:
    """Processes that after `timeout` seconds still have a file of the run open, or its name and the folder in their
    command line: other runs on this machine may have the same name."""
    end = time.monotonic() + timeout
    while True:
        found = _users(folder, label)
        if not found or time.monotonic() > end:
            return "; ".join(found)
        time.sleep(0.05)


def _users(folder: Path, label: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            args = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            opened = [os.readlink(handle) for handle in (process / "fd").iterdir()]
        except OSError:  # it has exited in the meantime
            continue
        named = f"name={label} " in f"{args} " and f"{folder}/" in args
        if named or any(file.startswith(f"{folder}/") and label in file.split("/") for file in opened):
            found.append(f"process {process.name}: {args[:80]}")
    return found


def evidence_lines(path: Path, world: int, rank: int) -> list[Line]:
    """The evidence of one rank. After a line that a kill cut short, the next record may start on the same line."""
    lines = []
    file = RunDir(path).evidence(world, rank)
    for text in file.read_text().splitlines() if file.exists() else ():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            at = text.find('{"kind": "start"')
            if at > 0:
                lines.append(json.loads(text[at:]))
    return lines


def _launches(lines: list[Line]) -> list[list[Line]]:
    launches: list[list[Line]] = []
    for line in lines:
        if line["kind"] == "start":
            launches.append([])
        launches[-1].append(line)
    return launches
