"""Compares two runs of the same recipe step by step, to float tolerance, for example at two world sizes."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from samestep.verify.tolerance import STRICT, TIE, Floor, distance
from samestep.verify.trace import Line, Step, Trace, count_ids, describe_step, sample_difference
from samestep.verify.updates import (
    LOW_PRECISION,
    SLIGHT,
    ComparisonStats,
    Difference,
    RunNames,
    UpdatePair,
    candidates,
    compare_update,
    fingerprint_distances,
    known_causes,
)

Token = tuple[int, float]
"""The sampled token, and its margin over the next candidate."""
TokenKey = tuple[str, int, int, int, int, int]
"""Purpose, step, epoch, index, position, and how often this was drawn before."""


@dataclass(frozen=True)
class TokenComparison:
    """How the tokens of one step compare."""

    same: int
    wrong: str = ""
    """The sentence about the first token that differs and may not."""
    tie: str = ""
    """The sentence about the first token that differs at a tie; what follows from it cannot be compared."""


def compare_tokens(
    step: str, ours: Sequence[Step], theirs: Sequence[Step], names: tuple[str, str], tie_below: float = TIE
) -> TokenComparison:
    """Compare the tokens of a step, by sample and position."""
    expected, drawn = _drawn_tokens(ours), _drawn_tokens(theirs)
    same, tie = 0, ""
    off: set[tuple[int, int]] = set()  # samples that differ after a tie
    for key, (token, margin) in expected.items():
        purpose, _, epoch, index, position, _ = key
        other, other_margin = drawn.get(key, (None, margin))
        if (epoch, index) in off or token == other:
            same += token == other
            continue
        other_token = "none" if other is None else other
        sampled = f"{purpose!r} samples token {token} at {names[0]} and {other_token} at {names[1]}"
        place = f"{step}, sample ({epoch}, {index}), position {position}"
        if other is None or min(margin, other_margin) >= tie_below:
            wrong = f"{place}: {sampled}, though the two best are {margin:.1e} apart; " + candidates(
                "logits that depend on the rank or on the row's neighbours (noise, dropout, BatchNorm, padding)",
                "a draw that is not keyed by the sample",
            )
            return TokenComparison(same, wrong)
        off.add((epoch, index))
        tie = tie or f"{place}: {sampled}, a tie closer than {tie_below:g}"
    return TokenComparison(same, tie=tie)


def _drawn_tokens(steps: Sequence[Step]) -> dict[TokenKey, Token]:
    found: dict[TokenKey, Token] = {}
    for step in steps:
        for line in step.draws:
            for (epoch, index), token, margin in zip(line["ids"], line["tokens"], line["margins"]):
                times = 0
                while (key := (line["purpose"], line["step"], epoch, index, line["position"], times)) in found:
                    times += 1
                found[key] = token, margin
    return found


@dataclass
class Comparison:
    """What was compared in two runs, and the first difference."""

    stats: ComparisonStats = field(default_factory=ComparisonStats)
    steps: int = 0
    tokens: int = 0
    validations: int = 0
    """Validation rows."""
    difference: Difference | None = None
    tie: str = ""
    """The sentence about a sampled token that differs at a tie; what comes after cannot be compared."""


def compare(ours: Trace, theirs: Trace, names: RunNames, floor: Floor = STRICT) -> Comparison:
    """Go through both runs step by step until something differs by more than rounding."""
    found = Comparison(ComparisonStats(floor))
    for key in ours:
        if key not in theirs:
            break
        found.steps += 1
        for compare_part in (_compare_drawn_tokens, _compare_updates, _compare_states, _compare_validation):
            found.difference = compare_part(describe_step(key, ours), ours[key], theirs[key], names, found)
            if found.difference or found.tie:
                return found
    for key in [*ours, *theirs]:
        if (key in ours) != (key in theirs):
            only = names.ours if key in ours else names.theirs
            found.difference = Difference(
                "samples",
                f"{describe_step(key, {**ours, **theirs})} happens only at {only}; "
                + candidates(
                    "steps counted from batch_size or from the ranks (give bench.evaluation_feed a fixed batch)"
                ),
            )
            break
    return found


def _compare_drawn_tokens(
    place: str, ours: list[Step], theirs: list[Step], names: RunNames, found: Comparison
) -> Difference | None:
    tokens = compare_tokens(place, ours, theirs, (names.ours, names.theirs), found.stats.floor.tie)
    found.tokens += tokens.same
    found.tie = tokens.tie
    return Difference("tokens", tokens.wrong) if tokens.wrong else None


def _compare_updates(
    place: str, ours: list[Step], theirs: list[Step], names: RunNames, found: Comparison
) -> Difference | None:
    expected = _learners(ours[0])
    for rank, step in enumerate(theirs):
        if _learners(step) != expected:
            made = f"updates {_listed(_learners(step))} on rank {rank} at {names.theirs}"
            return Difference(
                "samples",
                f"{place} {made} and {_listed(expected)} at {names.ours}; "
                + candidates("an early return or a branch on what this rank alone has", "a branch on the batch size"),
            )
    for number, learner in enumerate(expected):
        update = place if learner == "model" else f"{place} ({learner})"
        mine, other = [s.updates[number] for s in ours], [s.updates[number] for s in theirs]
        difference = compare_update(UpdatePair(mine, other, update, names, first=not found.stats.updates), found.stats)
        if difference:
            return difference
    return None


def _learners(step: Step) -> list[str]:
    return [line["learner"] for line in step.updates]


def _listed(learners: Sequence[str]) -> str:
    return ", ".join(learners) or "nothing"


def _compare_states(
    place: str, ours: list[Step], theirs: list[Step], names: RunNames, found: Comparison
) -> Difference | None:
    """The state that a checkpoint would hold after the step: equal on all ranks, and close to the other run's."""
    for steps, name in ((ours, names.ours), (theirs, names.theirs)):
        for part, rank in _unequal_ranks(
            steps, lambda line: {key: held["hash"] for key, held in line["state"].items()}
        ):
            return Difference(
                "ranks",
                f"after {place} at {name} the state {part!r} of rank {rank} is not that of rank 0, which alone is "
                "saved; "
                + candidates("gradients that are not synchronised", "a state that depends on a rank's own rows"),
            )
    a, b = ours[0].closing_line, theirs[0].closing_line
    for part, held in (a["state"] if a and b else {}).items():
        assert b is not None
        other = b["state"].get(part, {"prints": {}})["prints"]
        if set(other) != set(held["prints"]):
            return Difference("gradients", f"after {place} the state {part!r} holds other tensors at {names.theirs}")
        size = sum(norm**2 for norm, _ in held["prints"].values()) ** 0.5
        for name, distant in fingerprint_distances(held["prints"], other, size):
            if found.stats.note_difference("gradients", distant, f"the state {part}/{name} after {place}"):
                shown = f"after {place} the state {part}/{name} differs by {distant:.1e} between {names.ours} and "
                return Difference("gradients", shown + names.theirs + _why_state(distant, ours, theirs, names))
    return None


