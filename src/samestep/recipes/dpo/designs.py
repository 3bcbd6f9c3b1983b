"""What is designed in a structure: which chains, and which of their positions may change; and whether sequences fit.

The fields are `chain_id` or `design_chains`, `fixed_chains`, `mutable_positions` and `mutable_ranges` (ends included).
Positions count from 0 over the residues of the design chains, joined in the order in which these are named; or they are
named as in the file, by chain and residue number: A12, A52A.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samestep import UserError
from samestep.recipes.dpo.structures import AMINO_ACIDS, LETTERS, UNKNOWN, Chain, Structure

_COUNT = r"[0-9]{1,18}"
"""From 0. Python refuses to read thousands of digits."""
_NAME = rf"[A-Za-z][A-Za-z0-9]*?-?{_COUNT}[A-Za-z]?"
"""A chain and a residue's number in the file, which may be below 0 and have an insertion code."""
_RANGE = rf"\s*({_COUNT}|{_NAME})\s*-\s*({_COUNT}|{_NAME})\s*"
SEPARATORS = "/:"
"""What may stand between the chains of a sequence."""
Problems = list[tuple[str, str]]
"""Kinds, as in `DesignError.about`, and sentences."""


class DesignError(UserError):
    """A design that does not fit its structure; `about` says in a word or two what is wrong."""

    def __init__(self, about: str, sentence: str) -> None:
        super().__init__(sentence)
        self.about = about


@dataclass(frozen=True, eq=False)
class Design:
    """The chains that a sequence is for, and those that only stand beside them. Other chains are left out."""

    structure: Structure
    design_chains: tuple[Chain, ...]
    fixed_chains: tuple[Chain, ...]
    mutable: np.ndarray
    """[design residues], bool: where letters may change."""

    @property
    def chains(self) -> tuple[Chain, ...]:
        """All that the network sees: design chains as they are named, then fixed chains."""
        return (*self.design_chains, *self.fixed_chains)

    @property
    def length(self) -> int:
        """Residues that the network sees."""
        return sum(map(len, self.chains))

    @property
    def size(self) -> int:
        """Residues in the design chains."""
        return sum(map(len, self.design_chains))

    @property
    def native(self) -> str:
        """The letters of the design chains in the file."""
        return "".join(chain.letters for chain in self.design_chains)

    @property
    def scored(self) -> np.ndarray:
        """[design residues], bool: mutable and resolved, and one of the 20 amino acids in the file."""
        usable = [chain.resolved & chain.known for chain in self.design_chains]
        return self.mutable & np.concatenate(usable)

    def identity(self) -> str:
        """All that makes this design another one, as text."""
        names = [[chain.id for chain in chains] for chains in (self.design_chains, self.fixed_chains)]
        return f"{self.structure.content} {names} {np.flatnonzero(self.mutable).tolist()}"


def choose_design(structure: Structure, fields: Mapping[str, Any]) -> Design:
    """The design that a record's fields describe; all chains that are not fixed, if no design chain is named."""
    fixed = _chain_ids(fields, "fixed_chains")
    design = _design_ids(fields) or [chain_id for chain_id in structure.chain_ids if chain_id not in fixed]
    _check_chains(structure, design, fixed)
    chains = tuple(map(structure.chain, design))
    return Design(structure, chains, tuple(map(structure.chain, fixed)), _mutable(fields, chains))


def check_length(design: Design, most: int) -> None:
    """Refuse chains that have more residues than `most` together."""
    if design.length > most:
        raise DesignError("max_length", length_problem(design, most))


def length_problem(design: Design, most: int | None) -> str:
    """What is wrong with chains that have more residues than `most` together."""
    return (
        f"its chains have {design.length} residues, more than max_length={most}; raise max_length, or name fewer chains"
    )


