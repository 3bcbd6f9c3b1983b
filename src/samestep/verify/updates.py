"""Compares one update in two runs, in the order of cause and effect: samples, losses, ranks, weights, gradients.

Each comparison takes the evidence of the same update of two runs, by rank, and returns what differs. The first one that
finds something is reported, since the rest follows from it. A cause is stated where the evidence proves it, and is
called a candidate everywhere else.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from samestep.verify.tolerance import STRICT, TOLERANCE, Floor, distance
from samestep.verify.trace import (
    Line,
    RowKey,
    RowRecord,
    count_ids,
    has_other_data,
    rows_by_sample,
    sample_difference,
    scaling_of,
)

SLIGHT = 1e-4
"""A difference below this may be rounding: it is never reported as a mistake of weights."""
LOW_PRECISION = "arithmetic in float32 or less"


def candidates(*causes: str) -> str:
    """The text about causes that the evidence leaves open."""
    return f"candidates: {'; '.join(causes)}"


def known_causes(lines: Iterable[Line]) -> str:
    """What is known to make a row's loss depend on more than the row (BatchNorm, random draws); empty when nothing."""
    recorded = list(lines)
    drew = [name for name in ("torch", "numpy", "python") if any(name in line.get("drew", ()) for line in recorded)]
    norms = sorted({name for line in recorded for name in line.get("batch_norms", ())})
    found = []
    if norms:
        more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
        found.append(
            f"BatchNorm module {norms[0]!r}{more} normalises a row with the statistics of its micro-batch (use "
            "samestep.global_batch_norm(model) or a norm of single rows, or keep it in evaluation mode)"
        )
    if drew:
        owners = " and ".join(f"{name}'s" for name in drew)
        found.append(
            f"random numbers were drawn from {owners} own generator during the update (dropout, "
            f"{_EXAMPLES[drew[0]]}?), which depend on the rank and on the row's position (key them by batch['ids'] "
            "with samestep.noise; dropout: samestep.keyed_dropout)"
        )
    return ", and ".join(found)


_EXAMPLES = {"torch": "torch.rand", "numpy": "np.random", "python": "random.random"}


Fingerprints = dict[str, list[float] | None]
_TINY = 1e-6  # a gradient this much smaller than the total norm is rounding around zero


@dataclass(frozen=True)
class RunNames:
    """The names of the two runs in messages, and of a wrong weight between them."""

    ours: str
    theirs: str
    weighting: str
    """The name of the mistake when rows count differently in them."""


@dataclass(frozen=True)
class Difference:
    """The first thing that differs."""

    check: str
    """The check that it fails."""
    sentence: str


@dataclass
class ComparisonStats:
    """What was compared so far, and the largest differences."""

    floor: Floor = STRICT
    updates: int = 0
    rows: int = 0
    uneven: bool = False
    """Whether any two micro-batches of an update differed in size; equal sizes would hide a mean of means."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest difference by check."""
    where: dict[str, str] = field(default_factory=dict)
    """Where the largest difference was, by check."""

    def note_difference(self, check: str, found: float, where: str) -> bool:
        """Record a difference; returns whether it is too large."""
        if found >= self.largest.get(check, 0.0):
            self.largest[check], self.where[check] = found, where
        return not found <= self.floor.tolerance(check)


@dataclass(frozen=True)
class UpdatePair:
    """The lines of one update in two runs."""

    ours: Sequence[Line]
    theirs: Sequence[Line]
    where: str
    names: RunNames
    first: bool = False
    """Whether it is the first update of the run, which must start with the same parameters in both runs."""


def compare_update(pair: UpdatePair, stats: ComparisonStats) -> Difference | None:
    """The first thing that differs in an update."""
    comparisons: list[tuple[str, Callable[[UpdatePair, ComparisonStats], str | None]]] = [
        ("losses", _compare_losses),
        ("ranks", _compare_ranks),
        ("gradients", _compare_weights),
        ("gradients", _compare_gradients),
    ]
    wrong = sample_difference(count_ids(pair.ours), count_ids(pair.theirs))
    if wrong:
        return Difference(
            "samples",
            f"{pair.where} takes other samples at {pair.names.theirs} than at {pair.names.ours}: {wrong}; "
            + candidates("an unseeded split or shuffle", "an order that depends on the rank or on the number of ranks"),
        )
    stats.updates += 1
    stats.rows += sum(len(line["ids"]) for line in pair.ours)
    stats.uneven |= any(
        len({size for line in lines for size in line["sizes"]}) > 1 for lines in (pair.ours, pair.theirs)
    )
    for check, compare in comparisons:
        sentence = compare(pair, stats)
        if sentence:
            return Difference(check, sentence)
    return None


