"""The split into training, validation and test: by what records say, whatever their order and their files."""

import gzip
import re
from pathlib import Path
from typing import Any

import gemmi
import numpy as np
import pytest
from dpo_runs import text_records, write_records
from hypothesis import given, settings
from hypothesis import strategies as st
from pdb_toys import chain, residue

from samestep import UserError, World
from samestep.recipes.dpo.config import DataConfig, DpoConfig
from samestep.recipes.dpo.designs import Design
from samestep.recipes.dpo.families import Pairs, ReadPairs
from samestep.recipes.dpo.protein_data import ProteinPair, ProteinRows, divide_proteins
from samestep.recipes.dpo.protein_family import ProteinFamily
from samestep.recipes.dpo.structures import Chain, Structure
from samestep.recipes.dpo.text_family import TextFamily


def pair(number: int, structure: int = 0) -> ProteinPair:
    coordinates = np.full((1, 4, 3), structure, np.float32)
    chain = Chain("A", "A", coordinates, np.ones(1, bool), np.zeros(1, np.int64), ("1",))
    design = Design(Structure((chain,), "of a file"), (chain,), (), np.ones(1, dtype=bool))
    return ProteinPair(number, Path("x.pdb"), design, f"{number}", "A")


def divided(pairs: list[ProteinPair], seed: int = 0, **data: Any) -> Pairs:
    return divide_proteins(DpoConfig(seed=seed, data=DataConfig(**data)), ReadPairs(pairs, []), None)


def numbers(rows: Any) -> list[int]:
    assert isinstance(rows, ProteinRows)
    return [pair.number for pair in rows.pairs]


@pytest.mark.parametrize("structures", [1, 9, 16])
def test_414_records(structures: int) -> None:
    """For 16 structures too: 26 or 52 records are not what was asked for."""
    found = divided([pair(number, number % structures) for number in range(414)])
    train, validation = numbers(found.train), numbers(found.validation)
    assert (len(train), len(validation)) == (372, 42) and found.split_by == "pair"
    assert train == sorted(train) and validation == sorted(validation)
    assert sorted(train + validation) == list(range(414))


def test_the_seed_decides() -> None:
    pairs = [pair(number) for number in range(100)]
    first, again, other = (numbers(divided(pairs, seed, split_by="pair").validation) for seed in (0, 0, 1))
    assert first == again != other


def test_structures_stay_together() -> None:
    pairs = [pair(number, number % 16) for number in range(64)]
    found = divided(pairs, 3, split_by="structure")
    sides = [{number % 16 for number in numbers(side)} for side in (found.train, found.validation)]
    assert not sides[0] & sides[1]
    assert len(found.validation) == 8  # 7 are wanted; two structures of four are closer than one


@pytest.mark.parametrize(
    ("structures", "each", "split_by"), [(9, 10, "pair"), (10, 10, "structure"), (20, 3, "structure"), (1, 60, "pair")]
)
def test_by_structure_where_there_are_enough(structures: int, each: int, split_by: str) -> None:
    found = divided([pair(number, number % structures) for number in range(structures * each)])
    assert found.split_by == split_by
    assert f"(split by {split_by})" in found.about[0]
    assert ("val/accuracy" in " ".join(found.about)) == (split_by == "pair")


def test_a_structure_with_most_of_the_records_is_no_reason_for_a_part_without_size() -> None:
    pairs = [pair(number, max(0, number - 60)) for number in range(70)]
    assert divided(pairs, validation_fraction=0.5).split_by == "pair"


def test_a_part_for_the_test() -> None:
    pairs = [pair(number, number % 20) for number in range(200)]
    found = divided(pairs, test_fraction=0.2)
    parts = [numbers(part) for part in (found.train, found.validation, found.test)]
    assert list(map(len, parts)) == [140, 20, 40] and sorted(number for part in parts for number in part) == list(
        range(200)
    )
    structures = [{number % 20 for number in part} for part in parts]
    assert not structures[0] & structures[1] and not (structures[0] | structures[1]) & structures[2]
    assert found.about == ["140 pairs for training, 20 pairs for validation, 40 pairs for test (split by structure)"]
    without = divided(pairs)
    assert not len(without.test) and set(numbers(without.validation)) == set(parts[1]), "the rest stays where it was"
    with pytest.raises(
        UserError, match=r"to less than 1 together, or nothing is left to train on; they are 0\.5 and 0\.5"
    ):
        DataConfig(validation_fraction=0.5, test_fraction=0.5)


def test_equal_records_stay_together() -> None:
    pairs = [pair(number % 25) for number in range(50)]
    for seed in range(20):
        found = divided(pairs, seed, split_by="pair")
        assert not set(numbers(found.train)) & set(numbers(found.validation)) and len(found.validation) in (4, 6)


def mmcif(text: str) -> str:
    structure = gemmi.read_pdb_string(text)
    structure.setup_entities()
    found: str = structure.make_mmcif_document().as_string()
    return found


