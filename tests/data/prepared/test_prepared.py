"""Preparing running text: every document's tokens once, then an end; complete folders or none; little memory."""

import errno
import hashlib
import json
import os
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared_parts import documents, made

from samestep.core.errors import UserError
from samestep.data.prepared import open_prepared, sources, texts, writing
from samestep.data.prepared.config import PrepareConfig
from samestep.data.prepared.split import ByDocument
from samestep.data.prepared.texts import Texts
from samestep.data.prepared.writing import TextCounts
from samestep.data.text import document_digest
from samestep.data.tokenizer.vocabulary import BYTES

TEXTS = [f"document {i} says é{'!' * i}" for i in range(20)]


def split_at_ends(tokens: np.ndarray, eos: int) -> list[list[int]]:
    assert tokens[-1] == eos
    return [part.tolist() for part in np.split(tokens, np.flatnonzero(tokens == eos) + 1)][:-1]


@pytest.mark.parametrize("tokenizer", ["byte", "char", "word", "bpe"])
def test_documents_are_not_cut_and_end_with_eos(tmp_path: Path, tokenizer: str) -> None:
    vocab_size = 280 if tokenizer == "bpe" else None
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    found = made(tmp_path / "out", source, tokenizer=tokenizer, vocab_size=vocab_size, sequence_length=8)
    eos, split = found.tokenizer.vocabulary.eos, ByDocument(list(map(document_digest, TEXTS)), 0.1, 0.0, 0)
    for region, tokens in (("train", found.train[:]), ("validation", found.validation[:])):
        decoded = [found.tokenizer.decode(part) for part in split_at_ends(tokens, eos)]
        assert decoded == [text for i, text in enumerate(TEXTS) if split.region(i) == region]
    assert found.metadata["tokenizer"] == tokenizer
    assert found.metadata["vocab_size"] == found.tokenizer.vocabulary.size