def _compare_losses(pair: UpdatePair, stats: ComparisonStats) -> str | None:
    ours, theirs = rows_by_sample(pair.ours), rows_by_sample(pair.theirs)
    for key, row in ours.items():
        for term, value in row.values.items():
            found = distance(value, theirs[key].values.get(term, math.nan))
            if stats.note_difference("losses", found, f"{term} of row ({key[0]}, {key[1]}) in {pair.where}"):
                return _why_loss(pair, ours, theirs, key, term)
    return None


def _why_loss(
    pair: UpdatePair, ours: dict[RowKey, RowRecord], theirs: dict[RowKey, RowRecord], key: RowKey, term: str
) -> str:
    a, b, names = ours[key], theirs[key], pair.names
    row = f"row ({key[0]}, {key[1]}) of {pair.where}"
    if term not in b.values:
        return f"{row} has a term {term} at {names.ours} and none at {names.theirs}: return every term for every batch"
    found = distance(a.values[term], b.values[term])
    digits = ".6g" if found > SLIGHT else ".12g"
    values = f"has {term} {a.values[term]:{digits}} at {names.ours} and {b.values[term]:{digits}} at {names.theirs}"
    if has_other_data(a, b):
        return f"{row} holds other data at {names.theirs} than at {names.ours}; {_OTHER_DATA}"
    if pair.first and pair.ours[0].get("before") != pair.theirs[0].get("before"):
        return f"{row} {values}, and the initial parameters or buffers differ; {_OTHER_START}"
    same = f"{row} {values} from the same data" + (" and parameters" if pair.first else ", and all before it agrees")
    cause = known_causes([*pair.ours, *pair.theirs])
    if cause:
        return f"{same}: {cause}"
    if found <= SLIGHT:
        return f"{same}, a difference of {found:.1e}; " + candidates(
            f"{LOW_PRECISION} that rounds differently with the size of the micro-batch",
            "a loss that depends a little on the rank or on the row's neighbours",
        )
    return same + _scaling_text(scaling_of(ours, theirs, term), names)


_OTHER_DATA = candidates(
    "an unseeded split or shuffle",
    "noise or augmentation that is not keyed by the sample",
    "an order of a set or of files",
)
_OTHER_START = candidates(
    "unseeded initialisation",
    "values that depend on the rank or on the order of a set",
    "weights from a file that changed",
)


def _scaling_text(how: str, names: RunNames) -> str:
    """The text about a factor between the losses of rows."""
    if how == "size":
        return (
            f": every row's loss times the number of rows in its micro-batch is the same, so each divides by its own "
            f"size and unequal ones count alike ({names.weighting}); return each row's sum, and let count give its "
            "weight"
        )
    if how == "factor":
        return ", and every row of its micro-batch differs by the same factor; " + candidates(
            f"a micro-batch divides by something of its own, such as its tokens ({names.weighting}); return each row's "
            "sum, and let count give its weight",
        )
    return "; " + candidates(
        "rank-dependent noise (key it by batch['ids'] with samestep.noise)",
        "a loss that depends on the row's neighbours or on its position in the micro-batch",
        "something that the task itself changed on one rank",
    )


def start_difference(ours: Line, theirs: Line, first: bool) -> str:
    """What differs in two updates of one rank before anything is computed, whatever the order of their rows."""
    if first and ours.get("before") != theirs.get("before"):
        return f"the initial parameters or buffers differ from process to process; {_OTHER_START}"
    a, b = rows_by_sample([ours]), rows_by_sample([theirs])
    if any(key in b and has_other_data(row, b[key]) for key, row in a.items()):
        return f"the same samples hold other data from process to process; {_OTHER_DATA}"
    return ""