PDB = chain("AGSKL")
COPIES = {
    "a.pdb": PDB.encode(),
    "b.pdb.gz": gzip.compress(PDB.encode()),
    "c.pdb": b"REMARK 1 another\n" + PDB.encode(),
    "d.pdb": PDB.replace(" 20.00", " 30.00").replace("   0.000", "  -0.000").encode(),
    "e.pdb": (PDB + residue("HOH", "A", 301, atoms=("O",), record="HETATM")).encode(),
    "f.cif": mmcif(PDB).encode(),
    "renumbered.pdb": re.sub(r"(?m)^(.{22}) *(\d+)", lambda found: f"{found[1]}{int(found[2]) + 100:4d}", PDB).encode(),
}
"""Files with the same structure."""


def protein_pairs(folder: Path, files: list[str], **settings: Any) -> Pairs:
    """The parts of two records for each file."""
    for name, content in COPIES.items():
        (folder / name).write_bytes(content)
    records = [
        {"pdb_file": name, "preferred_seq": f"AGSK{letter}", "unpreferred_seq": f"VGSK{letter}"}
        for name in files
        for letter in "LV"
    ]
    train = write_records(folder / "train.json", records)
    return ProteinFamily(DpoConfig(data=DataConfig(train=str(train), **settings)), World.single()).pairs()


@pytest.mark.parametrize("by", ["pair", "structure"])
def test_copies_of_a_structure_are_one(by: str, tmp_path: Path) -> None:
    files = list(COPIES)
    if by == "structure":
        with pytest.raises(UserError, match="the 14 here cannot be split in 2"):
            protein_pairs(tmp_path, files, split_by=by)
        return
    found = protein_pairs(tmp_path, files, split_by=by)
    assert sorted((len(found.train), len(found.validation))) == [7, 7]
    rows: list[Any] = [found.train, found.validation]
    kept = {id(one.design.structure.chains) for part in rows for one in part.pairs}
    assert len(kept) == 2, "in memory once for each way to number them"


def test_validation_records_that_are_in_training(tmp_path: Path) -> None:
    def records(file: str, *letters: str) -> list[dict[str, str]]:
        return [{"pdb_file": file, "preferred_seq": f"AGSK{one}", "unpreferred_seq": f"VGSK{one}"} for one in letters]

    def pairs(*validation: dict[str, str]) -> Pairs:
        other = write_records(tmp_path / "val.json", list(validation))
        return protein_pairs(tmp_path, ["a.pdb"], validation=str(other))

    found = pairs(*records("b.pdb.gz", "L", "A"), *records("c.pdb", "V", "S"))
    assert [one.preferred for one in found.validation.pairs] == ["AGSKA", "AGSKS"]  # type: ignore[attr-defined]
    val, train = tmp_path / "val.json", tmp_path / "train.json"
    assert found.about == [
        "2 pairs for training, 2 pairs for validation",
        f"2 of 4 records of {val} are in {train} too, and left out of validation",
        "of 2 pairs for validation, training has the structure of 2: for these, val/accuracy says what was "
        "remembered, not how well new ones are told apart",
    ]
    swapped = {"pdb_file": "a.pdb", "preferred_seq": "VGSKL", "unpreferred_seq": "AGSKL"}
    assert len(pairs(swapped).validation) == 1, "another pair of the same structure stays"
    with pytest.raises(UserError, match=f"all 2 of {val} are in {train}"):
        pairs(*records("c.pdb", "L", "V"))


def test_texts_likewise(tmp_path: Path) -> None:
    def pairs(**data: Any) -> Pairs:
        return TextFamily(DpoConfig(family="text", data=DataConfig(**data)), World.single()).pairs()

    records = text_records(20)
    train = write_records(tmp_path / "train.json", records)
    turned = [{name: record[name] for name in ("rejected", "chosen", "prompt")} for record in records[:3]]
    other = [*turned, {**records[3], "rejected": "else"}, {**records[4], "prompt": "new"}]
    found = pairs(train=str(train), validation=str(write_records(tmp_path / "val.json", other)))
    assert len(found.validation) == 2
    assert "3 of 5 records" in found.about[1]
    assert "training has the prompt of 1 and the preferred completion of 2: for these" in found.about[2]
    assert pairs(train=str(train)).split_by == "structure"
    one_prompt = write_records(tmp_path / "one.json", [{**record, "prompt": "p"} for record in records])
    found = pairs(train=str(one_prompt))
    assert found.split_by == "pair" and "training has the prompt of 2: for these" in found.about[1]
    assert "data.split_by" not in found.about[1], "there is only one prompt"


@settings(max_examples=50, deadline=None)
@given(
    structures=st.lists(st.integers(0, 9), min_size=2, max_size=40).filter(lambda s: len(set(s)) > 1),
    by=st.sampled_from(["auto", "pair", "structure"]),
    seed=st.integers(0, 99),
)
def test_every_record_is_on_one_side(structures: list[int], by: str, seed: int) -> None:
    pairs = [pair(number, structure) for number, structure in enumerate(structures)]
    found = divided(pairs, seed, split_by=by)
    assert sorted(numbers(found.train) + numbers(found.validation)) == list(range(len(pairs)))
    assert set(numbers(divided(pairs[::-1], seed, split_by=by).validation)) == set(numbers(found.validation))
