"""Sampled tokens must be the same at any world size, except at a tie."""

from collections.abc import Sequence
from dataclasses import dataclass

from samestep.doctor.facts import candidates
from samestep.doctor.floor import TIE
from samestep.doctor.trace import Step

Token = tuple[int, float]
"""What was sampled, and by how much it beat the next."""
TokenKey = tuple[str, int, int, int, int, int]
"""Purpose, step, epoch, index, position, and how often this was drawn before."""


@dataclass(frozen=True)
class Tokens:
    """How the tokens of one step compare."""

    same: int
    wrong: str = ""
    """The first one that differs and may not."""
    tie: str = ""
    """The first one that differs and may; what follows from it cannot be compared."""


def compare_tokens(
    where: str, ours: Sequence[Step], theirs: Sequence[Step], names: tuple[str, str], tie_below: float = TIE
) -> Tokens:
    """Compare the tokens of a step, by sample and position."""
    wanted, drawn = _drawn(ours), _drawn(theirs)
    same, tie = 0, ""
    off: set[tuple[int, int]] = set()  # samples that a tie sent another way
    for key, (token, margin) in wanted.items():
        purpose, _, epoch, index, position, _ = key
        other, other_margin = drawn.get(key, (None, margin))
        if (epoch, index) in off or token == other:
            same += token == other
            continue
        elsewhere = "none" if other is None else other
        sampled = f"{purpose!r} samples token {token} at {names[0]} and {elsewhere} at {names[1]}"
        place = f"{where}, sample ({epoch}, {index}), position {position}"
        if other is None or min(margin, other_margin) >= tie_below:
            wrong = f"{place}: {sampled}, though the two best are {margin:.1e} apart; " + candidates(
                "logits that depend on the rank or on the row's neighbours (noise, dropout, BatchNorm, padding)",
                "a draw keyed by something else than the sample",
            )
            return Tokens(same, wrong)
        off.add((epoch, index))
        tie = tie or f"{place}: {sampled}, a tie closer than {tie_below:g}"
    return Tokens(same, tie=tie)


def _drawn(steps: Sequence[Step]) -> dict[TokenKey, Token]:
    found: dict[TokenKey, Token] = {}
    for step in steps:
        for line in step.draws:
            for (epoch, index), token, margin in zip(line["ids"], line["tokens"], line["margins"]):
                times = 0
                while (key := (line["purpose"], line["step"], epoch, index, line["position"], times)) in found:
                    times += 1
                found[key] = token, margin
    return found