def test_metadata_says_what_there_is(tmp_path: Path) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    metadata = made(tmp_path / "out", source, sequence_length=8).metadata
    sizes = {"train": 0, "validation": 0}
    for i, text in enumerate(TEXTS):
        sizes[ByDocument(list(map(document_digest, TEXTS)), 0.1, 0.0, 0).region(i)] += len(text.encode())
    assert metadata["val_bytes"] == sizes["validation"]
    assert metadata["val_tokens"] == sizes["validation"] + 2
    assert metadata["train_tokens"] == sizes["train"] + 18
    assert metadata["total_tokens"] == metadata["train_tokens"] + metadata["val_tokens"]
    assert (metadata["train_samples"], metadata["val_samples"]) == (
        -(-metadata["train_tokens"] // 8),
        -(-metadata["val_tokens"] // 8),
    )
    assert (metadata["mask_token_id"], metadata["eos_token_id"], metadata["vocab_size"]) == (256, 257, 259)
    assert metadata["sources"][0]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert metadata["dtype"] == "<u2" and metadata["sequence_length"] == 8


def test_a_single_text_is_cut_by_position_before_it_is_cut_into_rows(tmp_path: Path) -> None:
    text = "".join(f"line {i} é\n" for i in range(50))
    (tmp_path / "a.txt").write_text(text)
    found = made(tmp_path / "out", tmp_path / "a.txt", sequence_length=16, validation_fraction=0.25)
    edge = len(text.encode()) - round(len(text.encode()) * 0.25)
    train, validation = bytes(found.train[:].astype("u1")), found.validation[:]
    assert len(train) - edge in (0, 1)
    assert train + bytes(validation[:-1].astype("u1")) == text.encode()
    assert validation[-1] == BYTES.eos and BYTES.eos not in found.train[:]
    assert found.metadata["split"] == "position"


def test_tokens_do_not_depend_on_the_pieces_they_are_read_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"The {i}th line, with words;\n\n  then an indented one...\n" for i in range(200))
    (tmp_path / "a.txt").write_text(text)
    settings: dict[str, Any] = {"tokenizer": "bpe", "vocab_size": 300}
    whole = made(tmp_path / "whole", tmp_path / "a.txt", **settings)
    monkeypatch.setattr(sources, "_CHUNK", 300)
    monkeypatch.setattr(texts, "_BATCH", 1000)
    pieces = made(tmp_path / "pieces", tmp_path / "a.txt", **settings)
    assert pieces.train[:].tolist() == whole.train[:].tolist()
    assert pieces.validation[:].tolist() == whole.validation[:].tolist()


def test_a_vocabulary_is_learned_from_the_training_part_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("train words here\n" * 100 + "unseenword " * 17)
    found = made(tmp_path / "out", tmp_path / "a.txt", tokenizer="bpe", vocab_size=300, sequence_length=16)
    assert len(found.tokenizer.encode(" words")) == 1
    assert len(found.tokenizer.encode(" unseenword")) > 4


def test_shards_are_of_bounded_size_and_read_as_one_sequence(tmp_path: Path) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    whole = made(tmp_path / "whole", source, sequence_length=8)
    parts = made(tmp_path / "parts", source, sequence_length=8, shard_bytes=50)
    files = sorted(path.name for path in (tmp_path / "parts").glob("train-*.bin"))
    assert len(files) == -(-len(whole.train) // 25) > 10
    assert all((tmp_path / "parts" / name).stat().st_size <= 50 for name in files)
    assert parts.train[:].tolist() == whole.train[:].tolist()
    assert parts.train[20:60].tolist() == whole.train[20:60].tolist()
    where = np.array([[0, 24, 25], [26, len(whole.train) - 1, 3]])
    assert parts.train[where].tolist() == whole.train[where].tolist()
    assert parts.train.span(10, 70).span(20, 40)[:].tolist() == whole.train[30:50].tolist()
    assert len(parts.train.span(5, 5)) == 0
    again = pickle.loads(pickle.dumps(parts.train))
    assert again[:].tolist() == whole.train[:].tolist()


def test_many_tokens_take_32_bits(tmp_path: Path) -> None:
    characters = "".join(chr(0x4E00 + i % 20000) if i < 20000 else chr(0x20000 + i) for i in range(66_000))
    (tmp_path / "a.txt").write_text(characters)
    found = made(tmp_path / "out", tmp_path / "a.txt", tokenizer="char")
    assert found.metadata["dtype"] == "<u4"
    assert found.tokenizer.decode(found.train[:50].tolist()) == characters[:50]


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (6, 18):
        path = tmp_path / f"{megabytes}.txt"
        with path.open("w") as file:
            for _ in range(megabytes * 8):
                file.write("some words of a long text\n" * 4900)
        tracemalloc.start()
        made(tmp_path / f"out{megabytes}", path)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_an_existing_folder_is_kept_unless_it_may_go(tmp_path: Path) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    made(tmp_path / "out", source, sequence_length=8)
    before = (tmp_path / "out" / "metadata.json").read_text()
    with pytest.raises(UserError, match="or --overwrite"):
        made(tmp_path / "out", source, sequence_length=16)
    assert (tmp_path / "out" / "metadata.json").read_text() == before
    assert made(tmp_path / "out", source, sequence_length=16, overwrite=True).metadata["sequence_length"] == 16
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("dear")
    with pytest.raises(UserError, match="exists and is not prepared data"):
        made(tmp_path / "mine", source, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.jsonl", "mine", "out"]


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    written: list[int] = []

    def fsync(handle: int) -> None:
        written.append(handle)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writing.os, "fsync", fsync)
    with pytest.raises(UserError, match="Free some space on the disk"):
        made(tmp_path / "out", source, sequence_length=8)
    assert written
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_what_a_kill_left_is_never_taken_for_complete_and_is_removed_next_time(tmp_path: Path) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    stale = tmp_path / ".out.preparing"
    stale.mkdir()
    (stale / "train-00000.bin").write_bytes(b"half")
    found = made(tmp_path / "out", source, sequence_length=8)
    assert not stale.exists()
    assert sorted(path.name for path in found.folder.iterdir()) == [
        "metadata.json", "tokenizer", "train-00000.bin", "validation-00000.bin",
    ]  # fmt: skip


def test_two_writers_do_not_meet(tmp_path: Path) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    with writing.fresh_folder(tmp_path / "out", overwrite=False) as folder:
        with pytest.raises(UserError, match="Wait for the other process"):
            made(tmp_path / "out", source, sequence_length=8)
        assert folder.is_dir()


@pytest.mark.parametrize("texts", [[*TEXTS, "one more"], TEXTS[:-1], [*TEXTS[:-1], "another"]])
def test_a_text_that_changes_meanwhile_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    source = documents(tmp_path / "a.jsonl", *TEXTS)
    count = Texts.count

    def count_then_change(self: Texts, collect_characters: bool, done: Any) -> TextCounts:
        found = count(self, collect_characters, done)
        documents(source, *texts)
        return found

    monkeypatch.setattr(Texts, "count", count_then_change)
    with pytest.raises(UserError, match="changed while it was read"):
        made(tmp_path / "out", source, sequence_length=8)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "train-00000.bin").unlink(), "train-00000.bin is missing"),
        (lambda folder: (folder / "train-00000.bin").write_bytes(b"xy"), "has 2 bytes instead of"),
        (
            lambda folder: (folder / "metadata.json").write_text('{"format": "samestep tokens 9"}'),
            "'samestep tokens 9'",
        ),
        (lambda folder: (folder / "metadata.json").write_text('{"format": "samestep tokens 2"}'), "lacks 'shards'"),
        (lambda folder: (folder / "metadata.json").write_text("{"), "it is not JSON"),
        (lambda folder: (folder / "tokenizer" / "samestep_tokenizer.json").unlink(), "259 tokens, not 2"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path: Path, damage: Any, sentence: str) -> None:
    found = made(tmp_path / "out", documents(tmp_path / "a.jsonl", *TEXTS), tokenizer="char", sequence_length=8)
    damage(found.folder)
    with pytest.raises(UserError, match=sentence) as refusal:
        open_prepared(found.folder)
    assert "\n" not in str(refusal.value)


