"""Whether a run that went through trouble is bit for bit the one that did not, and left nothing lying about."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.toy import STEPS
from samestep.checkpoint.commit import DELETING, REPLACED, STAGING
from samestep.checkpoint.manifest import find_checkpoints, verify
from samestep.core.records import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.verify.bitwise import first_change
from samestep.verify.trace import RecordedLaunch

Line = dict[str, Any]


@dataclass(frozen=True)
class Reference:
    """What the uninterrupted run of one world size left."""

    path: Path
    world: int
    seconds: float
    """From the start to the end."""
    ready: float
    """From the start to the first step."""


def lost(path: Path) -> str:
    """Why a run is not at its end; empty: it is."""
    status = read_json(RunDir(path).status) or {}
    if status.get("status") != "done":
        return f"the status is {status}"
    if read_json(RunDir(path).artifacts("fit") / "done.json") != {"step": STEPS}:
        return "it did not come to its last step"
    damages = {found.path.name: verify(found.path) for found in find_checkpoints(RunDir(path).checkpoints("fit"))}
    damages = {name: damage for name, damage in damages.items() if damage}
    return f"damaged checkpoints are left: {damages}" if damages else ""


def change(reference: Reference, path: Path) -> str:
    """The first thing in which a run differs from the uninterrupted one of its world size; empty when there is none."""
    for rank in range(reference.world):
        wanted = RecordedLaunch.of([lines_of(reference.path, reference.world, rank)])
        done: set[int] = set()
        for lines in _launches(lines_of(path, reference.world, rank)):
            found = RecordedLaunch.of([lines])
            problem = first_change(wanted, found)
            if problem:
                return f"rank {rank}: {problem}"
            done |= {line["step"] for line in lines if line["kind"] == "step"}
        if done != set(range(STEPS)):
            return f"rank {rank} never finished the steps {sorted(set(range(STEPS)) - done)}"
    if figures(path) != figures(reference.path):
        return f"metrics.jsonl differs: {figures(path)} and not {figures(reference.path)}"
    if tensors(path) != tensors(reference.path):
        return "the last checkpoint holds other tensors"
    return ""


def figures(path: Path) -> list[Line]:
    """The rows of metrics.jsonl, without speeds."""
    return [{k: v for k, v in row.items() if not k.endswith("/s")} for row in JsonLines(RunDir(path).metrics)]


def tensors(path: Path) -> dict[str, str]:
    """The checksums of the tensor files of the last checkpoint."""
    last = find_checkpoints(RunDir(path).checkpoints("fit"))[-1]
    assert last.manifest is not None
    return {name: record.sha256 for name, record in last.manifest.files.items() if name.endswith(".distcp")}


def leftovers(path: Path) -> str:
    """Hidden folders that a save left, and temporary files."""
    hidden = (STAGING, DELETING, REPLACED)
    found = [str(p.relative_to(path)) for p in path.rglob(".*") if p.name.startswith(hidden) or p.suffix == ".tmp"]
    return ", ".join(sorted(found))


def orphans(folder: Path, label: str, patience: float) -> str:
    """Processes that still hold a file of the run, or name it in their command line, after so many seconds."""
    end = time.monotonic() + patience
    while True:
        found = _holders(folder, label)
        if not found or time.monotonic() > end:
            return "; ".join(found)
        time.sleep(0.05)


def _holders(folder: Path, label: str) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
            held = [os.readlink(handle) for handle in (process / "fd").iterdir()]
        except OSError:  # it has ended meanwhile
            continue
        if f"name={label} " in words + " " or any(h.startswith(f"{folder}/") and label in h.split("/") for h in held):
            found.append(f"process {process.name}: {words[:80]}")
    return found


def lines_of(path: Path, world: int, rank: int) -> list[Line]:
    """The evidence of one rank; a line that a kill has cut short may have another one behind it."""
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
