"""Reads the evidence that ranks recorded: what each did in every step, with which rows, and how a launch ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from samestep.core.json_files import JsonLines
from samestep.core.output import plural
from samestep.core.rundir import RunDir
from samestep.verify.tolerance import distance

Line = dict[str, Any]
"""One line of an evidence file."""
StepKey = tuple[str, int]
"""Stage and step of the loop."""
SET_UP = -1
"""The step number of what is recorded while a stage is set up."""


@dataclass
class Step:
    """What one rank did in one step of the loop."""

    updates: list[Line] = field(default_factory=list)
    draws: list[Line] = field(default_factory=list)
    validations: list[Line] = field(default_factory=list)
    returned: bool = False
    """Whether the task returned from it."""
    closing_line: Line | None = None
    """The last line of the step; None when the process ended inside the step, or after the last one."""


Trace = dict[StepKey, list[Step]]
"""Every step in order, by rank."""


@dataclass(frozen=True)
class RecordedLaunch:
    """What the ranks of one launch recorded, from its start to its end."""

    ranks: Sequence[dict[StepKey, Step]]
    starts: dict[str, int]
    """The step at which each stage that ran started."""

    @classmethod
    def read(cls, path: Path, world: int) -> "RecordedLaunch":
        """The evidence in the run directory `path` of a launch at this world size."""
        files = [JsonLines(RunDir(path).evidence(world, rank)) for rank in range(world)]
        return cls.from_lines([list(file) for file in files])

    @classmethod
    def from_lines(cls, lines: Sequence[Sequence[Line]]) -> "RecordedLaunch":
        """A launch from its evidence lines, by rank."""
        read = [_read(own) for own in lines]
        return cls([steps for steps, _ in read], read[0][1])

    def trace(self) -> Trace:
        """Every step that any rank reached; a rank that did not reach it has an empty one."""
        keys = {key: None for steps in self.ranks for key in steps}
        return {key: [steps.get(key, Step()) for steps in self.ranks] for key in keys}

    def finished_steps(self) -> int:
        """By rank 0, over all stages."""
        return sum(step.closing_line is not None for step in self.ranks[0].values())


def describe_step(key: StepKey, trace: Trace) -> str:
    """`step 3`, with the stage where there are several."""
    stage, step = key
    text = f"step {step}" if step != SET_UP else "the set-up"
    return f"{text} of stage {stage!r}" if len({known for known, _ in trace}) > 1 else text


def splice(killed: RecordedLaunch, resumed: RecordedLaunch) -> Trace:
    """The steps that count in the end: those of the killed launch up to where the resumed one continued."""
    kept = {
        key: steps
        for key, steps in killed.trace().items()
        if key[0] not in resumed.starts or key[1] < resumed.starts[key[0]]
    }
    return {**kept, **resumed.trace()}


def _read(lines: Sequence[Line]) -> tuple[dict[StepKey, Step], dict[str, int]]:
    steps: dict[StepKey, Step] = {}
    starts: dict[str, int] = {}
    now: dict[str, int] = {}
    for line in lines:
        stage, kind = line["stage"], line["kind"]
        if kind == "start":
            starts[stage] = now[stage] = line["step"]
            continue
        key = stage, now.get(stage, SET_UP)
        step = steps.setdefault(key, Step())
        if kind == "returned":
            step.returned = True
        elif kind == "step":
            assert line["step"] == key[1], f"step {line['step']} of stage {stage!r} follows step {key[1] - 1}"
            step.closing_line = line
            now[stage] += 1
        else:
            {"update": step.updates, "draw": step.draws, "validation": step.validations}[kind].append(line)
    return steps, starts


RowKey = tuple[int, int, int]
"""Epoch, index, and how often the sample occurred before in the same batch."""
ALIKE = 1e-6
"""Factors closer than this count as equal."""


@dataclass(frozen=True)
class RowRecord:
    """What a rank recorded about one row of an update."""

    values: Mapping[str, float]
    """Loss by term."""
    data: tuple[int, int]
    """Checksum and number of its input values."""
    micro: tuple[int, int]
    """Rank and number of its micro-batch."""
    size: int
    """Rows of its micro-batch."""


def rows_by_sample(lines: Sequence[Line]) -> dict[RowKey, RowRecord]:
    """All rows of one update, from the lines of all ranks."""
    found: dict[RowKey, RowRecord] = {}
    for rank, line in enumerate(lines):
        micro_batches = [(number, size) for number, size in enumerate(line["sizes"]) for _ in range(size)]
        for at, (sample, (number, size)) in enumerate(zip(line["ids"], micro_batches)):
            values = {term: column[at] for term, column in line["rows"].items()}
            found[_next(found, sample)] = RowRecord(values, tuple(line["data"][at]), (rank, number), size)
    return found


def count_ids(lines: Iterable[Line]) -> Counter[tuple[int, int]]:
    """How often each sample occurs."""
    return Counter(tuple(sample) for line in lines for sample in line["ids"])


def sample_difference(expected: Counter[tuple[int, int]], found: Counter[tuple[int, int]]) -> str:
    """The text about which samples differ from the expected ones; empty when none do."""
    missing, extra = sorted(expected - found), sorted(found - expected)
    twice = [sample for sample in extra if sample in expected]
    texts = [
        f"{_list_samples(samples)} {text}"
        for samples, text in (
            (missing, "missing"),
            (twice, "there too often"),
            (
                [sample for sample in extra if sample not in expected],
                "there in its place" if missing else "there as well",
            ),
        )
        if samples
    ]
    return ", ".join(texts)


def has_other_data(a: RowRecord, b: RowRecord) -> bool:
    """Whether two rows of the same sample hold different values; unknown for rows padded to different lengths."""
    return a.data[1] == b.data[1] and a.data[0] != b.data[0]


def scaling_of(ours: Mapping[RowKey, RowRecord], theirs: Mapping[RowKey, RowRecord], term: str) -> str:
    """How the losses differ: by the `size` of the micro-batch, by one `factor` per micro-batch, or neither (empty)."""
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


def _list_samples(samples: Sequence[tuple[int, int]], most: int = 3) -> str:
    shown = ", ".join(str(sample) for sample in samples[:most])
    more = f" and {len(samples) - most} more" if len(samples) > most else ""
    return f"{shown}{more} {'is' if len(samples) == 1 else 'are'}"


def early_return_sentence(launch: RecordedLaunch, reference: Trace) -> str:
    """The sentence about a rank that made fewer updates in a step than a single process; empty when there is none."""
    trace = launch.trace()
    for key, steps in trace.items():
        if key not in reference:
            continue
        expected = len(reference[key][0].updates)
        for rank, step in enumerate(steps):
            if step.returned and len(step.updates) < expected:
                inside = [number for number, other in enumerate(steps) if not other.returned]
                made = f"{plural(len(step.updates), 'update')} of {expected}"
                still = f" while {_list_ranks(inside)} did not get to its end" if inside else ""
                return (
                    f"rank {rank} left {describe_step(key, reference)} after {made}{still}: an early return on one "
                    "rank (a return, continue or branch on local data skips what all do together)"
                )
    return ""


def stall_sentence(launch: RecordedLaunch, codes: Sequence[int | None]) -> str:
    """The start of a sentence about a rank that never ended, and how far it got; empty when all ended."""
    if None not in codes:
        return ""
    rank = codes.index(None)
    finished = [key for key, step in launch.ranks[rank].items() if step.closing_line is not None]
    place = f"after {describe_step(finished[-1], launch.trace())}" if finished else "before its first step was done"
    return f"rank {rank} made no progress {place}, and the others gave up: "


def last_error(output: str) -> str:
    """The last error that a failed process printed, on one line: its exception without the traceback."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("samestep: "):
            return line.removeprefix("samestep: ")
        name, colon, _ = line.partition(":")
        if colon and name.replace(".", "").isidentifier() and name.endswith(("Error", "Exception", "Failed")):
            return line
    return lines[-1] if lines else "it printed nothing"


def _list_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
