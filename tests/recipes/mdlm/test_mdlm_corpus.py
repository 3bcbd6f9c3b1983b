"""The corpus: every byte in exactly one row, the same text wherever it is read."""

import json
import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samestep.core.errors import UserError
from samestep.data.prepared.config import PrepareConfig
from samestep.data.prepared.prepare import prepare
from samestep.data.prepared.sources import find_sources
from samestep.data.pydoc_topics import PROSE, pydoc_prose, pydoc_text
from samestep.data.token_rows import AnswerRows, TextRows, TokenRows, rounded_width
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer
from samestep.data.tokenizer.word import WordTokenizer
from samestep.recipes.mdlm.corpus import QUESTIONS, DataConfig, data_tokenizer, load, row_length


@pytest.fixture(scope="module")
def text() -> bytes:
    return pydoc_text().encode()


def test_loading_twice_gives_the_same_hash_and_complete_regions() -> None:
    first, again = load(DataConfig(sequence_length=100)), load(DataConfig(sequence_length=64))
    record = first.describe()
    assert record["sha256"] == again.describe()["sha256"]
    assert record["train_tokens"] + record["validation_tokens"] == record["tokens"]  # type: ignore[operator]
    joined = bytes(first.train.tokens[:]) + bytes(first.validation.tokens[:])
    assert joined == pydoc_text().encode()
    assert record["validation_tokens"] == round(0.1 * len(joined))


def test_a_local_file_takes_the_place_of_the_built_in_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)))
    corpus = load(DataConfig(path=str(tmp_path / "a.txt"), sequence_length=32, validation_fraction=0.2))
    assert corpus.train[0]["tokens"].tolist() == list(range(32))
    assert corpus.validation[0]["tokens"].tolist() == list(range(160, 192))
    assert corpus.validation[1]["length"] == 8


def test_jsonl_documents_are_joined_by_eos(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "abc"}\n{"body": "def"}\n')
    config = DataConfig(
        path=str(tmp_path / "a.jsonl"), columns={"text": "body"}, sequence_length=5, validation_fraction=0.3
    )
    corpus = load(config, cache=tmp_path / "cache")
    assert corpus.train[0]["tokens"].tolist() == [*b"abc", BYTES.eos, *b"d"]
    assert ByteTokenizer().decode(corpus.train[0]["tokens"].tolist()) == "abc"


def test_a_limit_takes_the_beginning_of_either_text(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    for path in (None, str(tmp_path / "a.txt")):
        corpus = load(DataConfig(path=path, sequence_length=16, limit=1610))
        assert bytes(corpus.train.tokens[:]) == text[:1449]
        assert bytes(corpus.validation.tokens[:]) == text[1449:1610]


def test_a_test_part_shortens_training_only(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    for path in (None, str(tmp_path / "a.txt")):
        without, corpus = (load(DataConfig(path=path, test_fraction=share)) for share in (0.0, 0.2))
        assert without.test is None and corpus.test is not None
        assert bytes(corpus.validation.tokens[:]) == bytes(without.validation.tokens[:])
        joined = bytes(corpus.train.tokens[:]) + bytes(corpus.test.tokens[:])
        assert joined == bytes(without.train.tokens[:]) and corpus.test.size == round(0.2 * len(text))
        record = corpus.describe()
        assert record["test_tokens"] == corpus.test.size and record["tokens"] == without.describe()["tokens"]
    (tmp_path / "b.txt").write_bytes(text[:40])
    with pytest.raises(UserError, match=r"raise data\.test_fraction above 0\.001: of the 40 tokens"):
        load(DataConfig(path=str(tmp_path / "b.txt"), sequence_length=8, test_fraction=0.001))


def texts_in(rows: TokenRows) -> set[tuple[int, ...]]:
    """The questions with their answers, or the documents, in rows."""
    if isinstance(rows, AnswerRows):
        return {tuple(row["tokens"][: row["length"]].tolist()) for row in map(rows.__getitem__, range(len(rows)))}
    assert isinstance(rows, TextRows)
    tokens = rows.tokens[:]
    return {tuple(part[part != BYTES.eos].tolist()) for part in np.split(tokens, np.flatnonzero(tokens == BYTES.eos))}


def test_a_test_part_of_records_and_of_questions(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"text {number} of many"}) for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    for path, size in ((str(tmp_path / "a.jsonl"), 32), (QUESTIONS, 128)):
        without, corpus = (
            load(DataConfig(path=path, sequence_length=size, test_fraction=share), tmp_path) for share in (0.0, 0.25)
        )
        assert corpus.test is not None
        train, validation, test = map(texts_in, (corpus.train, corpus.validation, corpus.test))
        assert validation == texts_in(without.validation)
        assert train | test == texts_in(without.train) and not train & test
        assert 0.2 < len(test) / len(train | test | validation) < 0.3
        assert (corpus.test_bytes_per_token < 1) == (path == QUESTIONS), "an answer's end is a token"


def test_a_text_shorter_than_a_row_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 30)
    with pytest.raises(UserError, match=r"has 30 tokens, of which 27 are for training"):
        load(DataConfig(path=str(tmp_path / "a.txt"), sequence_length=32))


