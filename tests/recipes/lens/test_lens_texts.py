"""Texts, tokens and samples: the same pieces on every rank, nothing in both parts."""

import json
from pathlib import Path

import numpy as np
import pytest

from samestep import UserError
from samestep.recipes.lens.activations import Region, other_samples, positions_of, regions_of
from samestep.recipes.lens.config import ActivationDumper, DataConfig
from samestep.recipes.lens.texts import cut, load_texts


def test_pieces_of_a_document() -> None:
    text = "the quick brown fox jumps over the lazy dog " * 3
    pieces = list(cut(text, 20))
    assert all(len(piece) <= 20 for piece in pieces)
    assert "".join(pieces).startswith(text[:100]), "nothing is left out but a short end"
    assert all(piece.startswith(" ") for piece in pieces[1:]), "words are whole"
    assert list(cut("x" * 25, 10)) == ["x" * 10, "x" * 10], "a word that does not fit is cut"
    assert list(cut("short", 10)) == []


def test_the_built_in_text() -> None:
    texts = load_texts(DataConfig(limit=200), 0, 47)
    assert not set(texts.train) & set(texts.validation)
    assert 0.02 < len(texts.validation) / len(texts.pieces) < 0.3
    assert load_texts(DataConfig(limit=200), 0, 47).digest() == texts.digest()
    assert load_texts(DataConfig(limit=200), 1, 47).digest() != texts.digest(), "another seed keeps others"


def test_files(tmp_path: Path) -> None:
    sentences = [f"This is sentence number {number} of the whole file." for number in range(40)]
    (tmp_path / "a.txt").write_text(" ".join(sentences))
    plain = load_texts(DataConfig(str(tmp_path / "a.txt")), 0, 50)
    assert "number 39" in plain.validation[-1] and "number 0 " in plain.train[0], "the end is for validation"
    records = tmp_path / "b.jsonl"
    records.write_text("\n".join(json.dumps({"story": sentence}) for sentence in [*sentences, sentences[0]]))
    lines = load_texts(DataConfig(str(records), columns={"text": "story"}), 0, 200)
    assert len(lines.pieces) == 40, "what comes twice is used once"
    assert len(lines.validation) == 4
    with pytest.raises(UserError, match="line 1: 'text' is missing; it has 'story'"):
        load_texts(DataConfig(str(records)), 0, 200)
    (tmp_path / "c.txt").write_text("Too little text for two rows.")
    with pytest.raises(UserError, match="Give more text"):
        load_texts(DataConfig(str(tmp_path / "c.txt")), 0, 50)


def test_a_saved_dataset(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [f"Row {number} of a dataset on the disk." for number in range(30)]
    datasets.Dataset.from_dict({"text": rows}).save_to_disk(tmp_path / "saved")
    found = load_texts(DataConfig(str(tmp_path / "saved")), 0, 100)
    assert sorted(found.pieces) == sorted(rows) and found.origins


def test_positions_are_inside_of_the_text() -> None:
    region, samples = Region(0, 0, 50, 4000), np.arange(4000)
    lengths = 2 + samples % 9
    drawn = positions_of(samples, lengths, region, ActivationDumper(seq_len=10, min_position=4), 3)
    assert (drawn >= np.minimum(4, lengths - 1)).all() and (drawn < lengths).all()
    longest = drawn[lengths == 10]
    assert set(longest) == {4, 5, 6, 7, 8, 9}, "all of them occur"
    again = positions_of(samples[7:9], lengths[7:9], region, ActivationDumper(seq_len=10, min_position=4), 3)
    assert (again == drawn[7:9]).all(), "a function of the sample, not of the batch"
    middle = positions_of(
        samples, lengths, region, ActivationDumper(seq_len=10, min_position=4, position="midpoint"), 3
    )
    assert (middle == lengths // 2).all()


def test_others_are_other_samples() -> None:
    region = Region(1, 30, 10, 25)
    samples = np.arange(25)
    others = other_samples(samples, region, 0)
    assert (others != samples).all() and others.min() >= 0 and others.max() < 25
    assert len(set(others)) > 10
    assert (other_samples(samples, region, 1) != others).any()
    assert (other_samples(np.arange(2), Region(0, 0, 2, 2), 0) == [1, 0]).all()


def test_how_many_samples() -> None:
    key = {"train": 30, "validation": 10}
    every = regions_of(ActivationDumper(), key)
    assert [(r.first_text, r.texts, r.samples) for r in every.values()] == [(0, 30, 30), (30, 10, 10)]
    more = regions_of(ActivationDumper(num_samples=100, validation_samples=4), key)
    assert [r.samples for r in more.values()] == [100, 4]