def _design_ids(fields: Mapping[str, Any]) -> list[str]:
    named, single = _chain_ids(fields, "design_chains"), _chain_ids(fields, "chain_id")
    if len(single) > 1:
        raise DesignError("chains", f"chain_id names {len(single)} chains; name several in design_chains")
    if named and single and named != single:
        raise DesignError("chains", "chain_id and design_chains name different chains; leave one of them out")
    return named or single


def _chain_ids(fields: Mapping[str, Any], name: str) -> list[str]:
    """A list of chains, or text with commas or spaces between them."""
    value = fields.get(name)
    ids = re.split(r"[,\s]+", value.strip(", \t\n")) if isinstance(value, str) else value
    if value is None or ids == [""]:
        return []
    if not isinstance(ids, list) or not all(isinstance(each, str) for each in ids):
        raise DesignError("chains", f"{name} must be a list of chains such as ['A', 'B'], or text such as 'A,B'")
    return ids


def _check_chains(structure: Structure, design: Sequence[str], fixed: Sequence[str]) -> None:
    missing = [chain_id for chain_id in (*design, *fixed) if chain_id not in structure.chain_ids]
    twice = [chain_id for place, chain_id in enumerate((*design, *fixed)) if chain_id in (*design, *fixed)[:place]]
    if missing:
        raise DesignError(
            "chains", f"the structure has no chain {_listed(missing)}; it has {_listed(structure.chain_ids)}"
        )
    if twice:
        raise DesignError(
            "chains", f"chain {_listed(twice)} is named twice; name each once, in design_chains or in fixed_chains"
        )
    if not design:
        raise DesignError("chains", "every chain is fixed; name at least one in design_chains")


def _mutable(fields: Mapping[str, Any], chains: Sequence[Chain]) -> np.ndarray:
    """[residues], bool: the positions and the ranges that are named; every position, if neither is."""
    size = sum(map(len, chains))
    if all(fields.get(name) is None for name in ("mutable_positions", "mutable_ranges")):
        return np.ones(size, dtype=bool)
    named = [_position(each, chains) for each in _positions(fields.get("mutable_positions"))]
    for first, last in _ranges(fields.get("mutable_ranges")):
        start, end = _position(first, chains), _position(last, chains)
        if start > end:
            raise DesignError("positions", f"the range {first}-{last} of mutable_ranges ends before it begins")
        named += range(start, end + 1) if start >= 0 and end < size else [start, end]
    outside = sorted({position for position in named if not 0 <= position < size})
    if outside:
        raise DesignError(
            "positions",
            f"mutable position {some_of(outside)} is not in the design chains, whose {size} residues count from 0 to "
            f"{size - 1}; a residue by its number in the file is written with its chain, such as {chains[0].names[0]}",
        )
    mutable = np.zeros(size, dtype=bool)
    mutable[named] = True
    return mutable


def _position(place: int | str, chains: Sequence[Chain]) -> int:
    """Where a residue is in the design chains, joined: as it is, or by its name in the file."""
    if isinstance(place, int):
        return place
    names = [name for chain in chains for name in chain.names]
    if names.count(place) == 1:
        return names.index(place)
    if place in names:
        raise DesignError("positions", f"{place} is the name of two residues; count them from 0 instead")
    have = ", ".join(f"{chain.names[0]} to {chain.names[-1]}" for chain in chains)
    raise DesignError("positions", f"the design chains have no residue {place}; they have {have}")


def _positions(value: Any) -> list[int | str]:
    """[0, 5, "A12"], or text such as "0,5,A12"."""
    if value is None:
        return []
    parts = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    places = [_place(part) for part in parts] if isinstance(parts, list) else [None]
    if any(place is None for place in places):
        raise DesignError(
            "positions", "mutable_positions must be a list such as [0, 5], or with numbers of the file ['A1', 'A6']"
        )
    return [place for place in places if place is not None]


