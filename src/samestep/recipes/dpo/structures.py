"""Protein structures: the backbone and the letters of every chain in a PDB or mmCIF file, gzipped or not.

- Residues come in the order of the file. 52, 52A and 53 are three of them. Waters, ligands, caps and nucleic acids are
  left out, and of several models the first is read.
- A residue that lacks one of the four backbone atoms is not resolved: its coordinates are 0.
- Of alternate locations one conformer is taken for the whole residue: the one with most backbone atoms, then with the
  highest occupancy, then the first by letter. The published program takes each atom from the first line that has it.
- A modified residue has the letter of its parent (MSE is M). Where that is none of the 20, the letter is X.
- Chains and residues are numbered as in the PDB file (mmCIF: the author's names), so both formats give the same.

A file is parsed once, and then read from a cache folder, where the hash of its bytes is the name.
"""

import gzip
import hashlib
import io
import json
import math
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from safetensors.numpy import load, save

from samestep import UserError
from samestep.core.json_files import atomic_file

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
UNKNOWN = "X"
LETTERS = AMINO_ACIDS + UNKNOWN
"""The letters of a sequence by their number."""
BACKBONE = ("N", "CA", "C", "O")
_NO_LETTER = "\0"
"""The alternate location of an atom that has only one."""
MOST_BYTES = 128 << 20
"""Of a file when it is unpacked: more than a million atoms."""
_WANTED = "Give a PDB or mmCIF file, gzipped or not"
_VERSION = 2
"""Counts up whenever a file would be parsed differently."""
_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, eq=False)
class Chain:
    """One chain of a structure."""

    id: str
    letters: str
    coordinates: np.ndarray
    """[residues, 4, 3], float32: N, CA, C and O of each residue, in Å; 0 where a residue is not resolved."""
    resolved: np.ndarray
    """[residues], bool: whether a residue has all four."""
    residue_index: np.ndarray
    """[residues], int64: from 0, one more for each residue, and for each number that the file leaves out."""
    numbers: tuple[str, ...]
    """The residues' numbers in the file, with insertion codes: 52, 52A."""

    def __len__(self) -> int:
        return len(self.letters)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The residues' names, chain and number: A52, A52A."""
        return tuple(f"{self.id}{number}" for number in self.numbers)

    @property
    def known(self) -> np.ndarray:
        """[residues], bool: whether a residue is one of the 20 amino acids."""
        return np.array([letter != UNKNOWN for letter in self.letters], dtype=bool)


@dataclass(frozen=True, eq=False)
class Structure:
    """The chains of a file, and the hash of its bytes."""

    chains: tuple[Chain, ...]
    sha256: str

    @cached_property
    def content(self) -> str:
        """A hash of what was read of the file, however it is packed and whatever else it says: equal where a network
        cannot tell two files apart. Numbers of residues count by their steps alone."""
        digest = hashlib.sha256()
        for chain in sorted(self.chains, key=lambda chain: chain.id):
            digest.update(json.dumps([chain.id, chain.letters]).encode())
            for array in (chain.coordinates + 0.0, chain.resolved, chain.residue_index):  # -0.0 becomes 0.0
                digest.update(array.tobytes())
        return digest.hexdigest()

    def chain(self, chain_id: str) -> Chain:
        """The chain with this name, which must be there."""
        return next(chain for chain in self.chains if chain.id == chain_id)

    @property
    def chain_ids(self) -> list[str]:
        return [chain.id for chain in self.chains]


def read_structure(path: Path, cache: Path | None) -> Structure:
    """The structure in a file. All ranks may call this at once; without a folder `cache`, nothing is kept."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise too_large(str(path))
        content = path.read_bytes()
    except OSError as problem:
        raise UserError(f"Give a structure file that can be read; {path} cannot: {problem.strerror}.") from None
    sha256 = hashlib.sha256(content).hexdigest()
    kept = cache / f"{sha256}-{_VERSION}.chains" if cache else None
    chains = _kept_chains(kept) if kept else None
    if chains is None:
        chains = parse_chains(content, str(path))
        if kept:
            with suppress(OSError):  # a full disk or a folder of others: the structure is parsed again next time
                write_on_any_rank(kept, _packed(chains))
    return Structure(chains, sha256)


def write_on_any_rank(path: Path, content: bytes) -> None:
    """Write a file that other ranks may be writing, with the same content. The last rename wins."""
    with atomic_file(path, sync=False) as file:
        file.write(content)


def _kept_chains(path: Path) -> tuple[Chain, ...] | None:
    """The chains that were kept; None if there are none, or the file is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    digest, arrays = content[:_DIGEST], content[_DIGEST:]
    return _chains_of(arrays) if hashlib.sha256(arrays).digest() == digest else None


