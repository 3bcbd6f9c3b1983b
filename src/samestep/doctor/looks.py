"""What one update must have in common at two world sizes, looked at in the order in which one thing causes the next.

Each look takes the lines of the same update of two runs, by rank, and says what differs and what that comes from most
likely; the first look that finds something names the cause, since the rest follows from it.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from samestep.doctor.check import TOLERANCE, distance
from samestep.doctor.rows import Row, RowKey, count_ids, gathered, other_data, scaled, told_apart
from samestep.doctor.trace import Line

Prints = dict[str, list[float] | None]
_TINY = 1e-6  # a gradient this much smaller than the whole is rounding around zero, and compared with the whole


@dataclass(frozen=True)
class Names:
    """How the two runs are called, and what a wrong weight between them is called."""

    ours: str
    theirs: str
    weighting: str
    """The likely mistake when rows agree and their sum does not."""


@dataclass(frozen=True)
class Difference:
    """Something that is not the same."""

    check: str
    """The check that it fails."""
    sentence: str


@dataclass
class Seen:
    """What was compared so far."""

    updates: int = 0
    rows: int = 0
    uneven: bool = False
    """Whether any two micro-batches of an update differed in size; equal ones hide that they count alike."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest difference by check."""

    def note(self, check: str, found: float) -> bool:
        """Count a difference in; whether it is too large."""
        self.largest[check] = max(self.largest.get(check, 0.0), found)
        return not found <= TOLERANCE


@dataclass(frozen=True)
class Pair:
    """The lines of one update in two runs."""

    ours: Sequence[Line]
    theirs: Sequence[Line]
    where: str
    names: Names
    first: bool = False
    """Whether it is the first update of all, which both runs must begin with the same parameters."""


def look(pair: Pair, seen: Seen) -> Difference | None:
    """The first thing that differs in an update."""
    looks: list[Callable[[Pair, Seen], str | None]] = [_losses, _ranks, _weights, _gradients]
    checks = ["losses", "ranks", "gradients", "gradients"]
    wrong = told_apart(count_ids(pair.ours), count_ids(pair.theirs))
    if wrong:
        return Difference(
            "samples",
            f"{pair.where} takes other samples at {pair.names.theirs} than at {pair.names.ours}: {wrong}; the order "
            "depends on the rank or on the number of ranks (an unseeded split or shuffle?)",
        )
    seen.updates += 1
    seen.rows += sum(len(line["ids"]) for line in pair.ours)
    seen.uneven |= any(
        len({size for line in lines for size in line["sizes"]}) > 1 for lines in (pair.ours, pair.theirs)
    )
    for check, each in zip(checks, looks):
        sentence = each(pair, seen)
        if sentence:
            return Difference(check, sentence)
    return None


def _losses(pair: Pair, seen: Seen) -> str | None:
    ours, theirs = gathered(pair.ours), gathered(pair.theirs)
    for key, row in ours.items():
        for term, value in row.values.items():
            if seen.note("losses", distance(value, theirs[key].values.get(term, math.nan))):
                return _why_loss(pair, ours, theirs, key, term)
    return None


def _why_loss(pair: Pair, ours: dict[RowKey, Row], theirs: dict[RowKey, Row], key: RowKey, term: str) -> str:
    a, b, names = ours[key], theirs[key], pair.names
    row = f"row ({key[0]}, {key[1]}) of {pair.where}"
    if term not in b.values:
        return f"{row} has a term {term} at {names.ours} and none at {names.theirs}: return every term for every batch"
    values = f"has {term} {a.values[term]:.6g} at {names.ours} and {b.values[term]:.6g} at {names.theirs}"
    if other_data(a, b):
        return (
            f"{row} holds other data at {names.theirs} than at {names.ours}: the data is split, shuffled or made "
            "without the run's seed (an unseeded split?), so every rank and every launch has its own"
        )
    if pair.first and pair.ours[0].get("before") != pair.theirs[0].get("before"):
        return (
            f"{row} {values} because the initial parameters differ: they are drawn without the run's seed "
            "(unseeded initialisation?)"
        )
    if scaled(ours, theirs, term):
        return (
            f"{row} {values}, and its whole micro-batch differs by the same factor: each micro-batch divides by its "
            f"own size, so that unequal ones count alike ({names.weighting}); return each row's sum, and let count "
            "give its weight"
        )
    return (
        f"{row} {values} from the same parameters and the same data: the loss of a row depends on the rank or on its "
        "neighbours (rank-dependent noise? key it by batch['ids'] with samestep.noise)"
    )


def _ranks(pair: Pair, seen: Seen) -> str | None:
    for lines, name in ((pair.ours, pair.names.ours), (pair.theirs, pair.names.theirs)):
        first = lines[0]
        for rank, line in enumerate(lines):
            if line["hash"] == first["hash"]:
                continue
            if line["gradients"] != first["gradients"]:
                return (
                    f"after {pair.where} at {name} rank {rank} has other parameters than rank 0, because its gradients "
                    "are its own: they are not synchronised (a call around the wrapper, such as .module?)"
                )
            return (
                f"after {pair.where} at {name} rank {rank} has other parameters than rank 0 though the gradients are "
                "equal: each rank changes a parameter or a buffer by itself (a running mean?)"
            )
    return None


def _weights(pair: Pair, seen: Seen) -> str | None:
    wanted = pair.ours[0]["weights"]
    for rank, line in enumerate(pair.theirs):
        for term, weight in wanted.items():
            found = line["weights"].get(term)
            if found is None or distance(weight, found) > TOLERANCE:
                return (
                    f"{pair.where} weighs {weight:.6g} {term} at {pair.names.ours} and {found or 0:.6g} on rank {rank} "
                    f"at {pair.names.theirs}, though every row's loss agrees: {pair.names.weighting}; a weight is "
                    "counted per row and summed over all ranks"
                )
    return None


def _gradients(pair: Pair, seen: Seen) -> str | None:
    ours, theirs = pair.ours[0], pair.theirs[0]
    if set(ours["gradients"]) != set(theirs["gradients"]):
        odd = sorted(set(ours["gradients"]) ^ set(theirs["gradients"]))
        return f"in {pair.where} {odd[0]} is trained at one of {pair.names.ours} and {pair.names.theirs} only"
    for name, found in print_distances(ours["gradients"], theirs["gradients"], ours["norm"] * _TINY):
        if seen.note("gradients", found):
            return (
                f"in {pair.where} the gradient of {name} differs ({found:.1e}, the whole by a factor of "
                f"{_factor(ours['norm'], theirs['norm'])}) between {pair.names.ours} and {pair.names.theirs}, though "
                f"every row's loss agrees: the rows are weighted differently ({pair.names.weighting}?)"
            )
    return None


def print_distances(ours: Prints, theirs: Prints, scale: float) -> Iterator[tuple[str, float]]:
    """How far each fingerprint of ours is from theirs; numbers below `scale` count as if they were that large."""
    for name, a in ours.items():
        b = theirs[name]
        if a is None or b is None:
            yield name, 0.0 if a is b else float("inf")
        else:  # the product may be near zero by chance, so both are held against the norm
            size = max(abs(a[0]), scale)
            yield name, max(distance(a[0], b[0], size), distance(a[1], b[1], size))


def _factor(a: float, b: float) -> str:
    return f"{b / a:.4g}" if a else "infinity"