def _compare_ranks(pair: UpdatePair, stats: ComparisonStats) -> str | None:
    for lines, name in ((pair.ours, pair.names.ours), (pair.theirs, pair.names.theirs)):
        first = lines[0]
        for rank, line in enumerate(lines):
            if line["hash"] == first["hash"]:
                continue
            apart = f"after {pair.where} at {name} rank {rank} has other parameters or buffers than rank 0"
            if line["before"] != first["before"]:
                return f"{apart}, and had before it began: each rank changes them by itself outside its updates"
            if line["gradients"] != first["gradients"]:
                return f"{apart}, and its gradients are its own: they are not synchronised; " + candidates(
                    "a call around the wrapper, such as .module", "gradients changed after the backward pass"
                )
            return f"{apart} though the gradients are equal; " + candidates(
                "a buffer that each rank fills from its own rows (a running mean)", "another optimizer state"
            )
    return None


def _compare_weights(pair: UpdatePair, stats: ComparisonStats) -> str | None:
    expected = pair.ours[0]["weights"]
    for rank, line in enumerate(pair.theirs):
        for term, weight in expected.items():
            found = line["weights"].get(term)
            apart = math.inf if found is None else distance(weight, found)
            if apart <= max(TOLERANCE, stats.floor.tolerance("losses")):
                continue
            shown = (
                f"{pair.where} divides {term} by {weight:.9g} at {pair.names.ours} and by {found or 0:.9g} on rank "
                f"{rank} at {pair.names.theirs}, though every row's loss agrees"
            )
            if apart <= SLIGHT:
                return f"{shown}; {candidates(f'weights counted with {LOW_PRECISION}', pair.names.weighting)}"
            fix = "a weight is counted per row and summed over all micro-batches and ranks"
            return f"{shown}: {_why_weight(pair, term)}; {fix}"
    return None


def _why_weight(pair: UpdatePair, term: str) -> str:
    if len({line["weights"].get(term) for line in pair.theirs}) > 1:
        return "each rank divides by a weight of its own (mean of means)"
    named = f" ({pair.names.weighting})" if len(pair.theirs) == 1 else ""
    return f"the weight depends on how the batch is cut{named}"


def _compare_gradients(pair: UpdatePair, stats: ComparisonStats) -> str | None:
    ours, theirs = pair.ours[0], pair.theirs[0]
    if set(ours["gradients"]) != set(theirs["gradients"]):
        odd = sorted(set(ours["gradients"]) ^ set(theirs["gradients"]))
        return f"in {pair.where} {odd[0]} is trained at one of {pair.names.ours} and {pair.names.theirs} only"
    for name, found in fingerprint_distances(ours["gradients"], theirs["gradients"], ours["norm"] * _TINY):
        if stats.note_difference("gradients", found, f"the gradient of {name} in {pair.where}"):
            shown = (
                f"in {pair.where} the gradient of {name} differs by {found:.1e} (the norm of all by a factor of "
                f"{_factor(ours['norm'], theirs['norm'])}) between {pair.names.ours} and {pair.names.theirs}, though "
                "every row's loss and all weights agree; "
            )
            if found <= SLIGHT:
                return shown + candidates(f"{LOW_PRECISION} in the backward pass", "a term outside the rows' losses")
            return shown + candidates(
                f"rows that count differently ({pair.names.weighting})",
                "gradients that do not come from the rows' losses",
                "a backward pass that depends on the rank or on the row's neighbours",
            )
    return None


def fingerprint_distances(ours: Fingerprints, theirs: Fingerprints, scale: float) -> Iterator[tuple[str, float]]:
    """The relative distance of each fingerprint of ours to theirs; numbers below `scale` count as that large."""
    for name, a in ours.items():
        b = theirs[name]
        if a is None or b is None:
            yield name, 0.0 if a is b else float("inf")
        else:  # the product may be near zero by chance, so both are relative to the norm
            size = max(abs(a[0]), scale)
            yield name, max(distance(a[0], b[0], size), distance(a[1], b[1], size))


def _factor(a: float, b: float) -> str:
    return f"{b / a:.4g}" if a else "infinity"
