"""The data that is used when none is named: made-up pairs with a rule that a small network learns from the structure.

16 structures, each of two or three ideal helices and strands side by side, with four pairs each. Preferred sequences
have letters that often form helices on helices, and letters that often form strands on strands; unpreferred ones have
them the other way round.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from samestep import noise
from samestep.core.json_files import Json
from samestep.recipes.dpo.structures import BACKBONE, import_gemmi, write_on_any_rank

# Bonds in Å and angles in degrees, as peptides have them on average (Engh and Huber).
_N_CA, _CA_C, _C_N, _C_O = 1.458, 1.525, 1.329, 1.231
_N_CA_C, _CA_C_N, _C_N_CA, _CA_C_O = 111.0, 117.2, 121.7, 120.1
_TRANS = 180.0
_APART = 10.0
"""How far neighbouring chains are from each other, in Å."""


@dataclass(frozen=True)
class Fold:
    """A regular backbone, by its dihedral angles in degrees."""

    phi: float
    psi: float


HELIX = Fold(-57.0, -47.0)
STRAND = Fold(-119.0, 113.0)
STRUCTURES, PAIRS = 16, 4
FORMERS = {HELIX: "ALEKMQ", STRAND: "VITYFW"}
"""Amino acids that are frequent in each fold."""
_LENGTHS = (10, 18)
_MAKE = noise.purpose("dpo.default_pairs")
_SHAPE, _NATIVE = 0, 1
"""What a draw of a structure is for; pairs count on from here."""


def default_records(folder: Path, structures: int = STRUCTURES, pairs: int = PAIRS, name: str = "pairs.json") -> Path:
    """Write the data into `folder`, always the same bytes; the path of its records. All ranks may call this at once."""
    longest = {fold: ideal_backbone(fold, _LENGTHS[1]) for fold in FORMERS}
    records: list[Json] = []
    for number in range(structures):
        structure = f"ideal_{number:02d}.pdb"
        text, of_structure = _structure(number, longest, pairs)
        _write(folder / structure, text)
        records += [{"pdb_file": structure, **pair} for pair in of_structure]
    file = folder / name
    _write(file, "[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")
    return file


def _write(path: Path, text: str) -> None:
    content = text.encode()
    if not path.is_file() or path.read_bytes() != content:
        write_on_any_rank(path, content)


def _structure(number: int, longest: Mapping[Fold, np.ndarray], pairs: int) -> tuple[str, list[dict[str, Json]]]:
    """The text of a PDB file, and its pairs."""
    chains = 2 + _draw(2, number, _SHAPE, 0)
    folds = [(HELIX, STRAND)[_draw(2, number, _SHAPE, 1, chain)] for chain in range(chains)]
    lengths = [_LENGTHS[0] + _draw(_LENGTHS[1] - _LENGTHS[0] + 1, number, _SHAPE, 2, chain) for chain in range(chains)]
    turns = [math.radians(_draw(360, number, _SHAPE, 3, chain)) for chain in range(chains)]
    backbones = side_by_side([longest[fold][:length] for fold, length in zip(folds, lengths)], turns)
    native = [_sequence(folds[chain], lengths[chain], number, _NATIVE, chain) for chain in range(chains)]
    return pdb_text(list(zip(native, backbones))), [_pair(number, draw, folds, native) for draw in range(pairs)]


def _pair(number: int, draw: int, folds: Sequence[Fold], native: Sequence[str]) -> dict[str, Json]:
    """By turns for all chains, for the first and for the last beside the others, and for a part of all chains."""
    ids = "ABC"[: len(folds)]
    letters = _letters(number, _NATIVE + 1 + draw, folds, native)
    match draw % 4:
        case 0:
            return _record("/".join(chains) for chains in letters)
        case 1:
            return _record(chains[0] for chains in letters) | {"chain_id": ids[0], "fixed_chains": list(ids[1:])}
        case 2:
            own: dict[str, Json] = {"design_chains": [ids[-1]], "fixed_chains": list(ids[:-1])}
            return _record(chains[-1] for chains in letters) | own
    kept = "".join(native)
    start, end = len(kept) // 4, len(kept) - len(kept) // 4 - 1
    inside = [kept[:start] + "".join(chains)[start : end + 1] + kept[end + 1 :] for chains in letters]
    return _record(inside) | {"mutable_ranges": [[start, end]]}


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


def ideal_backbone(fold: Fold, length: int) -> np.ndarray:
    """[length, 4, 3], float64: N, CA, C and O of each residue."""
    corner = math.radians(180 - _N_CA_C)
    first = [np.zeros(3), np.array([_N_CA, 0.0, 0.0])]
    first.append(first[1] + _CA_C * np.array([math.cos(corner), math.sin(corner), 0.0]))
    atoms = [first]
    for _ in range(length):  # each turn places the O of one residue and begins the next; the last one is cut off
        n, ca, c = atoms[-1]
        next_n = _place(n, ca, c, _C_N, _CA_C_N, fold.psi)
        next_ca = _place(ca, c, next_n, _N_CA, _C_N_CA, _TRANS)
        next_c = _place(c, next_n, next_ca, _CA_C, _N_CA_C, fold.phi)
        atoms[-1] = [n, ca, c, _place(n, ca, c, _C_O, _CA_C_O, fold.psi + 180)]
        atoms.append([next_n, next_ca, next_c])
    return np.array(atoms[:length])


def _place(a: np.ndarray, b: np.ndarray, c: np.ndarray, bond: float, angle: float, dihedral: float) -> np.ndarray:
    """The atom after a, b and c: a bond from c, its angle at c and its dihedral angle around b and c, in degrees."""
    along = _unit(c - b)
    normal = _unit(np.cross(b - a, along))
    bend, turn = math.radians(180 - angle), math.radians(dihedral)
    across = math.cos(turn) * np.cross(normal, along) + math.sin(turn) * normal
    return c + bond * (math.cos(bend) * along + math.sin(bend) * across)


def side_by_side(backbones: Sequence[np.ndarray], turns: Sequence[float]) -> list[np.ndarray]:
    """Chains with their axes along z, every second one upside down, each turned by an angle around its axis."""
    placed = []
    for place, (backbone, turn) in enumerate(zip(backbones, turns)):
        upright = (backbone - backbone[:, 1].mean(0)) @ _frame(backbone).T
        if place % 2:
            upright = upright * np.array([1.0, -1.0, -1.0])
        cos, sin = math.cos(turn), math.sin(turn)
        around = np.array([[cos, -sin, 0.0], [sin, cos, 0.0], [0.0, 0.0, 1.0]])
        placed.append(upright @ around.T + np.array([place * _APART, 0.0, 0.0]))
    return placed


def _frame(backbone: np.ndarray) -> np.ndarray:
    """Three axes as rows, the last from the beginning of a chain to its end."""
    alphas = backbone[:, 1]
    z = _unit(alphas[-4:].mean(0) - alphas[:4].mean(0))
    x = _unit(np.cross(z, alphas[1] - alphas[0]))
    return np.stack([x, np.cross(z, x), z])


def _unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def pdb_text(chains: Sequence[tuple[str, np.ndarray]]) -> str:
    """A PDB file with these chains, A, B and so on: letters, and backbones as `ideal_backbone` gives them."""
    gemmi = import_gemmi()
    model = gemmi.Model(1)
    for chain_id, (letters, backbone) in zip("ABCDEFGH", chains):
        chain = gemmi.Chain(chain_id)
        for number, (letter, places) in enumerate(zip(letters, backbone), start=1):
            residue = gemmi.Residue()
            residue.name = gemmi.expand_one_letter(letter, gemmi.ResidueKind.AA)
            residue.seqid = gemmi.SeqId(number, " ")
            for name, element, place in zip(BACKBONE, "NCCO", places):
                atom = gemmi.Atom()
                atom.name, atom.element, atom.pos = name, gemmi.Element(element), gemmi.Position(*place)
                residue.add_atom(atom)
            chain.add_residue(residue)
        model.add_chain(chain)
    structure = gemmi.Structure()
    structure.add_model(model)
    structure.setup_entities()
    text: str = structure.make_pdb_string(gemmi.PdbWriteOptions(minimal=True))
    return text