def test_text_of_nothing_and_of_too_little_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf")
    (tmp_path / "short.txt").write_text("short")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 and more")
    with pytest.raises(UserError, match="the named files are empty"):
        made(tmp_path / "out", tmp_path / "bom.txt")
    with pytest.raises(UserError, match="5 tokens for training and 0 bytes"):
        made(tmp_path / "out", tmp_path / "short.txt")
    with pytest.raises(UserError, match=r"Save .*latin\.txt as UTF-8"):
        made(tmp_path / "out", tmp_path / "latin.txt")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sequence_length": 1}, "sequence_length must be a whole number of at least 2 or null, not 1"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number above 0 and below 1, not 1.0"),
        ({"vocab_size": 300}, "only with --tokenizer bpe"),
        ({"shard_bytes": 1}, "shard_bytes must be a whole number of at least 4, not 1"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        PrepareConfig(out="x", **settings)


def test_a_tokenizer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="byte, char, word, bpe or a folder; there is no folder gpt5"):
        made(tmp_path / "out", documents(tmp_path / "a.jsonl", *TEXTS), tokenizer="gpt5")


def test_a_prepared_tokenizer_serves_another_text(tmp_path: Path) -> None:
    first = made(
        tmp_path / "a", documents(tmp_path / "a.jsonl", *TEXTS), tokenizer="bpe", vocab_size=280, sequence_length=4
    )
    other = documents(tmp_path / "b.jsonl", *(f"document {i} says ok" for i in range(20)))
    second = made(tmp_path / "b", other, tokenizer=str(tmp_path / "a" / "tokenizer"), sequence_length=4)
    assert second.tokenizer.vocabulary == first.tokenizer.vocabulary
    assert json.loads((tmp_path / "b" / "metadata.json").read_text())["tokenizer"] == "bpe"
