"""What one update must have in common at two world sizes, compared in the order in which one thing causes the next.

Each comparison takes the evidence of the same update of two runs, by rank, and says what differs; the first that finds
something is the one to report, since the rest follows from it. A cause is stated where the evidence singles it out, and
is a candidate everywhere else.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from samestep.verify.tolerance import STRICT, TOLERANCE, Floor, distance
from samestep.verify.trace import Line, Row, RowKey, count_ids, gathered, other_data, scaled, told_apart

SLIGHT = 1e-4
"""A difference below this may be rounding: it is never called a mistake of weights."""
LOW_PRECISION = "arithmetic in float32 or less"


def candidates(*causes: str) -> str:
    """Causes that the evidence leaves open."""
    return f"candidates: {'; '.join(causes)}"


def facts(lines: Iterable[Line]) -> str:
    """What happened in an update that makes a row's loss depend on more than the row; empty when nothing did."""
    held = list(lines)
    drew = [name for name in ("torch", "numpy", "python") if any(name in line.get("drew", ()) for line in held)]
    norms = sorted({name for line in held for name in line.get("batch_norms", ())})
    found = []
    if norms:
        more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
        found.append(
            f"BatchNorm module {norms[0]!r}{more} normalises a row with the statistics of its micro-batch (use a norm "
            "of single rows, or keep it in evaluation mode)"
        )
    if drew:
        found.append(
            f"random numbers were drawn from {_listed(drew)} own generator during the update (dropout, "
            f"{_EXAMPLES[drew[0]]}?), which depend on the rank and on the row's place (key them by batch['ids'] with "
            "samestep.noise; dropout: samestep.keyed_dropout)"
        )
    return ", and ".join(found)


_EXAMPLES = {"torch": "torch.rand", "numpy": "np.random", "python": "random.random"}


def _listed(names: list[str]) -> str:
    return " and ".join(f"{name}'s" for name in names)


Prints = dict[str, list[float] | None]
_TINY = 1e-6  # a gradient this much smaller than the whole is rounding around zero, and compared with the whole


@dataclass(frozen=True)
class Names:
    """How the two runs are called, and what a wrong weight between them is called."""

    ours: str
    theirs: str
    weighting: str
    """What it is called when rows count differently in them."""


@dataclass(frozen=True)
class Difference:
    """Something that is not the same."""

    check: str
    """The check that it fails."""
    sentence: str


@dataclass
class Seen:
    """What was compared so far."""

    floor: Floor = STRICT
    updates: int = 0
    rows: int = 0
    uneven: bool = False
    """Whether any two micro-batches of an update differed in size; equal ones hide that they count alike."""
    largest: dict[str, float] = field(default_factory=dict)
    """The largest difference by check."""
    where: dict[str, str] = field(default_factory=dict)
    """What it was seen in."""

    def note(self, check: str, found: float, where: str) -> bool:
        """Count a difference in; whether it is too large."""
        if found >= self.largest.get(check, 0.0):
            self.largest[check], self.where[check] = found, where
        return not found <= self.floor.tolerance(check)


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
            f"{pair.where} takes other samples at {pair.names.theirs} than at {pair.names.ours}: {wrong}; "
            + candidates("an unseeded split or shuffle", "an order that depends on the rank or on the number of ranks"),
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
            found = distance(value, theirs[key].values.get(term, math.nan))
            if seen.note("losses", found, f"{term} of row ({key[0]}, {key[1]}) in {pair.where}"):
                return _why_loss(pair, ours, theirs, key, term)
    return None


