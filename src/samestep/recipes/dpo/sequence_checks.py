"""Whether the two sequences of a record fit their design. Problems are (kind, sentence), added to a list."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from samestep.recipes.dpo.designs import Design, some_of
from samestep.recipes.dpo.structures import AMINO_ACIDS, LETTERS, UNKNOWN

SEPARATORS = "/:"
"""What may stand between the chains of a sequence."""
Problems = list[tuple[str, str]]


def check_text(name: str, value: Any, problems: Problems) -> str | None:
    """A sequence as it is in the record; None if it has letters that no sequence may have."""
    if not isinstance(value, str):
        why = "missing" if value is None else f"no text but {str(value)[:40]!r}"
        problems.append(("letters", f"{name} is {why}; write the sequence in one-letter codes"))
        return None
    value = value.strip()
    if not value.strip(SEPARATORS):
        problems.append(("letters", f"{name} is empty; write the sequence in one-letter codes"))
        return None
    letters = [letter for letter in value if letter not in SEPARATORS]
    if wrong := _places(letters, lambda letter: letter not in LETTERS):
        problems.append(("letters", f"{name} has {wrong}; use only the 20 letters {AMINO_ACIDS}"))
        return None
    return value


def check_pair(texts: Mapping[str, str | None], design: Design, problems: Problems) -> None:
    """Check both sequences against the design chains, and against each other."""
    lengths_fit = [_check_length(name, text or "", design, problems) for name, text in texts.items()]
    if not all(lengths_fit):
        return
    preferred, unpreferred = (np.array([c for c in text or "" if c not in SEPARATORS]) for text in texts.values())
    for name, letters in zip(texts, (preferred, unpreferred)):
        scored = np.where(design.scored, letters, "")
        if wrong := _places(scored.tolist(), lambda letter: letter == UNKNOWN):
            problems.append(
                (
                    "letters",
                    f"{name} has {wrong}, where residues are scored; X may only stand where a residue is not mutable, "
                    "not resolved, or none of the 20 amino acids",
                )
            )
    differ = preferred != unpreferred
    if moved := np.flatnonzero(differ & ~design.mutable).tolist():
        problems.append(
            (
                "fixed positions",
                f"the two sequences differ at position {some_of(moved)}, which is not mutable; make them equal there, "
                "or the position mutable",
            )
        )
    elif not (differ & design.scored).any():
        problems.append(
            ("equal sequences", "the two sequences are equal at every scored position; give two that differ")
        )


def _check_length(name: str, text: str, design: Design, problems: Problems) -> bool:
    """One letter for each residue of the design chains; chain by chain, where the sequence has separators."""
    parts = [len(part) for part in re.split(f"[{SEPARATORS}]", text)]
    lengths = [len(chain) for chain in design.design_chains]
    chains = ", ".join(f"{length} in chain {chain.id!r}" for length, chain in zip(lengths, design.design_chains))
    if len(parts) > 1 and parts != lengths:
        has = f"{' + '.join(map(str, parts))} letters"
    elif sum(parts) != design.size:
        has = f"{sum(parts)} letters"
    else:
        return True
    problems.append(("length", f"{name} has {has} for {design.size} residues ({chains}){_gap_hint(parts, design)}"))
    return False


def _gap_hint(parts: list[int], design: Design) -> str:
    """Some programs write a letter for each residue number that the file leaves out."""
    with_gaps = sum(int(chain.residue_index[-1]) + 1 for chain in design.design_chains)
    if sum(parts) == with_gaps != design.size:
        return "; leave out the letters of residues that are missing in the file"
    return "; write one letter for each residue in the file"


def _places(letters: list[str], is_wrong: Any) -> str:
    """The wrong letters, each with the positions at which it is."""
    places: dict[str, list[int]] = {}
    for position, letter in enumerate(letters):
        if is_wrong(letter):
            places.setdefault(letter, []).append(position)
    some = [f"{letter!r} at position {_first(found)}" for letter, found in places.items()]
    return ", ".join(some[:5]) + (f" and {len(some) - 5} other letters" if len(some) > 5 else "")


def _first(positions: list[int]) -> str:
    return str(positions[0]) + (f" and {len(positions) - 1} more" if len(positions) > 1 else "")
