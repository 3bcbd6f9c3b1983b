"""Reading in pieces and splitting: nothing lost, nothing twice, whatever the text is and wherever it is cut."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepared_parts import documents

from samestep.core.errors import UserError
from samestep.data.prepared import sources
from samestep.data.prepared.sources import Piece, find_sources, read_pieces
from samestep.data.prepared.split import REGIONS, ByDocument, ByPosition, choose_split


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
def test_a_file_in_pieces_is_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(sources, "_CHUNK", chunk)
    text = "a line\n\n  indented ☃ line\r\nand é\n\x00 the end, without a blank: " + "x" * 20
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    (tmp_path / "b.txt").write_text("b")
    pieces = list(read_pieces(find_sources([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]), skip_invalid=False))
    assert "".join(piece.text for piece in pieces if piece.document == 0) == text
    assert [piece.document for piece in pieces if piece.last] == [0, 1]
    assert all(len(piece.text) <= len("and é\n\x00 the end, ") + 64 for piece in pieces)


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("one\ntwo\nthree", "one\ntwo\n"),
        ("one\n  two\n\n", "one\n "),
        ("one two three", "one two"),
        ("onetwothree", "onetwothree"),
    ],
)
def test_a_piece_ends_where_a_tokenizer_would_cut_too(text: str, before: str) -> None:
    assert text[: sources.edge_of(text)] == before


def test_a_folder_is_its_text_files_in_order(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.txt", "other.png"):
        (tmp_path / name).write_text(name)
    documents(tmp_path / "d.jsonl", "one", "two")
    found = find_sources([str(tmp_path)])
    assert [source.path.name for source in found] == ["a.md", "b.txt", "d.jsonl", "c.txt"]
    assert [piece.text for piece in read_pieces(found, "text") if piece.text] == [
        "a.md",
        "b.txt",
        "one",
        "two",
        "sub/c.txt",
    ]


def test_the_same_file_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(UserError, match="once"):
        find_sources([str(tmp_path), str(tmp_path / "a.txt")])


@given(st.integers(2, 3000), st.floats(0.001, 0.7), st.integers(0, 3))
def test_documents_are_chosen_in_the_right_number_and_by_seed_and_content(count: int, share: float, seed: int) -> None:
    split, backwards = ByDocument(range(count), share, 0.0, seed), ByDocument(range(count)[::-1], share, 0.0, seed)
    regions = [split.region(i) for i in range(count)]
    assert regions.count("validation") == min(count - 1, math.ceil(round(count * share, 9)))
    assert [backwards.region(i) for i in range(count)] == regions[::-1]


def test_seeds_choose_differently() -> None:
    picked = {tuple(ByDocument(range(40), 0.25, 0.0, seed).region(i) for i in range(40)) for seed in range(5)}
    assert len(picked) == 5


def test_equal_documents_stay_together() -> None:
    for seed in range(5):
        split = ByDocument([number % 10 for number in range(20)], 0.2, 0.0, seed)
        assert [split.region(i) for i in range(10)] == [split.region(i) for i in range(10, 20)]
    with pytest.raises(UserError, match="the 3 here cannot be split"):
        ByDocument([1, 1, 1], 0.5, 0.0, 0)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=8), st.floats(0.01, 0.99))
def test_a_cut_by_position_keeps_every_character_and_every_end_once(texts: list[str], share: float) -> None:
    size = sum(len(text.encode()) for text in texts)
    split = ByPosition(size, share, 0.0)
    parts = [part for i, text in enumerate(texts) for part in split.parts(Piece(i, text, last=True))]
    assert "".join(part.text for _, part in parts) == "".join(texts)
    assert [part.document for _, part in parts if part.last] == list(range(len(texts)))
    regions = [region for region, _ in parts]
    assert regions == sorted(regions), "training comes first"
    kept = sum(len(part.text.encode()) for region, part in parts if region == "train")
    assert 0 <= kept - (size - round(size * share)) <= 3


def test_few_documents_are_cut_by_position() -> None:
    assert isinstance(choose_split(range(9), 1000, 0.1, 0.0, 0), ByPosition)
    assert isinstance(choose_split(range(10), 1000, 0.1, 0.0, 0), ByDocument)


def test_a_test_part_leaves_validation_what_it_was() -> None:
    without, split = ByDocument(range(40), 0.25, 0.0, 1), ByDocument(range(40), 0.25, 0.2, 1)
    parts = [split.region(number) for number in range(40)]
    assert [parts.count(region) for region in REGIONS] == [22, 10, 8] and split.regions == REGIONS
    kept = [without.region(number) == "validation" for number in range(40)]
    assert kept == [region == "validation" for region in parts]


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_three_parts_by_place(size: int) -> None:
    """However the text comes in pieces, the parts are the same, and no character is cut."""
    text = "aé漢" * 10
    split = ByPosition(len(text.encode()), 0.2, 0.3)
    found = dict.fromkeys(REGIONS, "")
    for start in range(0, len(text), size):
        for region, piece in split.parts(Piece(0, text[start : start + size], last=False)):
            found[region] += piece.text
    assert next(iter(split.parts(Piece(0, "", last=True))))[0] == "validation"
    assert found["train"] + found["test"] + found["validation"] == text
    assert [len(found[region].encode()) for region in REGIONS] == [30, 12, 18]
