"""Reads the evidence that the runtime recorded: what every rank did in every step of the loop."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from samestep.core.output import plural
from samestep.core.records import JsonLines
from samestep.core.rundir import RunDir
from samestep.verify.tolerance import CheckResult, ProofStatus, distance

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
class RecordedLaunch:
    """What the ranks of one launch recorded, from its start to its end."""

    ranks: Sequence[dict[Key, Step]]
    starts: dict[str, int]
    """The step at which each stage that ran began."""

    @classmethod
    def read(cls, path: Path, world: int) -> "RecordedLaunch":
        """The evidence in the run directory `path` of a launch at this world size."""
        files = [JsonLines(RunDir(path).evidence(world, rank)) for rank in range(world)]
        return cls.of([list(file) for file in files])

    @classmethod
    def of(cls, lines: Sequence[Sequence[Line]]) -> "RecordedLaunch":
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


def where(key: Key, trace: Trace) -> str:
    """A step in words; the stage is named where there are several."""
    stage, step = key
    text = f"step {step}" if step != BUILDING else "the set-up"
    return f"{text} of stage {stage!r}" if len({known for known, _ in trace}) > 1 else text


def spliced(killed: RecordedLaunch, resumed: RecordedLaunch) -> Trace:
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


RowKey = tuple[int, int, int]
"""Epoch, index, and how often the sample came before in the same batch."""
ALIKE = 1e-6
"""Factors closer than this are the same one."""


@dataclass(frozen=True)
class Row:
    """One row as its rank saw it."""

    values: Mapping[str, float]
    data: tuple[int, int]
    """Checksum and number of values."""
    micro: tuple[int, int]
    """Rank and number of its micro-batch."""
    size: int
    """Rows of its micro-batch."""


def gathered(lines: Sequence[Line]) -> dict[RowKey, Row]:
    """All rows of one update, whose lines come by rank."""
    found: dict[RowKey, Row] = {}
    for rank, line in enumerate(lines):
        places = [(number, size) for number, size in enumerate(line["sizes"]) for _ in range(size)]
        for at, (sample, (number, size)) in enumerate(zip(line["ids"], places)):
            values = {term: column[at] for term, column in line["rows"].items()}
            found[_next(found, sample)] = Row(values, tuple(line["data"][at]), (rank, number), size)
    return found


def count_ids(lines: Iterable[Line]) -> Counter[tuple[int, int]]:
    """How often each sample is there."""
    return Counter(tuple(sample) for line in lines for sample in line["ids"])


def told_apart(wanted: Counter[tuple[int, int]], found: Counter[tuple[int, int]]) -> str:
    """What is wrong with the samples that were found, in words; empty when nothing is."""
    missing, extra = sorted(wanted - found), sorted(found - wanted)
    twice = [sample for sample in extra if sample in wanted]
    words = [
        f"{_named(samples)} {text}"
        for samples, text in (
            (missing, "missing"),
            (twice, "there too often"),
            (
                [sample for sample in extra if sample not in wanted],
                "there in its place" if missing else "there as well",
            ),
        )
        if samples
    ]
    return ", ".join(words)


def other_data(a: Row, b: Row) -> bool:
    """Whether two rows of the same sample hold different values; of rows padded to different lengths nobody knows."""
    return a.data[1] == b.data[1] and a.data[0] != b.data[0]


def scaled(ours: Mapping[RowKey, Row], theirs: Mapping[RowKey, Row], term: str) -> str:
    """By what the values differ: `size` of the micro-batch, one `factor` per micro-batch, or neither (empty)."""
    factors: dict[tuple[tuple[int, int], tuple[int, int]], list[float]] = {}
    for key, row in ours.items():
        other = theirs[key]
        if not row.values[term] or not other.values.get(term):
            return ""
        factors.setdefault((row.micro, other.micro), []).append(other.values[term] / row.values[term])
    by_size = all(
        distance(row.values[term] * row.size, theirs[key].values[term] * theirs[key].size) <= ALIKE
        for key, row in ours.items()
    )
    if by_size:
        return "size"
    alike = all(distance(min(found), max(found)) <= ALIKE for found in factors.values())
    return "factor" if alike and any(len(found) > 1 for found in factors.values()) else ""


def _next(found: Mapping[RowKey, object], sample: Sequence[int]) -> RowKey:
    epoch, index = sample
    occurrence = 0
    while (epoch, index, occurrence) in found:
        occurrence += 1
    return epoch, index, occurrence


def _named(samples: Sequence[tuple[int, int]], most: int = 3) -> str:
    shown = ", ".join(str(sample) for sample in samples[:most])
    more = f" and {len(samples) - most} more" if len(samples) > most else ""
    return f"{shown}{more} {'is' if len(samples) == 1 else 'are'}"


def early_leaver(launch: RecordedLaunch, reference: Trace) -> str:
    """The rank that made fewer updates in a step than one process alone does, in words; empty when there is none."""
    trace = launch.trace()
    for key, steps in trace.items():
        if key not in reference:
            continue
        wanted = len(reference[key][0].updates)
        for rank, step in enumerate(steps):
            if step.returned and len(step.updates) < wanted:
                inside = [number for number, other in enumerate(steps) if not other.returned]
                made = f"{plural(len(step.updates), 'update')} of {wanted}"
                still = f" while {_ranks_named(inside)} did not get to its end" if inside else ""
                return (
                    f"rank {rank} left {where(key, reference)} after {made}{still}: an early return on one rank (a "
                    "return, continue or branch on local data skips what all do together)"
                )
    return ""


def stalled(launch: RecordedLaunch, codes: Sequence[int | None]) -> str:
    """Which rank never ended and how far it came, in words to begin a sentence with; empty when all ended."""
    if None not in codes:
        return ""
    rank = codes.index(None)
    finished = [key for key, step in launch.ranks[rank].items() if step.mark is not None]
    place = f"after {where(finished[-1], launch.trace())}" if finished else "before its first step was done"
    return f"rank {rank} stopped moving {place}, and the others gave up: "


def last_words(output: str) -> str:
    """What a failed process said last, on one line: its exception rather than what follows it, and no traceback."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("samestep: "):
            return line.removeprefix("samestep: ")
        name, colon, _ = line.partition(":")
        if colon and name.replace(".", "").isidentifier() and name.endswith(("Error", "Exception", "Failed")):
            return line
    return lines[-1] if lines else "it said nothing"


def _ranks_named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


NAME = "every parameter gets a gradient"


def every_parameter_reached(trace: Trace, unused: Sequence[str]) -> CheckResult:
    """A parameter whose gradient is absent or zero in every update learns nothing; a glob in `unused` allows it."""
    reached: dict[str, bool] = {}
    for steps in trace.values():
        for line in (line for step in steps for line in step.updates):
            for name, found in line["gradients"].items():
                whole = f"{line['learner']}.{name}"
                reached[whole] = reached.get(whole, False) or bool(found and found[0] > 0)
    idle = [name for name, once in reached.items() if not once and not _allowed(name, unused)]
    if idle:
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        return CheckResult(
            NAME,
            ProofStatus.FAILED,
            f"{', '.join(idle[:3])}{more} never got one: use it, freeze it (requires_grad_(False)), or declare it in "
            "the recipe's `unused`",
        )
    allowed = sum(not once for once in reached.values())
    return CheckResult(
        NAME,
        ProofStatus.OK,
        f"{plural(len(reached), 'parameter')}" + (f", {allowed} declared unused" if allowed else ""),
    )


def _allowed(name: str, unused: Sequence[str]) -> bool:
    """A pattern may name the parameter with or without its learner."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.partition(".")[2], pattern) for pattern in unused)