def _packed(chains: tuple[Chain, ...]) -> bytes:
    """Chains as bytes: a hash, then safetensors."""
    text = json.dumps([[chain.id, chain.letters, chain.numbers] for chain in chains]).encode()
    arrays = {
        "text": np.frombuffer(text, dtype=np.uint8),
        "coordinates": np.concatenate([chain.coordinates for chain in chains]),
        "resolved": np.concatenate([chain.resolved for chain in chains]),
        "residue_index": np.concatenate([chain.residue_index for chain in chains]),
    }
    content = save(arrays)
    return hashlib.sha256(content).digest() + content


def _chains_of(content: bytes) -> tuple[Chain, ...]:
    arrays = load(content)
    names = json.loads(arrays["text"].tobytes())
    edges = np.cumsum([len(letters) for _, letters, _ in names])[:-1]
    columns = (np.split(arrays[name], edges) for name in ("coordinates", "resolved", "residue_index"))
    return tuple(
        Chain(chain_id, letters, coordinates, resolved, residue_index, tuple(numbers))
        for (chain_id, letters, numbers), coordinates, resolved, residue_index in zip(names, *columns)
    )


def parse_chains(content: bytes, name: str) -> tuple[Chain, ...]:
    """The chains in the bytes of a file; `name` is for messages. Only the bytes decide how they are read."""
    text = _unpacked(content, name).decode("latin-1")
    if not text.strip():
        raise UserError(f"{_WANTED}; {name} is empty.")
    model = _first_model(text, name)
    parts = [(chain, [residue for residue in chain if _is_protein(residue)]) for chain in model or ()]
    chains = [_chain(chain, residues, name) for chain, residues in parts if residues]
    if not chains:
        raise UserError(f"{_WANTED}, with protein chains; {name} has none.")
    return tuple(chains)


def import_gemmi() -> ModuleType:
    """The library that reads and writes structures."""
    try:
        import gemmi
    except ImportError:
        raise UserError('Protein structures need the library gemmi: pip install "samestep[protein]"') from None
    return gemmi


def _unpacked(content: bytes, name: str) -> bytes:
    """The bytes of the structure itself, which are never more than `MOST_BYTES`."""
    if content.startswith(b"\x1f\x8b"):
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
                content = packed.read(MOST_BYTES + 1)
        except (OSError, EOFError, zlib.error):
            raise UserError(f"Copy {name} again: it is gzipped, and cut off or damaged.") from None
    if len(content) > MOST_BYTES:
        raise too_large(name)
    return content


def too_large(name: str) -> UserError:
    """For a file with more than a million atoms, or one that grows when it is unpacked."""
    return UserError(
        f"Give a smaller structure, such as a few of its chains: {name} has more than {MOST_BYTES >> 20} MiB when it "
        "is unpacked."
    )


def _first_model(text: str, name: str) -> Any:
    """The first model, with residues marked as polymer, ligand or water; None if there is no model."""
    gemmi = import_gemmi()
    try:
        if _is_mmcif(text):
            with_atoms = [block for block in gemmi.cif.read_string(text) if len(block.find_loop("_atom_site.id"))]
            structure = gemmi.make_structure_from_block(with_atoms[0]) if with_atoms else gemmi.Structure()
        else:
            _check_columns(text, name)
            structure = gemmi.read_pdb_string(text)
    except (ValueError, RuntimeError, IndexError) as problem:
        why = " ".join(str(problem).split())[:200]
        raise UserError(f"{_WANTED}; {name} cannot be read as one: {why}.") from None
    structure.merge_chain_parts()
    structure.setup_entities()
    return structure[0] if len(structure) else None


def _is_mmcif(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "").lower().startswith("data_")


def _check_columns(text: str, name: str) -> None:
    """Refuse what gemmi would take for 0: coordinates that are no numbers, such as the stars of a value too long."""
    for line in text.splitlines():
        if line.startswith("ENDMDL"):
            return
        if not line.startswith(("ATOM", "HETATM")) or line[12:16].strip() not in BACKBONE:
            continue
        try:
            numbers = [float(line[start : start + 8]) for start in (30, 38, 46)]
        except ValueError:
            numbers = [math.nan]
        _check_finite(numbers, name, line[21:22].strip(), line[22:27].strip(), line[12:16].strip())