def test_every_token_belongs_to_exactly_one_row() -> None:
    tokens = np.arange(103, dtype=np.uint8)
    rows_of_text = TextRows(tokens, 10, pad=257)
    assert len(rows_of_text) == 11
    rows = [rows_of_text[i] for i in range(len(rows_of_text))]
    assert [t for row in rows for t in row["tokens"][: row["length"]].tolist()] == tokens.tolist()
    assert rows[-1]["tokens"].tolist() == [100, 101, 102] + [257] * 7
    assert sum(int(row["length"]) for row in rows) == 103


def test_many_rows_at_once_are_the_rows_one_by_one() -> None:
    rows_of_text = TextRows(np.arange(103, dtype=np.uint8), 10, pad=257)
    together = rows_of_text.rows(np.array([10, 0, 3, 3]))
    assert together["tokens"].dtype == together["length"].dtype == torch.int64
    for i, index in enumerate([10, 0, 3, 3]):
        assert torch.equal(together["tokens"][i], rows_of_text[index]["tokens"])
        assert together["length"][i] == rows_of_text[index]["length"]


def test_rows_beyond_the_end_do_not_exist() -> None:
    rows_of_text = TextRows(np.arange(20, dtype=np.uint8), 10, pad=257)
    assert len(list(rows_of_text)) == 2  # type: ignore[call-overload]
    for index in (2, -1):
        with pytest.raises(IndexError):
            rows_of_text[index]


def test_rows_of_a_file_are_pickled_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(250)) * 1000)
    corpus = load(DataConfig(path=str(tmp_path / "a.txt"), sequence_length=50))
    sent = pickle.dumps(corpus.validation)
    assert len(sent) < 2_000
    assert torch.equal(pickle.loads(sent)[7]["tokens"], corpus.validation[7]["tokens"])


def test_text_survives_encoding() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode(tokenizer.encode("naïve ☃ text")) == "naïve ☃ text"
    assert tokenizer.decode([104, BYTES.mask, BYTES.bos, 105, BYTES.eos, 106]) == "h_i"
    assert BYTES.forbidden(264) == [256, 258, 259, 260, 261, 262, 263]


def prepared(folder: Path, name: str, content: str, **settings: Any) -> str:
    source = folder / name
    source.write_text(content)
    prepare(find_sources([str(source)]), PrepareConfig(out=str(folder / "out"), **settings), lambda *_: None)
    return str(folder / "out")


def test_a_prepared_folder_brings_its_tokenizer_and_its_row_length(tmp_path: Path) -> None:
    path = prepared(tmp_path, "a.txt", "Ein Schiff wird kommen.\n" * 30, tokenizer="char", sequence_length=20)
    corpus = load(DataConfig(path=path))
    assert corpus.sequence_length == row_length(DataConfig(path=path)) == 20
    assert corpus.tokenizer.decode(corpus.train[0]["tokens"].tolist()) == "Ein Schiff wird komm"
    assert data_tokenizer(DataConfig(path=path)).vocabulary == corpus.tokenizer.vocabulary
    other = DataConfig(path=path, sequence_length=7)
    assert load(other).sequence_length == row_length(other) == 7
    assert not corpus.sft
    record = corpus.describe()
    assert record["tokens"] == 30 * 24 + 1 == corpus.train.size + corpus.validation.size
    assert record["tokenizer"] == "char" and record["sha256"] != load(DataConfig()).describe()["sha256"]


def test_bytes_per_token_are_those_of_the_validation_text(tmp_path: Path) -> None:
    path = prepared(tmp_path, "a.txt", "☃" * 100, tokenizer="char", sequence_length=10)
    assert load(DataConfig(path=path)).validation_bytes_per_token == 30 / 11
    assert load(DataConfig()).validation_bytes_per_token == 1.0


