"""What a launch that did not end well shows: which rank left a step that the others are still waiting in."""

from collections.abc import Sequence

from samestep.doctor.check import plural
from samestep.doctor.compare import where
from samestep.doctor.trace import Launch, Trace


def early_leaver(launch: Launch, reference: Trace) -> str:
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
                still = f" while {_named(inside)} did not get to its end" if inside else ""
                return (
                    f"rank {rank} left {where(key, reference)} after {made}{still}: an early return on one rank (a "
                    "return, continue or branch on local data skips what all do together)"
                )
    return ""


def stalled(launch: Launch, codes: Sequence[int | None]) -> str:
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


def _named(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
