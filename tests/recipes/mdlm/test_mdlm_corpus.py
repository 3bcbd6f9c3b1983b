"""The corpus: no passage in both regions, every byte in exactly one row, the same text wherever it is read."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from samestep.core.errors import UserError
from samestep.data.vocabulary import BYTES, ByteTokenizer
from samestep.recipes.mdlm.corpus import DataConfig, distinct, load, passages, pydoc_text
from samestep.recipes.mdlm.windows import Windows


@pytest.fixture(scope="module")
def text() -> bytes:
    return pydoc_text().encode()


def shared_runs(train: bytes, validation: bytes, length: int) -> int:
    runs = {train[i : i + length] for i in range(len(train) - length + 1)}
    return sum(validation[i : i + length] in runs for i in range(len(validation) - length + 1))


@pytest.mark.parametrize("fraction", [0.1, 0.5])
def test_no_long_run_of_validation_occurs_in_training(text: bytes, fraction: float) -> None:
    edge = len(text) - round(len(text) * fraction)
    assert shared_runs(text[:edge], text[edge:], 200) == 0


def test_the_raw_topics_would_have_failed_that_test() -> None:
    from pydoc_data.topics import topics

    raw = "\n\n".join(topics[name] for name in sorted(topics)).encode()
    assert shared_runs(raw[: len(raw) // 2], raw[len(raw) // 2 :], 200) > 1000


def test_most_of_the_text_is_kept(text: bytes) -> None:
    assert 200_000 < len(text) < 600_000
    assert text.startswith(b'The "assert" statement\n*****')


def test_a_repeated_passage_is_left_out_however_it_is_set() -> None:
    long = " ".join(f"word{i}" for i in range(30))
    wrapped = long.replace(" word15", "\n   word15")
    extended = "Something new in front. " + long
    found = list(distinct(iter([long, "short", wrapped, "  short", extended, "other"])))
    assert found == [long, "short", "other"]


def test_passages_are_what_empty_lines_separate() -> None:
    assert list(passages("a\nb\n\n\n  c  \n   \nd\n")) == ["a\nb", "  c", "d"]


def test_loading_twice_gives_the_same_hash_and_whole_regions() -> None:
    first, again = load(DataConfig(sequence_length=100)), load(DataConfig(sequence_length=64))
    facts = first.describe()
    assert facts["sha256"] == again.describe()["sha256"]
    assert facts["train_tokens"] + facts["validation_tokens"] == facts["tokens"]  # type: ignore[operator]
    joined = bytes(first.train.tokens[:]) + bytes(first.validation.tokens[:])
    assert joined == pydoc_text().encode()
    assert facts["validation_tokens"] == round(0.1 * len(joined))


def test_a_local_file_takes_the_place_of_the_built_in_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(bytes(range(200)))
    corpus = load(DataConfig(path=str(tmp_path / "a.txt"), sequence_length=32, validation_fraction=0.2))
    assert corpus.train[0]["tokens"].tolist() == list(range(32))
    assert corpus.validation[0]["tokens"].tolist() == list(range(160, 192))
    assert corpus.validation[1]["length"] == 8


def test_jsonl_documents_are_joined_by_eos(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"body": "abc"}\n{"body": "def"}\n')
    config = DataConfig(path=str(tmp_path / "a.jsonl"), field="body", sequence_length=5, validation_fraction=0.3)
    corpus = load(config, cache=tmp_path / "cache")
    assert corpus.train[0]["tokens"].tolist() == [*b"abc", BYTES.eos, *b"d"]
    assert ByteTokenizer().decode(corpus.train[0]["tokens"].tolist()) == "abc"


def test_a_limit_takes_the_beginning_of_either_text(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "a.txt").write_bytes(text)
    for path in (None, str(tmp_path / "a.txt")):
        corpus = load(DataConfig(path=path, sequence_length=16, limit=1610))
        assert bytes(corpus.train.tokens[:]) == text[:1449]
        assert bytes(corpus.validation.tokens[:]) == text[1449:1610]


def test_a_text_shorter_than_a_window_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x" * 30)
    with pytest.raises(UserError, match=r"has 30 tokens, of which 27 are for training"):
        load(DataConfig(path=str(tmp_path / "a.txt"), sequence_length=32))


def test_a_python_without_the_text_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"data\.path"):
        pydoc_text()


def test_every_token_belongs_to_exactly_one_row() -> None:
    tokens = np.arange(103, dtype=np.uint8)
    windows = Windows(tokens, 10, pad=257)
    assert len(windows) == 11
    rows = [windows[i] for i in range(len(windows))]
    assert [t for row in rows for t in row["tokens"][: row["length"]].tolist()] == tokens.tolist()
    assert rows[-1]["tokens"].tolist() == [100, 101, 102] + [257] * 7
    assert sum(int(row["length"]) for row in rows) == 103


def test_many_rows_at_once_are_the_rows_one_by_one() -> None:
    windows = Windows(np.arange(103, dtype=np.uint8), 10, pad=257)
    together = windows.rows(np.array([10, 0, 3, 3]))
    assert together["tokens"].dtype == together["length"].dtype == torch.int64
    for i, index in enumerate([10, 0, 3, 3]):
        assert torch.equal(together["tokens"][i], windows[index]["tokens"])
        assert together["length"][i] == windows[index]["length"]


def test_rows_beyond_the_end_do_not_exist() -> None:
    windows = Windows(np.arange(20, dtype=np.uint8), 10, pad=257)
    assert len(list(windows)) == 2  # type: ignore[call-overload]
    for index in (2, -1):
        with pytest.raises(IndexError):
            windows[index]


def test_rows_of_a_file_travel_to_a_worker_by_name(tmp_path: Path) -> None:
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