def test_every_kind_of_row_has_length_and_prompt(tmp_path: Path) -> None:
    chats = "".join(json.dumps({"prompt": f"{i}?", "answer": "yes" * i}) + "\n" for i in range(1, 9))
    corpus = load(DataConfig(path=prepared(tmp_path, "a.jsonl", chats, sequence_length=40)))
    assert corpus.sft and corpus.sequence_length == 40
    rows = corpus.train.rows(np.arange(len(corpus.train)))
    assert rows["length"].tolist() == corpus.train.lengths(np.arange(len(corpus.train))).tolist()
    assert rows["tokens"].shape == (len(corpus.train), 40)
    for tokens, prompt in zip(rows["tokens"], rows["prompt"].tolist()):
        header = bytes(tokens[:prompt].clamp(max=255).tolist())
        assert header.endswith(b"assistant\n\n")
        assert tokens[prompt] in (ord("y"),)
    last = corpus.train[0]["tokens"]
    assert last[-1] == BYTES.eos
    rows_of_text = load(DataConfig()).train.rows(np.array([3, 5]))
    assert rows_of_text["prompt"].tolist() == [0, 0] and rows_of_text["prompt"].dtype == torch.int64
    assert {name: value.dtype for name, value in rows.items()} == dict.fromkeys(
        ("tokens", "length", "prompt"), torch.int64
    )


@pytest.mark.parametrize("length", [26, 60])
def test_bytes_per_token_of_chats_are_those_of_the_answers_with_their_ends(tmp_path: Path, length: int) -> None:
    chats = "".join(json.dumps({"prompt": f"{i}?", "answer": "yes" * i}) + "\n" for i in range(1, 9))
    path = prepared(tmp_path, "a.jsonl", chats, sequence_length=length, validation_fraction=0.5)
    for corpus in (load(DataConfig(path=path)), load(DataConfig(path=QUESTIONS, sequence_length=100))):
        rows = corpus.validation.rows(np.arange(len(corpus.validation)))
        answers = [
            tokens[prompt:real].tolist()
            for tokens, prompt, real in zip(*(rows[n] for n in ("tokens", "prompt", "length")))
        ]
        text = sum(len([token for token in answer if token != BYTES.eos]) for answer in answers)
        assert corpus.validation_bytes_per_token == text / sum(map(len, answers))


def test_prose_is_words_of_which_no_passage_is_cut() -> None:
    config = DataConfig(path=PROSE, sequence_length=32, test_fraction=0.1)
    corpus = load(config)
    assert isinstance(corpus.tokenizer, WordTokenizer) and corpus.test is not None
    assert data_tokenizer(config).vocabulary == corpus.tokenizer.vocabulary
    parts = []
    for rows in (corpus.train, corpus.test, corpus.validation):
        read = rows.rows(np.arange(len(rows)))
        kept = [row[:length] for row, length in zip(read["tokens"].tolist(), read["length"].tolist())]
        parts.append(corpus.tokenizer.decode(token for row in kept for token in row))
    assert "".join(parts) == "".join(f"{line}\n" for line in pydoc_prose())
    assert all(part.endswith("\n") for part in parts)
    sizes = [len(part.encode()) for part in parts]
    assert corpus.validation_bytes_per_token == sizes[2] / corpus.validation.size
    assert corpus.test_bytes_per_token == sizes[1] / corpus.test.size
    assert not any(word not in parts[0] for word in corpus.tokenizer.words), "what is held back names no words"
    with pytest.raises(UserError, match="pydoc-prose alone"):
        load(DataConfig(path=[PROSE, "a.txt"]))


def test_a_step_of_chats_is_as_wide_as_the_longest_of_its_global_batch(tmp_path: Path) -> None:
    chats = "".join(json.dumps({"prompt": "?", "answer": "y" * i}) + "\n" for i in range(1, 120))
    rows = load(DataConfig(path=prepared(tmp_path, "a.jsonl", chats, sequence_length=100))).train
    assert isinstance(rows, AnswerRows)
    lengths = rows.lengths(np.arange(len(rows)))
    short, long = int(np.flatnonzero(lengths == 30)[0]), int(np.flatnonzero(lengths == 70)[0])
    assert rows.of_step(0, np.array([short, short])).rows(np.array([short]))["tokens"].shape == (1, 32)
    both = rows.of_step(9, np.array([long, short]))
    batch = both.rows(np.array([short]))
    assert batch["tokens"].shape == (1, 80), "wherever the longest row of the step is"
    assert bool((batch["tokens"][0, 29:] == BYTES.eos).all()) and int(batch["length"]) == 30
    longest = int(lengths.argmax())
    assert rows.of_step(0, np.array([longest])).width == 100, "never longer than a row may be"


