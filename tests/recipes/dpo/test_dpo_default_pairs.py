"""Ideal backbones and the pairs that are made for them, and the scripts that write data."""

import json
import math
import runpy
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import gemmi
import numpy as np
import pytest
from pdb_toys import chain

from samestep.cli.new import project_template
from samestep.data.records.reading import Records
from samestep.recipes.dpo.default_pairs import (
    FORMERS,
    HELIX,
    STRAND,
    Fold,
    default_records,
    ideal_backbone,
    pdb_text,
    side_by_side,
)
from samestep.recipes.dpo.families import ReadPairs
from samestep.recipes.dpo.protein_data import ProteinPair, read_pairs
from samestep.recipes.dpo.structures import AMINO_ACIDS, BACKBONE, Chain, parse_chains

SCRIPTS = Path(__file__).parents[3] / "benchmarks"
N, CA, C, O = range(4)  # noqa: E741


def dihedral(*atoms: np.ndarray) -> float:
    return math.degrees(gemmi.calculate_dihedral(*(gemmi.Position(*each) for each in atoms)))


def distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.linalg.norm(one - other))


@pytest.mark.parametrize("fold", [HELIX, STRAND])
def test_dihedral_angles(fold: Fold) -> None:
    r = ideal_backbone(fold, 8)
    for i in range(1, 7):
        assert dihedral(r[i - 1, C], r[i, N], r[i, CA], r[i, C]) == pytest.approx(fold.phi)
        assert dihedral(r[i, N], r[i, CA], r[i, C], r[i + 1, N]) == pytest.approx(fold.psi)
        assert abs(dihedral(r[i, CA], r[i, C], r[i + 1, N], r[i + 1, CA])) == pytest.approx(180)
        assert abs(dihedral(r[i, CA], r[i + 1, N], r[i, C], r[i, O])) == pytest.approx(180, abs=1e-4), "O is planar"
        assert distance(r[i, C], r[i, O]) == pytest.approx(1.231)
        assert distance(r[i, CA], r[i + 1, CA]) == pytest.approx(3.8, abs=0.05)


def test_a_helix_and_a_strand() -> None:
    """Metrics of textbooks: 1.5 Å a residue in a helix, with O bound to N four residues on; above 3 Å in a strand."""
    helix, strand = (side_by_side([ideal_backbone(fold, 30)], [0.0])[0] for fold in (HELIX, STRAND))
    assert np.ptp(helix[:, CA, 2]) / 29 == pytest.approx(1.5, abs=0.1)
    assert np.ptp(strand[:, CA, 2]) / 29 == pytest.approx(3.3, abs=0.2)
    assert distance(helix[3, O], helix[7, N]) == pytest.approx(3.0, abs=0.2)


def test_chains_stand_side_by_side() -> None:
    """They keep their shape, are not mirrored, and do not touch."""
    single = ideal_backbone(HELIX, 12)
    for backbone in (placed := side_by_side([single] * 3, [0.0, 1.0, 4.0])):
        np.testing.assert_allclose(_distances(backbone), _distances(single), atol=1e-9)
        assert dihedral(*backbone[4, [N, CA, C]], backbone[5, N]) == pytest.approx(HELIX.psi)
    for one, other in pairwise(placed):
        apart = np.linalg.norm(one.reshape(-1, 1, 3) - other.reshape(1, -1, 3), axis=-1)
        assert 2.5 < apart.min() < 10
        assert (one[-1, CA, 2] - one[0, CA, 2]) * (other[-1, CA, 2] - other[0, CA, 2]) < 0, "every second upside down"


def _distances(backbone: np.ndarray) -> np.ndarray:
    flat = backbone.reshape(-1, 3)
    return np.linalg.norm(flat[:, None] - flat[None], axis=-1)


def test_a_written_file_is_read_as_it_was() -> None:
    backbone = ideal_backbone(HELIX, len(AMINO_ACIDS))
    first, second = parse_chains(pdb_text([(AMINO_ACIDS, backbone), ("GA", backbone[:2])]).encode(), "x")
    assert (first.id, first.letters, second.id, second.letters) == ("A", AMINO_ACIDS, "B", "GA")
    np.testing.assert_allclose(first.coordinates, backbone, atol=6e-4)
    assert first.resolved.all() and first.coordinates.shape == (20, len(BACKBONE), 3)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return default_records(tmp_path_factory.mktemp("ideal"))


@pytest.fixture(scope="module")
def records(made: Path) -> ReadPairs[ProteinPair]:
    return read_pairs(Records(str(made)), max_length=200)


