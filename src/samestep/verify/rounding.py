"""Measures the rounding floor: how much a run changes when only its rounding changes.

The run that is measured takes the same micro-batches in another order, their rows in another order, and scales its
gradients by a factor and removes it again, as a run at 3 ranks does. In exact arithmetic it is the same
run. What is computed in float64 moves by 1e-15, what is computed in float32 somewhere inside moves by 1e-7 and more.
"""

from samestep.verify.bitwise import MetricsRow, largest_difference
from samestep.verify.compare import compare
from samestep.verify.tolerance import STRICT, SUBJECTS, TOLERANCE, WORST, CheckResult, Floor, ProofStatus
from samestep.verify.trace import Line, Trace
from samestep.verify.updates import (
    LOW_PRECISION,
    ComparisonStats,
    RunNames,
    UpdatePair,
    candidates,
    compare_update,
    known_causes,
    start_difference,
)

NAME = "rounding floor"
_NAMES = RunNames("the order of the run", "another order of its rows", "the order of rows")


def measure_floor(
    ours: Trace, theirs: Trace, metrics: tuple[list[MetricsRow], list[MetricsRow]]
) -> tuple[Floor, CheckResult]:
    """The floor, and its check; `theirs` differs from `ours` only in its rounding."""
    found = compare(ours, theirs, _NAMES, Floor(unlimited=True))
    measured, where = {**found.stats.largest}, {**found.stats.where}
    if not found.tie:
        measured["metrics"], where["metrics"] = largest_difference(*metrics)
    floor = Floor(measured, where)
    reason = found.difference.sentence if found.difference else ""
    if reason or not floor.exact:  # else rows that an earlier stage computed differ in their last bits, as all may
        reason = _why_another_run(ours, theirs) or reason
    if reason:
        return STRICT, CheckResult(NAME, ProofStatus.UNKNOWN, f"cannot be measured: {reason}")
    cause = known_causes(_updates(theirs)) if floor.unverifiable else ""
    if cause:
        return _partial_floor(floor, cause)
    until = "; measured up to a tie between sampled tokens" if found.tie else ""
    return floor, _floor_result(floor, until, _first_update_difference(ours, theirs))


def _first_update_difference(ours: Trace, theirs: Trace) -> float:
    """By how much losses change in the first update, in which the parameters are still the same."""
    for key, steps in ours.items():
        if steps[0].updates:
            pair = UpdatePair(steps[0].updates[:1], theirs[key][0].updates[:1], "", _NAMES)
            stats = ComparisonStats(Floor(unlimited=True))
            compare_update(pair, stats)
            return stats.largest.get("losses", 0.0)
    return 0.0


def _floor_result(floor: Floor, until: str, first_update: float) -> CheckResult:
    amounts = [f"{name} {floor.measured[key]:.1e}" for key, name in SUBJECTS.items() if key in floor.measured]
    sentence = f"{', '.join(amounts)}, from the same batches in another order and scale{until}"
    if not floor.unverifiable:
        most = max(floor.tolerance(subject) for subject in SUBJECTS)
        return CheckResult(NAME, ProofStatus.OK, sentence + (f"; up to {most:.1e} passes" if most > TOLERANCE else ""))
    subject = max(floor.unverifiable, key=lambda each: floor.measured[each])
    causes = [f"{LOW_PRECISION} inside this float64 run", "a loss that depends on the order of its rows"]
    early = ""
    if first_update > WORST:
        early = f" (losses by {first_update:.1e} already in the first update, from the same parameters)"
        causes.reverse()
    return CheckResult(
        NAME,
        ProofStatus.UNVERIFIABLE,
        f"{sentence}; {floor.where[subject]} changes by {floor.measured[subject]:.1e} when only order and "
        f"scale change{early}, so that no mistake below that can be distinguished from it; {candidates(*causes)}",
    )


def _partial_floor(floor: Floor, cause: str) -> tuple[Floor, CheckResult]:
    """A subject that is known to depend on more than rounding has no floor, and is compared strictly."""
    kept = {subject: found for subject, found in floor.measured.items() if subject not in floor.unverifiable}
    named = ", ".join(SUBJECTS[subject] for subject in floor.unverifiable)
    sentence = f"cannot be measured for {named}, which change with the order of the rows: {cause}"
    return Floor(kept, floor.where), CheckResult(NAME, ProofStatus.UNKNOWN, sentence)


def _why_another_run(ours: Trace, theirs: Trace) -> str:
    """Why the two runs differ already before rounding; empty when they do not."""
    first = True
    for key, steps in ours.items():
        for a, b in zip(steps[0].updates, theirs[key][0].updates if key in theirs else ()):
            wrong = start_difference(a, b, first)
            if wrong:
                return wrong
            first = False
    return ""


def _updates(trace: Trace) -> list[Line]:
    return [line for steps in trace.values() for step in steps for line in step.updates]