def test_few_widths_occur() -> None:
    widths = [rounded_width(tokens) for tokens in range(1, 4097)]
    assert len(set(widths)) == 28 and max(widths) == 4096
    assert all(0 <= width - tokens < max(16, width / 5) for tokens, width in enumerate(widths, start=1))


def older_folder(folder: Path, largest: int = 25) -> str:
    rows = np.arange(13 * 8).reshape(13, 8) % largest
    np.save(folder / "train_data.npy", rows[:10])
    np.save(folder / "val_data.npy", rows[10:])
    (folder / "vocab.json").write_text(json.dumps({chr(97 + i): i for i in range(largest)}))
    (folder / "metadata.json").write_text(json.dumps({"sequence_length": 8, "vocab_size": largest}))
    return str(folder)


def test_an_older_folder_is_a_corpus(tmp_path: Path) -> None:
    config = DataConfig(path=older_folder(tmp_path), sequence_length=64)
    corpus = load(config)
    assert corpus.sequence_length == row_length(config) == 8, "rows of an older folder keep their length"
    assert len(corpus.train) == 10 and len(corpus.validation) == 3
    row = corpus.train[9]
    assert row["tokens"].tolist() == [(72 + i) % 25 for i in range(8)]
    assert (row["length"], row["prompt"]) == (8, 0)
    with pytest.raises(IndexError):
        corpus.train[10]
    again = pickle.loads(pickle.dumps(corpus.train))
    assert torch.equal(again[4]["tokens"], corpus.train[4]["tokens"])


def test_a_network_that_is_too_small_is_refused(tmp_path: Path) -> None:
    corpus = load(DataConfig(path=older_folder(tmp_path)))
    corpus.check_fits(27, 27, 8)
    with pytest.raises(UserError, match=r"model\.vocab_size to 27 or more, .*it is 26"):
        corpus.check_fits(26, 64)
    with pytest.raises(UserError, match=r"model\.embedding_size above 25, .*mask token .*it is 25"):
        corpus.check_fits(25, 25)
    with pytest.raises(UserError, match=r"max_sequence_length to 8 or more, .*it is 4"):
        corpus.check_fits(27, 27, 4)


def test_a_limit_shortens_both_regions_of_a_folder(tmp_path: Path) -> None:
    older = load(DataConfig(path=older_folder(tmp_path), limit=52))
    assert (len(older.train), len(older.validation)) == (5, 2)
    path = prepared(tmp_path, "a.txt", "x" * 999, sequence_length=10)
    text = load(DataConfig(path=path, limit=100))
    assert (text.train.size, text.validation.size) == (90, 10)


def test_a_folder_that_was_not_prepared_says_how_to(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="samestep data prepare"):
        load(DataConfig(path=str(tmp_path)))


def test_rows_of_a_prepared_folder_are_pickled_by_name(tmp_path: Path) -> None:
    path = prepared(
        tmp_path, "a.txt", "the tide rises, the tide falls\n" * 3000, sequence_length=50, shard_bytes=50_000
    )
    corpus = load(DataConfig(path=path))
    sent = pickle.dumps(corpus.train)
    assert len(sent) < 3_000
    assert torch.equal(pickle.loads(sent)[700]["tokens"], corpus.train[700]["tokens"])


def test_memory_does_not_grow_with_a_prepared_folder(tmp_path: Path) -> None:
    path = Path(prepared(tmp_path, "a.txt", "x" * 9999, sequence_length=64))
    peaks = []
    for tokens in (1_000_000, 300_000_000):
        record = json.loads((path / "metadata.json").read_text())
        record["shards"]["train"][0]["tokens"] = tokens
        (path / "metadata.json").write_text(json.dumps(record))
        with (path / "train-00000.bin").open("r+b") as file:
            file.truncate(2 * tokens)  # sparse: takes no room on disk
        tracemalloc.start()
        train = load(DataConfig(path=str(path))).train
        train.rows(np.arange(0, len(train), len(train) // 100))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 100_000