def _place(value: Any) -> int | str | None:
    """A count from 0, or a residue's name in the file; None if it is neither."""
    if isinstance(value, str) and re.fullmatch(_COUNT, value):
        return int(value)
    is_name = isinstance(value, str) and re.fullmatch(_NAME, value)
    return value if is_name or (isinstance(value, int) and not isinstance(value, bool)) else None


def _ranges(value: Any) -> list[tuple[int | str, int | str]]:
    """[[3, 9], ["A12", "A20"]], or text such as "3-9,A12-A20", or a list of such texts."""
    if value is None:
        return []
    parts = re.split(r"[,\s]+", value.strip(", \t\n")) if isinstance(value, str) else value
    ranges = []
    for part in parts if isinstance(parts, list) else [None]:
        if isinstance(part, str) and (found := re.fullmatch(_RANGE, part)):
            part = list(found.groups())
        first, last = map(_place, part) if isinstance(part, list) and len(part) == 2 else (None, None)
        if first is None or last is None:
            raise DesignError(
                "positions",
                "mutable_ranges must be a list such as [[3, 9], ['A12', 'A20']], or text such as '3-9,A12-A20'",
            )
        if type(first) is not type(last):
            raise DesignError(
                "positions",
                f"the range {first}-{last} of mutable_ranges counts one end from 0 and names the other; write both "
                "alike, such as 3-9 or A12-A20",
            )
        ranges.append((first, last))
    return ranges


def some_of(positions: Sequence[int]) -> str:
    """The first few positions, and how many more there are."""
    return ", ".join(map(str, positions[:5])) + (f" and {len(positions) - 5} more" if len(positions) > 5 else "")


def _listed(chain_ids: Sequence[str]) -> str:
    return ", ".join(map(repr, chain_ids))


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


def pair_problems(texts: Mapping[str, str], design: Design) -> Iterator[tuple[str, str]]:
    """What is wrong with two sequences for the design chains, and with one beside the other."""
    lengths = [problem for name, text in texts.items() if (problem := _length_problem(name, text, design))]
    yield from lengths
    if lengths:
        return
    preferred, unpreferred = (np.array([c for c in text if c not in SEPARATORS]) for text in texts.values())
    for name, letters in zip(texts, (preferred, unpreferred)):
        scored = np.where(design.scored, letters, "")
        if wrong := _places(scored.tolist(), lambda letter: letter == UNKNOWN):
            yield (
                "letters",
                f"{name} has {wrong}, where residues are scored; X may only stand where a residue is not mutable, "
                "not resolved, or none of the 20 amino acids",
            )
    differ = preferred != unpreferred
    if moved := np.flatnonzero(differ & ~design.mutable).tolist():
        yield (
            "fixed positions",
            f"the two sequences differ at position {some_of(moved)}, which is not mutable; make them equal there, or "
            "the position mutable",
        )
    elif not (differ & design.scored).any():
        yield "equal sequences", "the two sequences are equal at every scored position; give two that differ"


def _length_problem(name: str, text: str, design: Design) -> tuple[str, str] | None:
    """One letter for each residue of the design chains; chain by chain, where the sequence has separators."""
    parts = [len(part) for part in re.split(f"[{SEPARATORS}]", text)]
    lengths = [len(chain) for chain in design.design_chains]
    if sum(parts) == design.size and (len(parts) == 1 or parts == lengths):
        return None
    has = " + ".join(map(str, parts)) if len(parts) > 1 and parts != lengths else sum(parts)
    chains = ", ".join(f"{length} in chain {chain.id!r}" for length, chain in zip(lengths, design.design_chains))
    return "length", f"{name} has {has} letters for {design.size} residues ({chains}){_gap_hint(parts, design)}"


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
    some = [
        f"{letter!r} at position {found[0]}" + (f" and {len(found) - 1} more" if len(found) > 1 else "")
        for letter, found in places.items()
    ]
    return ", ".join(some[:5]) + (f" and {len(some) - 5} other letters" if len(some) > 5 else "")
