"""The data that is used when none is named: made-up pairs with a rule that a small network learns from the structure.

16 structures, each of two or three ideal helices and strands side by side, with four pairs each. Preferred sequences
have letters that often form helices on helices, and letters that often form strands on strands; unpreferred ones have
them the other way round.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from samestep import noise
from samestep.core.records import Json
from samestep.recipes.dpo.ideal_backbones import HELIX, STRAND, Fold, ideal_backbone, pdb_text, side_by_side
from samestep.recipes.dpo.structure_cache import write_on_any_rank

STRUCTURES = 16
FORMERS = {HELIX: "ALEKMQ", STRAND: "VITYFW"}
"""Amino acids that are frequent in each fold."""
_LENGTHS = (10, 18)
_MAKE = noise.purpose("dpo.default_pairs")
_SHAPE, _NATIVE = 0, 1
"""What a draw of a structure is for; pairs count on from here."""


def default_records(folder: Path) -> Path:
    """Write the data into `folder`, always the same bytes; the path of its records. All ranks may call this at once."""
    longest = {fold: ideal_backbone(fold, _LENGTHS[1]) for fold in FORMERS}
    records: list[Json] = []
    for number in range(STRUCTURES):
        name = f"ideal_{number:02d}.pdb"
        text, pairs = _structure(number, longest)
        _write(folder / name, text)
        records += [{"pdb_file": name, **pair} for pair in pairs]
    file = folder / "pairs.json"
    _write(file, json.dumps(records, indent=1) + "\n")
    return file


def _write(path: Path, text: str) -> None:
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_on_any_rank(path, content)


def _structure(number: int, longest: Mapping[Fold, np.ndarray]) -> tuple[str, list[dict[str, Json]]]:
    """The text of a PDB file, and its pairs."""
    chains = 2 + _draw(2, number, _SHAPE, 0)
    folds = [(HELIX, STRAND)[_draw(2, number, _SHAPE, 1, chain)] for chain in range(chains)]
    lengths = [_LENGTHS[0] + _draw(_LENGTHS[1] - _LENGTHS[0] + 1, number, _SHAPE, 2, chain) for chain in range(chains)]
    turns = [math.radians(_draw(360, number, _SHAPE, 3, chain)) for chain in range(chains)]
    backbones = side_by_side([longest[fold][:length] for fold, length in zip(folds, lengths)], turns)
    native = [_sequence(folds[chain], lengths[chain], number, _NATIVE, chain) for chain in range(chains)]
    return pdb_text(list(zip(native, backbones))), _pairs(number, folds, native)


def _pairs(number: int, folds: Sequence[Fold], native: Sequence[str]) -> list[dict[str, Json]]:
    """A pair for all chains, for the first and for the last beside the others, and for a part of all chains."""
    ids = "ABC"[: len(folds)]
    whole, first, last, part = (_letters(number, _NATIVE + 1 + pair, folds, native) for pair in range(4))
    kept = "".join(native)
    start, end = len(kept) // 4, len(kept) - len(kept) // 4 - 1
    inside = [kept[:start] + "".join(chains)[start : end + 1] + kept[end + 1 :] for chains in part]
    return [
        _record("/".join(chains) for chains in whole),
        _record(chains[0] for chains in first) | {"chain_id": ids[0], "fixed_chains": list(ids[1:])},
        _record(chains[-1] for chains in last) | {"design_chains": [ids[-1]], "fixed_chains": list(ids[:-1])},
        _record(inside) | {"mutable_ranges": [[start, end]]},
    ]


def _letters(number: int, draw: int, folds: Sequence[Fold], native: Sequence[str]) -> list[list[str]]:
    """Preferred and unpreferred sequences of all chains."""
    other = {HELIX: STRAND, STRAND: HELIX}
    return [
        [_sequence(fold, len(native[chain]), number, draw, chain, turn) for chain, fold in enumerate(letters_of)]
        for turn, letters_of in enumerate((folds, [other[fold] for fold in folds]))
    ]


def _record(pair: Iterable[str]) -> dict[str, Json]:
    return dict(zip(("preferred_seq", "unpreferred_seq"), pair))


def _sequence(fold: Fold, length: int, *key: int) -> str:
    letters = np.array(list(FORMERS[fold]))
    return "".join(letters[noise.scale(noise.words(_MAKE, *key, np.arange(length)), len(letters))])


def _draw(below: int, *key: int) -> int:
    return int(noise.scale(noise.words(_MAKE, *key), below))
