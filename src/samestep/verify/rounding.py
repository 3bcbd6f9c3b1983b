"""Measures the rounding floor: what changes in a run of which nothing changes but the rounding.

The run that is measured takes the same micro-batches in another order, their rows in another order, and scales its
gradients on their way by a factor that it takes out again, as a run at 3 ranks does. In exact arithmetic it is the same
run. What is computed in float64 moves by 1e-15, what is computed in float32 somewhere inside moves by 1e-7 and more.
"""

from samestep.verify.bitwise import Row, largest_difference
from samestep.verify.compare import compare
from samestep.verify.tolerance import STRICT, SUBJECTS, TOLERANCE, WORST, CheckResult, Floor, ProofStatus
from samestep.verify.trace import Line, Trace
from samestep.verify.updates import LOW_PRECISION, Names, Pair, Seen, candidates, facts, look, unlike_start

NAME = "rounding floor"
_NAMES = Names("the order of the run", "another order of its rows", "the order of rows")


def measure(ours: Trace, theirs: Trace, figures: tuple[list[Row], list[Row]]) -> tuple[Floor, CheckResult]:
    """The floor, and its row of the table; `theirs` differs from `ours` in its rounding."""
    other = _other_run(ours, theirs)
    if other:
        return STRICT, CheckResult(NAME, ProofStatus.UNKNOWN, f"cannot be measured: {other}")
    found = compare(ours, theirs, _NAMES, Floor(unlimited=True))
    if found.difference:
        return STRICT, CheckResult(NAME, ProofStatus.UNKNOWN, f"cannot be measured: {found.difference.sentence}")
    measured, where = {**found.seen.largest}, {**found.seen.where}
    if not found.tie:
        measured["figures"], where["figures"] = largest_difference(*figures)
    floor = Floor(measured, where)
    fact = facts(_updates(theirs)) if floor.unverifiable else ""
    if fact:
        return _without(floor, fact)
    until = "; measured up to a tie between sampled tokens" if found.tie else ""
    return floor, _shown(floor, until, _at_once(ours, theirs))


def amounts(floor: Floor) -> str:
    """The floor of every subject in words."""
    return ", ".join(f"{name} {floor.measured[key]:.1e}" for key, name in SUBJECTS.items() if key in floor.measured)


def _at_once(ours: Trace, theirs: Trace) -> float:
    """By how much losses change in the first update, of which nothing has been learned yet."""
    for key, steps in ours.items():
        if steps[0].updates:
            pair = Pair(steps[0].updates[:1], theirs[key][0].updates[:1], "", _NAMES)
            seen = Seen(Floor(unlimited=True))
            look(pair, seen)
            return seen.largest.get("losses", 0.0)
    return 0.0


def _shown(floor: Floor, until: str, at_once: float) -> CheckResult:
    sentence = f"{amounts(floor)}, from the same batches in another order and scale{until}"
    if not floor.unverifiable:
        most = max(floor.tolerance(subject) for subject in SUBJECTS)
        return CheckResult(NAME, ProofStatus.OK, sentence + (f"; up to {most:.1e} passes" if most > TOLERANCE else ""))
    subject = max(floor.unverifiable, key=lambda each: floor.measured[each])
    causes = [f"{LOW_PRECISION} inside this float64 run", "a loss that depends on the order of its rows"]
    early = ""
    if at_once > WORST:
        early = f" (losses by {at_once:.1e} already in the first update, from the same parameters)"
        causes.reverse()
    return CheckResult(
        NAME,
        ProofStatus.UNVERIFIABLE,
        f"{sentence}; {floor.where[subject]} changes by {floor.measured[subject]:.1e} when only order and "
        f"scale change{early}, so that no mistake below that could be told from it; {candidates(*causes)}",
    )


def _without(floor: Floor, fact: str) -> tuple[Floor, CheckResult]:
    """What is known to depend on more than rounding has no floor, and is compared strictly."""
    kept = {subject: found for subject, found in floor.measured.items() if subject not in floor.unverifiable}
    named = ", ".join(SUBJECTS[subject] for subject in floor.unverifiable)
    lesser = Floor(kept, floor.where)
    sentence = f"cannot be measured for {named}, which change with the order of the rows: {fact}"
    return lesser, CheckResult(NAME, ProofStatus.UNKNOWN, sentence)


def _other_run(ours: Trace, theirs: Trace) -> str:
    """Why the two are not the same run to begin with; empty when they are."""
    first = True
    for key, steps in ours.items():
        for a, b in zip(steps[0].updates, theirs[key][0].updates if key in theirs else ()):
            wrong = unlike_start(a, b, first)
            if wrong:
                return wrong
            first = False
    return ""


def _updates(trace: Trace) -> list[Line]:
    return [line for steps in trace.values() for step in steps for line in step.updates]
