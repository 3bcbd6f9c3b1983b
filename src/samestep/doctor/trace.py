"""Reads the evidence that the runtime recorded: what every rank did in every step of the loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir

Line = dict[str, Any]
Key = tuple[str, int]
"""Stage and step of the loop."""
BUILDING = -1
"""The step of what is recorded while a stage is set up."""


@dataclass
class Step:
    """What one rank did in one step of the loop."""

    updates: list[Line] = field(default_factory=list)
    draws: list[Line] = field(default_factory=list)
    validations: list[Line] = field(default_factory=list)
    returned: bool = False
    """Whether the task came to the end of it."""
    mark: Line | None = None
    """The line that closes the step; None: the process ended inside it, or after the last one."""


Trace = dict[Key, list[Step]]
"""Every step in order, by rank."""


@dataclass(frozen=True)
class Launch:
    """What the ranks of one launch recorded, from its start to its end."""

    ranks: Sequence[dict[Key, Step]]
    starts: dict[str, int]
    """The step at which each stage that ran began."""

    @classmethod
    def read(cls, path: Path, world: int) -> "Launch":
        """The evidence in the run directory `path` of a launch at this world size."""
        files = [JsonLines(RunDir(path).evidence(world, rank)) for rank in range(world)]
        return cls.of([list(file) for file in files])

    @classmethod
    def of(cls, lines: Sequence[Sequence[Line]]) -> "Launch":
        """The launch that these lines tell of, by rank."""
        read = [_read(own) for own in lines]
        return cls([steps for steps, _ in read], read[0][1])

    def trace(self) -> Trace:
        """Every step that any rank came to; a rank that did not has an empty one."""
        keys = {key: None for steps in self.ranks for key in steps}
        return {key: [steps.get(key, Step()) for steps in self.ranks] for key in keys}

    def marks(self) -> int:
        """Steps that rank 0 finished, over all stages."""
        return sum(step.mark is not None for step in self.ranks[0].values())


def spliced(killed: Launch, resumed: Launch) -> Trace:
    """The course of a run as it counts in the end: the killed launch up to where the resumed one took over."""
    kept = {
        key: steps
        for key, steps in killed.trace().items()
        if key[0] not in resumed.starts or key[1] < resumed.starts[key[0]]
    }
    return {**kept, **resumed.trace()}


def _read(lines: Sequence[Line]) -> tuple[dict[Key, Step], dict[str, int]]:
    steps: dict[Key, Step] = {}
    starts: dict[str, int] = {}
    now: dict[str, int] = {}
    for line in lines:
        stage, kind = line["stage"], line["kind"]
        if kind == "start":
            starts[stage] = now[stage] = line["step"]
            continue
        key = stage, now.get(stage, BUILDING)
        step = steps.setdefault(key, Step())
        if kind == "returned":
            step.returned = True
        elif kind == "step":
            assert line["step"] == key[1], f"step {line['step']} of stage {stage!r} follows step {key[1] - 1}"
            step.mark = line
            now[stage] += 1
        else:
            {"update": step.updates, "draw": step.draws, "validation": step.validations}[kind].append(line)
    return steps, starts
