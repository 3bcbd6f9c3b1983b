"""The text that comes with Python: every passage once, so that none is in training and in validation."""

import sys

import pytest

from samestep.core.errors import UserError
from samestep.data.pydoc_topics import distinct, passages, pydoc_prose, pydoc_text


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


def test_prose_is_sentences_of_the_text(text: bytes) -> None:
    lines = pydoc_prose()
    assert 100_000 < sum(map(len, lines)) < len(text)
    assert all("\n" not in line and line[-1] in ".:" and line.count(" ") >= 5 for line in lines)
    assert any(line.startswith("Assert statements are a convenient way") for line in lines)
    assert not any("::=" in line or ">>>" in line for line in lines), "no grammar and no programs"


def test_a_repeated_passage_is_left_out_however_it_is_set() -> None:
    long = " ".join(f"word{i}" for i in range(30))
    wrapped = long.replace(" word15", "\n   word15")
    extended = "Something new in front. " + long
    found = list(distinct(iter([long, "short", wrapped, "  short", extended, "other"])))
    assert found == [long, "short", "other"]


def test_passages_are_what_empty_lines_separate() -> None:
    assert list(passages("a\nb\n\n\n  c  \n   \nd\n")) == ["a\nb", "  c", "d"]


def test_a_python_without_the_text_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(UserError, match=r"data\.path"):
        pydoc_text()