def _check_finite(numbers: Sequence[float], name: str, chain: str, residue: str, atom: str) -> None:
    if not all(map(math.isfinite, numbers)):
        raise UserError(
            f"Fix {name}, or leave out this atom: in chain {chain!r}, residue {residue}, a coordinate of {atom} is no "
            "finite number."
        )


def _is_protein(residue: Any) -> bool:
    gemmi = import_gemmi()
    known = gemmi.find_tabulated_residue(residue.name)
    if residue.entity_type != gemmi.EntityType.Polymer:
        # Some programs write TER at every break of a chain, and gemmi takes what comes after the last one for ligands.
        return bool(known.is_amino_acid() and known.is_standard() and residue.het_flag == "A")
    is_calcium = residue.name == "CA"
    return bool(known.is_amino_acid() or (residue.find_atom("CA", "*") is not None and not is_calcium))


def _chain(chain: Any, residues: Sequence[Any], name: str) -> Chain:
    conformers = [_conformer(group, chain.name, name) for group in _by_number(residues, chain.name, name)]
    coordinates = np.zeros((len(conformers), len(BACKBONE), 3), dtype=np.float32)
    resolved = np.zeros(len(conformers), dtype=bool)
    for position, (residue, atoms) in enumerate(conformers):
        places = [(atom.pos.x, atom.pos.y, atom.pos.z) for atom in atoms]
        for atom, place in zip(atoms, places):
            _check_finite(place, name, chain.name, str(residue.seqid), atom.name)
        if len(atoms) == len(BACKBONE):
            coordinates[position], resolved[position] = places, True
    letters = "".join(_letter(residue.name) for residue, _ in conformers)
    places_in_file = [residue.seqid for residue, _ in conformers]
    index = _residue_index([place.num for place in places_in_file])
    return Chain(chain.name, letters, coordinates, resolved, index, tuple(map(str, places_in_file)))


def _by_number(residues: Sequence[Any], chain: str, name: str) -> Iterator[list[Any]]:
    """Residues of one number: several, if alternate locations are different amino acids."""
    seen = set()
    for number, group in groupby(residues, key=lambda residue: str(residue.seqid)):
        if number in seen:
            raise _repeated(number, chain, name)
        seen.add(number)
        yield list(group)


def _conformer(group: Sequence[Any], chain: str, name: str) -> tuple[Any, list[Any]]:
    """The residue that is taken, and those of its backbone atoms that are there."""
    choices = [(residue, letter) for residue in group for letter in _letters_of(residue)]
    if sum(letter == _NO_LETTER for _, letter in choices) > 1:
        raise _repeated(str(group[0].seqid), chain, name)
    found = [(residue, _atoms(residue, letter, chain, name), letter) for residue, letter in choices]
    residue, atoms, _ = min(found, key=lambda each: (-len(each[1]), -_occupancy(each[1]), each[2]))
    return residue, atoms


def _letters_of(residue: Any) -> list[str]:
    """The alternate locations that its backbone has."""
    letters = {atom.altloc for atom in residue if atom.name in BACKBONE}
    return sorted(letters - {_NO_LETTER}) or [_NO_LETTER]


def _atoms(residue: Any, letter: str, chain: str, name: str) -> list[Any]:
    """The backbone atoms of one conformer; atoms without a letter belong to every one."""
    atoms = []
    for wanted in BACKBONE:
        same = [atom for atom in residue if atom.name == wanted]
        own = [atom for atom in same if atom.altloc == letter] or [atom for atom in same if atom.altloc == _NO_LETTER]
        if len(own) > 1:
            raise _repeated(str(residue.seqid), chain, name)
        atoms += own
    return atoms


def _occupancy(atoms: Sequence[Any]) -> float:
    return round(sum(atom.occ for atom in atoms), 4)


def _repeated(number: str, chain: str, name: str) -> UserError:
    return UserError(
        f"Fix {name}: chain {chain!r} has residue {number} twice; give every chain a name of its own, and every "
        "residue a number."
    )


def _letter(residue_name: str) -> str:
    letter = import_gemmi().find_tabulated_residue(residue_name).one_letter_code.upper()
    return letter if letter in AMINO_ACIDS else UNKNOWN


def _residue_index(numbers: Sequence[int]) -> np.ndarray:
    """Numbers that go on by more than one are a gap; an insertion code, or a number that goes back, is one step."""
    return np.cumsum([0, *(max(1, after - before) for before, after in pairwise(numbers))], dtype=np.int64)