def fold_of(chain: Chain) -> Fold:
    """By the distance of neighbours but one: 5.5 Å in a helix, 6.5 in a strand."""
    return HELIX if distance(chain.coordinates[2, CA], chain.coordinates[4, CA]) < 6 else STRAND


def test_64_pairs_follow_the_rule(records: ReadPairs[ProteinPair]) -> None:
    assert len(records.pairs) == 64
    for pair in records.pairs:
        position = 0
        for each in pair.design.design_chains:
            own, other = (HELIX, STRAND) if fold_of(each) is HELIX else (STRAND, HELIX)
            for _ in each.letters:
                scored = pair.design.scored[position]
                assert pair.preferred[position] in FORMERS[own]
                assert pair.unpreferred[position] in FORMERS[other if scored else own]
                position += 1


def test_the_letters_alone_do_not_tell(records: ReadPairs[ProteinPair]) -> None:
    """Both folds are about as frequent, so a network has to look at the structure."""
    letters = "".join(
        letter for pair in records.pairs for letter, scored in zip(pair.preferred, pair.design.scored) if scored
    )
    share = sum(letter in FORMERS[HELIX] for letter in letters) / len(letters)
    assert 0.4 < share < 0.6


def test_every_kind_of_record_is_there(records: ReadPairs[ProteinPair]) -> None:
    assert {len(pair.design.chains) for pair in records.pairs} == {2, 3}
    assert sum(bool(pair.design.fixed_chains) for pair in records.pairs) == 32
    assert sum(not pair.design.mutable.all() for pair in records.pairs) == 16
    assert len({pair.identity() for pair in records.pairs}) == 64


def test_the_same_bytes_each_time(made: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(default_records, [tmp_path] * 4)) == {tmp_path / "pairs.json"}
    expected = {file.name: file.read_bytes() for file in made.parent.iterdir()}
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == expected and len(expected) == 17
    (tmp_path / "ideal_03.pdb").write_text("damaged")
    default_records(tmp_path)
    assert (tmp_path / "ideal_03.pdb").read_bytes() == expected["ideal_03.pdb"]


Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a script in this process, which has torch; its output and its errors."""

    def call(script: str, *args: str | Path) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", [script, *map(str, args)])
        runpy.run_path(str(SCRIPTS / script), run_name="__main__")
        return capsys.readouterr()

    return call


def test_the_script_of_the_default_data(made: Path, tmp_path: Path, run: Run) -> None:
    assert run("make_default_data.py", tmp_path / "new")[0].strip() == str(tmp_path / "new" / "pairs.json")
    assert (tmp_path / "new" / "pairs.json").read_bytes() == made.read_bytes()


def test_the_data_of_a_project_are_made_so(tmp_path: Path, run: Run) -> None:
    """414 records for 3 structures."""
    name = "test_data_real.json"
    run("make_default_data.py", tmp_path, "--structures", "3", "--pairs", "138", "--name", name)
    shipped = project_template("dpo") / "data" / "input"
    assert {file.name: file.read_bytes() for file in shipped.iterdir()} == {
        file.name: file.read_bytes() for file in tmp_path.iterdir()
    }
    pairs = read_pairs(Records(str(shipped / name)), max_length=200).pairs
    assert len(pairs) == len({pair.identity() for pair in pairs}) == 414


def test_the_script_of_real_pairs(tmp_path: Path, run: Run) -> None:
    structures = tmp_path / "structures"
    structures.mkdir()
    (structures / "a.pdb").write_text(chain("AGSKLVWX" * 5))
    (structures / "short.pdb").write_text(chain("AGS"))
    (structures / "empty.pdb").write_text("")
    out = tmp_path / "pairs.json"
    output, errors = run("make_real_pairs.py", structures, out, "--pairs", "2")
    assert output == f"{out}: 2 pairs\n"
    assert "empty.pdb is empty" in errors and "short.pdb has fewer than 20 residues" in errors
    first, second = read_pairs(Records(str(out)), 100).pairs
    assert first.preferred == "AGSKLVWX" * 5 and first.unpreferred != second.unpreferred
    for pair in (first, second):
        differ = [a != b for a, b in zip(pair.preferred, pair.unpreferred)]
        assert sum(differ) == round(0.3 * 35)
    before = json.loads(out.read_text())
    run("make_real_pairs.py", structures, out, "--pairs", "2")
    assert json.loads(out.read_text()) == before
