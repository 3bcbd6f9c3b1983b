"""Rows of tensors: what is scored and fixed, letters as numbers, chains one after the other, padding."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from pdb_toys import BACKBONE, chain, place, residue

from samestep.core.errors import UserError
from samestep.data.chosen_rows import ReadOptions
from samestep.data.collate import pad_rows
from samestep.data.feed import Feed
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.order import Sequential
from samestep.data.order_choice import Bucketed, choose_order
from samestep.data.records.reading import Records
from samestep.recipes.dpo.families import padding
from samestep.recipes.dpo.protein_data import PAD, ProteinRows, read_pairs
from samestep.recipes.dpo.protein_family import ProteinFamily
from samestep.world.world import World

ALPHABET = "ACDEFGHIKLMNPQRSTVWYX"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    last = residue("VAL", "C", 1) + residue("GLY", "C", 4, atoms=BACKBONE[:3]) + residue("UNK", "C", 5) + "TER\n"
    (tmp_path / "three.pdb").write_text(chain("AGSK", "A") + chain("WW", "B") + last)
    return tmp_path


def rows_of(folder: Path, *records: dict[str, Any]) -> ProteinRows:
    usual = {"pdb_file": "three.pdb", "preferred_seq": "AGSK", "unpreferred_seq": "VGSK", "chain_id": "A"}
    (folder / "pairs.json").write_text(json.dumps([usual | record for record in records]))
    found = read_pairs(Records(str(folder / "pairs.json")), 100)
    return ProteinRows(found.pairs, found.origins)


def text(numbers: torch.Tensor) -> str:
    return "".join(ALPHABET[number] for number in numbers.tolist())


def test_a_row_with_a_fixed_chain(folder: Path) -> None:
    row = rows_of(folder, {"fixed_chains": "C", "mutable_positions": [0, 2]})[0]
    assert text(row["native"]) == text(row["preferred"]) == "AGSKVGX" and text(row["unpreferred"]) == "VGSKVGX"
    assert row["scored"].tolist() == [True, False, True, False, False, False, False]
    assert row["fixed"].tolist() == [False, True, False, True, True, True, True]
    assert row["resolved"].tolist() == [True] * 5 + [False, True]
    assert row["chain"].tolist() == [1, 1, 1, 1, 2, 2, 2]
    assert row["residue_index"].tolist() == [0, 1, 2, 3, 104, 107, 108]
    torch.testing.assert_close(row["coordinates"][2], torch.tensor([place(3, name) for name in BACKBONE]))
    types = {name: value.dtype for name, value in row.items()}
    assert types == {
        "coordinates": torch.float32,
        "resolved": torch.bool,
        "residue_index": torch.int64,
        "chain": torch.int64,
        "scored": torch.bool,
        "fixed": torch.bool,
        "native": torch.int64,
        "preferred": torch.int64,
        "unpreferred": torch.int64,
        "record": torch.int64,
    }


def test_design_chains_come_as_they_are_named(folder: Path) -> None:
    fields = {"chain_id": None, "design_chains": ["C", "A"], "fixed_chains": ["B"]}
    row = rows_of(folder, fields | {"preferred_seq": "LXAAGSK", "unpreferred_seq": "ALMAGSK"})[0]
    assert text(row["preferred"]) == "LXAAGSKWW" and text(row["unpreferred"]) == "ALMAGSKWW"
    assert text(row["native"]) == "VGXAGSKWW"
    assert row["scored"].tolist() == [True, False, False, True, True, True, True, False, False]
    assert row["chain"].tolist() == [1, 1, 1, 2, 2, 2, 2, 3, 3]


def test_a_feed_pads_rows(folder: Path) -> None:
    rows = rows_of(folder, {}, {"fixed_chains": "B"})
    assert rows.lengths == [4, 6]
    collate = partial(pad_rows, pad=PAD)
    (batch,) = Feed(rows, Sequential(2, 2), World.single(), micro_rows=2, length=1, collate=collate)[0].batches
    assert (batch["chain"] > 0).sum(1).tolist() == rows.lengths
    assert text(batch["preferred"][0]) == "AGSKXX" and not batch["scored"][0, 4:].any()
    assert not batch["resolved"][0, 4:].any() and batch["coordinates"].shape == (2, 6, 4, 3)
    assert [pair.number for pair in rows.pairs] == [1, 2] and batch["ids"][:, 1].tolist() == [0, 1]


def test_a_gpu_pads_to_few_lengths(folder: Path) -> None:
    rows = rows_of(folder, {})
    widths = {}
    for device in ("cpu", "cuda"):
        world: Any = SimpleNamespace(device=torch.device(device))
        batch = padding(cast(Any, ProteinFamily), world)([rows[0]])
        widths[device] = batch["coordinates"].shape[1]
        assert int((batch["chain"] > 0).sum()) == len(rows[0]["chain"])
    assert widths == {"cpu": len(rows[0]["chain"]), "cuda": ProteinFamily.pad_multiple}


def test_a_row_is_made_once_and_given_away(folder: Path) -> None:
    rows = rows_of(folder, {})
    first = rows[0]
    first["more"] = torch.zeros(1)
    assert "more" not in rows[0] and rows[0]["native"] is first["native"]


def test_rows_go_into_buckets(folder: Path) -> None:
    rows = rows_of(folder, *({"fixed_chains": chains} for chains in ("", "B", "B,C", "", "B", "B,C")))
    order = choose_order(rows, Bucketed(rows.lengths), 2, 0)
    lengths = [{rows.lengths[index] for _, index in order.ids(step).tolist()} for step in range(3)]
    assert sorted(map(sorted, lengths)) == [[4], [6], [9]]


def test_a_resume_notices_another_structure(folder: Path) -> None:
    rows, options = rows_of(folder, {}, {"fixed_chains": "B"}), ReadOptions(0)
    known = take_fingerprint(rows, options)
    assert len(known["files"]) == 2
    assert not compare_fingerprint(known, rows_of(folder, {}, {"fixed_chains": "B"}), options).difference
    file = folder / "three.pdb"
    file.write_text(file.read_text() + "REMARK\n")
    changed = compare_fingerprint(known, rows_of(folder, {}, {"fixed_chains": "B"}), options)
    assert changed.difference == "the content of three.pdb has changed"


def test_a_bad_record_gives_no_rows(folder: Path) -> None:
    with pytest.raises(UserError, match="record 2"):
        rows_of(folder, {}, {"chain_id": "Q"})
