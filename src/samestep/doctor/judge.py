"""Turns comparisons into rows of the table."""

from collections.abc import Mapping, Sequence

from samestep.doctor.check import Check, Result, plural
from samestep.doctor.compare import Comparison
from samestep.doctor.floor import STRICT, SUBJECTS, TOLERANCE, Floor

ORDER = ("samples", "tokens", "losses", "ranks", "gradients", "validation")
"""Checks in the order in which one thing causes the next."""
_TITLES = {
    "samples": "samples at 1, 2, 3 ranks",
    "tokens": "sampled tokens at 1, 2, 3 ranks",
    "losses": "row losses at 1, 2, 3 ranks",
    "ranks": "parameters equal on all ranks",
    "gradients": "gradients at 1, 2, 3 ranks",
    "validation": "validation at 1, 2, 3 ranks",
}


def judge(comparisons: Sequence[Comparison], floor: Floor = STRICT) -> list[Check]:
    """One check a subject; after the first that fails nothing further is said, since it would only follow from it."""
    checks: list[Check] = []
    for subject in ORDER:
        wrong = [found.difference for found in comparisons if found.difference and found.difference.check == subject]
        if wrong:
            return [*checks, Check(_TITLES[subject], Result.FAILED, wrong[0].sentence)]
        if subject == "tokens" and not any(found.tokens or found.tie for found in comparisons):
            continue
        checks.append(held_against(floor, {subject: largest(comparisons, subject)}, _passed(subject, comparisons)))
    return checks


def held_against(floor: Floor, seen: Mapping[str, float], check: Check) -> Check:
    """The check as it is, or as proving nothing where a difference that was `seen` passed though it is large."""
    lost = [subject for subject in floor.unverifiable if seen.get(subject, 0.0) > TOLERANCE]
    if check.result is not Result.OK or not lost:
        return check
    amounts = ", ".join(f"{SUBJECTS[subject]} by {floor.measured[subject]:.1e}" for subject in lost)
    sentence = f"{check.sentence}; it proves nothing, since another order and scale alone change {amounts}"
    return Check(check.name, Result.UNVERIFIABLE, sentence)


def largest(comparisons: Sequence[Comparison], subject: str) -> float:
    """The largest difference that was seen."""
    return max((found.seen.largest.get(subject, 0.0) for found in comparisons), default=0.0)


def _passed(subject: str, comparisons: Sequence[Comparison]) -> Check:
    least = min(comparisons, key=lambda found: found.steps)
    seen, name = least.seen, _TITLES[subject]
    until = "; compared up to a tie between sampled tokens" if least.tie else ""
    difference = f"largest difference {largest(comparisons, subject):.1e}"
    if subject == "samples":
        sentence = f"{plural(least.steps, 'step')}, {plural(seen.updates, 'update')}, {plural(seen.rows, 'row')}"
    elif subject == "tokens":
        ties = [found.tie for found in comparisons if found.tie]
        sentence = plural(least.tokens, "token") + (f"; {ties[0]}" if ties else "")
        until = ""
    elif subject == "ranks":
        sentence = f"a hash after each of {plural(seen.updates, 'update')} and of every step's state"
    elif subject == "validation":
        if "validation" not in seen.largest:
            return Check(name, Result.NOT_RUN, f"no validation{until}" if until else "the recipe validates nothing")
        sentence = f"{plural(least.validations, 'row')} once each, {difference}" if least.validations else difference
    else:
        sentence = (
            f"{plural(seen.rows, 'row') if subject == 'losses' else plural(seen.updates, 'update')}, {difference}"
        )
    if subject == "gradients" and seen.updates and not any(found.seen.uneven for found in comparisons):
        until += "; all shares were equal, so a mean of means would not show: use another global_batch_size"
    return Check(name, Result.OK, sentence + until)