def _why_loss(pair: Pair, ours: dict[RowKey, Row], theirs: dict[RowKey, Row], key: RowKey, term: str) -> str:
    a, b, names = ours[key], theirs[key], pair.names
    row = f"row ({key[0]}, {key[1]}) of {pair.where}"
    if term not in b.values:
        return f"{row} has a term {term} at {names.ours} and none at {names.theirs}: return every term for every batch"
    found = distance(a.values[term], b.values[term])
    digits = ".6g" if found > SLIGHT else ".12g"
    values = f"has {term} {a.values[term]:{digits}} at {names.ours} and {b.values[term]:{digits}} at {names.theirs}"
    if other_data(a, b):
        return f"{row} holds other data at {names.theirs} than at {names.ours}; {_OTHER_DATA}"
    if pair.first and pair.ours[0].get("before") != pair.theirs[0].get("before"):
        return f"{row} {values}, and the initial parameters or buffers differ; {_OTHER_START}"
    same = f"{row} {values} from the same data" + (" and parameters" if pair.first else ", and all before it agrees")
    fact = facts([*pair.ours, *pair.theirs])
    if fact:
        return f"{same}: {fact}"
    if found <= SLIGHT:
        return f"{same}, a difference of {found:.1e}; " + candidates(
            f"{LOW_PRECISION} that rounds differently with the size of the micro-batch",
            "a loss that depends a little on the rank or on the row's neighbours",
        )
    return same + _scaled_words(scaled(ours, theirs, term), names)


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


def _scaled_words(how: str, names: Names) -> str:
    """What the factors between the losses of rows say about them."""
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
        "a loss that depends on the row's neighbours or on its place in the micro-batch",
        "something that the task itself changed on one rank",
    )


def unlike_start(ours: Line, theirs: Line, first: bool) -> str:
    """In what two updates of one rank differ before anything is computed, whatever the order of their rows."""
    if first and ours.get("before") != theirs.get("before"):
        return f"the initial parameters or buffers differ from process to process; {_OTHER_START}"
    a, b = gathered([ours]), gathered([theirs])
    if any(key in b and other_data(row, b[key]) for key, row in a.items()):
        return f"the same samples hold other data from process to process; {_OTHER_DATA}"
    return ""


def _ranks(pair: Pair, seen: Seen) -> str | None:
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


def _weights(pair: Pair, seen: Seen) -> str | None:
    wanted = pair.ours[0]["weights"]
    for rank, line in enumerate(pair.theirs):
        for term, weight in wanted.items():
            found = line["weights"].get(term)
            apart = math.inf if found is None else distance(weight, found)
            if apart <= max(TOLERANCE, seen.floor.tolerance("losses")):
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


def _why_weight(pair: Pair, term: str) -> str:
    if len({line["weights"].get(term) for line in pair.theirs}) > 1:
        return "each rank divides by a weight of its own (mean of means)"
    named = f" ({pair.names.weighting})" if len(pair.theirs) == 1 else ""
    return f"the weight depends on how the batch is cut{named}"


def _gradients(pair: Pair, seen: Seen) -> str | None:
    ours, theirs = pair.ours[0], pair.theirs[0]
    if set(ours["gradients"]) != set(theirs["gradients"]):
        odd = sorted(set(ours["gradients"]) ^ set(theirs["gradients"]))
        return f"in {pair.where} {odd[0]} is trained at one of {pair.names.ours} and {pair.names.theirs} only"
    for name, found in print_distances(ours["gradients"], theirs["gradients"], ours["norm"] * _TINY):
        if seen.note("gradients", found, f"the gradient of {name} in {pair.where}"):
            shown = (
                f"in {pair.where} the gradient of {name} differs by {found:.1e} (the norm of all by a factor of "
                f"{_factor(ours['norm'], theirs['norm'])}) between {pair.names.ours} and {pair.names.theirs}, though "
                "every row's loss and all weights agree; "
            )
            if found <= SLIGHT:
                return shown + candidates(f"{LOW_PRECISION} in the backward pass", "a term outside the rows' losses")
            return shown + candidates(
                f"rows that count differently ({pair.names.weighting})",
                "gradients from elsewhere than the rows' losses",
                "a backward pass that depends on the rank or on the row's neighbours",
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