def _why_state(distant: float, ours: Sequence[Step], theirs: Sequence[Step], names: RunNames) -> str:
    """The likely causes of a state that differs although the losses and gradients of the step agree."""
    updates = [line for step in (*ours, *theirs) for line in step.updates]
    so_far = ", though the losses and gradients before it agree" if updates else ""
    cause = known_causes(updates)
    if cause:
        return f"{so_far}: {cause}"
    rounding = [f"{LOW_PRECISION}, or rounding that the optimizer magnifies"] if distant <= SLIGHT else []
    own = f"the task changes it with weights, noise or an order of its own ({names.weighting})"
    return f"{so_far}; {candidates(*rounding, own)}"


def _unequal_ranks(steps: Sequence[Step], content: Callable[[Line], Mapping[str, object]]) -> Iterator[tuple[str, int]]:
    """Names whose content differs from that of rank 0, with the rank."""
    lines = [step.closing_line for step in steps]
    if lines[0] is None:
        return
    first = content(lines[0])
    for rank, line in enumerate(lines):
        own = content(line) if line else first
        yield from ((name, rank) for name in sorted({*first, *own}) if first.get(name) != own.get(name))


def _compare_validation(
    place: str, ours: list[Step], theirs: list[Step], names: RunNames, found: Comparison
) -> Difference | None:
    wrong = sample_difference(_validated(ours), _validated(theirs))
    if wrong:
        sentence = f"validation after {place} sees other rows at {names.theirs}: {wrong}; " + candidates(
            "padded validation", "validation rows that are split by hand or without the run's seed"
        )
        return Difference("validation", sentence)
    found.validations += _validated(ours).total()
    for name, rank in _unequal_ranks(theirs, lambda line: line["metrics"]):
        return Difference(
            "validation",
            f"after {place} at {names.theirs} the validation metric {name} of rank {rank} is not that of rank 0, but "
            "every rank must return the agreed one; " + candidates("each rank averages its own rows"),
        )
    a, b = ours[0].closing_line, theirs[0].closing_line
    for name, value in (a["metrics"] if a and b else {}).items():
        assert b is not None
        other = b["metrics"].get(name, float("nan"))
        apart = distance(value, other)
        if found.stats.note_difference("validation", apart, f"{name} after {place}"):
            shown = f"after {place} {name} is {value:.8g} at {names.ours} and {other:.8g} at {names.theirs}, though "
            shown += "the states agree" + (" and the recorded rows are the same" if _validated(ours) else "") + "; "
            return Difference("validation", shown + _why_metric(apart, bool(_validated(ours))))
    return None


def _why_metric(apart: float, same_rows: bool) -> str:
    if apart <= SLIGHT:
        return candidates(f"{LOW_PRECISION} in the validation", "a mean of means")
    padded = [] if same_rows else ["padded validation, which counts rows twice or leaves some out"]
    return candidates(*padded, "a mean of rank means", "a metric that depends on noise or on a row's neighbours")


def _validated(steps: Sequence[Step]) -> Counter[tuple[int, int]]:
    return count_ids(line for step in steps for line in step.validations)
