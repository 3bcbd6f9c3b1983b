"""Texts as rows of a feed: tokens, masks, vectors beside them; which records are for what."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from samestep import UserError
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import (
    DistillData,
    Text,
    TextTable,
    hold_out,
    records_of_phases,
    sentences_of,
    share_out,
)
from samestep.recipes.distill.lengths import too_long
from samestep.recipes.distill.models import (
    STUDENT,
    TEACHER,
    Reading,
    RecordRows,
    TextRows,
    by_length,
    collate_for,
    pad_tokens,
)
from samestep.recipes.distill.records import Record
from samestep.recipes.distill.retrieval import RetrievalSet

RECORDS = [
    Record("q0", "a", ("bb", "ccc")),
    Record("q1", "dddd"),
    Record("q0", "bb", ("a",)),
]


class Letters:
    """A tokenizer whose tokens are letters."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def encode_all(self, texts: Sequence[str], max_length: int) -> list[Tensor]:
        return [torch.tensor([ord(letter) for letter in text[:max_length]]) for text in texts]


class Numbers:
    """A vector that says of which text it is."""

    def of(self, texts: Sequence[int]) -> Tensor:
        return torch.tensor([[float(text), 1.0] for text in texts])


def data_of(records: Sequence[Record]) -> DistillData:
    table = TextTable.of(records)
    held_out = RetrievalSet(["x"], ["yy", "z"], [{0: 1.0}])
    return DistillData("toy", table, [range(2), range(2, 3)], [1.0, 1.0], held_out, [])


def reading(pad: int = 0, max_length: int = 4, **settings: str) -> Reading:
    return Reading(Letters(pad), max_length, **settings)  # type: ignore[arg-type]


def spelled(ids: Tensor, mask: Tensor) -> str:
    return "".join(chr(token) for token, is_text in zip(ids.tolist(), mask.tolist()) if is_text)


def test_all_texts_have_numbers() -> None:
    data = data_of(RECORDS)
    assert [text.text for text in data.texts] == ["q0", "q1", "a", "bb", "ccc", "dddd", "x", "yy", "z"]
    assert [text.is_query for text in data.texts] == [True, True, *[False] * 4, True, False, False]
    assert (data.first_passage, data.held_out_texts) == (2, range(6, 9))
    assert data.texts_of_phase(3)[0] == [[0, 2, 3, 4, 1, 5], [0, 3, 2]], "each once for a source"


def test_texts_are_counted_where_that_is_asked_for() -> None:
    data = replace(data_of(RECORDS), sources=[range(3)], weights=[1.0])
    assert data.texts_of_phase(4, "texts")[0] == [[0, 2, 3, 4]]
    assert data.texts_of_phase(99, "texts") == data.texts_of_phase(99)
    two = data_of(RECORDS).texts_of_phase(6, "texts")[0]
    assert [len(texts) for texts in two] == [4, 2], "in proportion to the records of a source"


def test_records_are_read_until_they_have_the_texts() -> None:
    config = DistillConfig(phase1_samples="texts", max_samples_phase1=5, skip_phase2=True)
    assert records_of_phases(config, [RECORDS]) == [2]
    assert records_of_phases(replace(config, max_samples_phase1=4), [RECORDS]) == [1]
    assert records_of_phases(replace(config, max_samples_phase1=100), [RECORDS]) == [3]
    assert records_of_phases(replace(config, skip_phase2=False, max_samples_phase2=3), [RECORDS]) == [3]
    assert records_of_phases(replace(config, phase1_samples="records", max_samples_phase1=1), [RECORDS]) == [1]


def test_sentences_are_texts_of_phase_1_and_of_nothing_else() -> None:
    assert sentences_of(["One is here. Two is there! No."], ["Alone it stands.", "Two is there! One is here."]) == [
        "One is here.",
        "Two is there!",
    ]
    data = replace(data_of(RECORDS), sentences=["s", "t"])
    assert [text.text for text in data.texts][data.held_out_texts.stop :] == ["s", "t"]
    parts, weights = data.texts_of_phase(3)
    assert parts[-1] == [7, 8, 9, 10], "the passages of the retrieval set without its query, and the sentences"
    assert weights[-1] == pytest.approx(sum(data.weights) * 4 / 9), "by their number"
    one = replace(data, sources=[range(3)], weights=[1.0])
    assert one.texts_of_phase(3) == ([[0, 2, 3, 4, 1, 5, 7, 8, 9, 10]], [1.0])
    assert one.rows_of_phase(3) == [[0, 1, 2]]


def test_texts_that_are_too_long(caplog: pytest.LogCaptureFixture) -> None:
    data, numbers = data_of(RECORDS), list(range(6))
    assert too_long(data, numbers, reading(max_length=3), "drop") == {5}
    assert "toy: 1 of 6 texts are longer than 3 tokens and were dropped (data.too_long=drop)" in caplog.text
    assert too_long(data, numbers, reading(max_length=2), "truncate") == set()
    assert "toy: 2 of 6 texts are longer than 2 tokens and were cut (data.too_long=truncate)" in caplog.text
    with pytest.raises(UserError, match=r"Shorten 1 of 6 texts of toy, .*\n  'dddd': it has 4 tokens, more than 3"):
        too_long(data, numbers, reading(max_length=3), "refuse")


def test_limits_are_shared_out_by_size() -> None:
    assert share_out(10, [4, 6]) == [4, 6]
    assert share_out(5, [4, 6]) == [2, 3]
    assert share_out(3, [1, 100]) == [1, 2]


def test_queries_have_their_instruction_and_are_cut() -> None:
    read = reading(query_instruction="> ", passage_instruction=": ")
    ids = read([Text("abcdef", True), Text("abcdef", False)])
    assert [spelled(each, torch.ones(4)) for each in ids] == ["> ab", ": ab"]


def test_texts_are_padded_to_the_longest_or_to_a_multiple() -> None:
    texts = data_of(RECORDS).texts
    rows = TextRows(texts, [5, 2], {STUDENT: reading(pad=7)}, [], Numbers())
    for multiple, width in ((1, 4), (3, 6)):
        batch = pad_tokens([rows[0], rows[1]], {STUDENT: reading(pad=7, max_length=9)}, multiple)
        assert batch["text_ids"].shape == (2, width)
        assert [spelled(*both) for both in zip(batch["text_ids"], batch["text_mask"])] == ["dddd", "a"]
        assert batch["text_ids"][1, 1:].tolist() == [7] * (width - 1)
        assert batch["teacher"].tolist() == [[5.0, 1.0], [2.0, 1.0]]
    assert rows.lengths == [4, 1]


def test_records_have_as_many_passages_and_say_which_are_absent() -> None:
    data = data_of(RECORDS)
    readings = {STUDENT: reading(pad=0), TEACHER: reading(pad=9, query_instruction=">")}
    negatives = [row.negatives for row in data.table.rows]
    rows = RecordRows(data, [0, 1], negatives, 2, readings, Numbers())
    batch = collate_for(readings, torch.device("cpu"))([rows[0], rows[1]])
    assert batch["query"].tolist() == [0, 1]
    assert batch["passages"].tolist() == [[0, 1, 2], [3, -1, -1]]
    assert batch["passage_ids"].shape == (2, 3, 4)
    found = [spelled(*both) for both in zip(batch["passage_ids"].flatten(0, 1), batch["passage_mask"].flatten(0, 1))]
    assert found == ["a", "bb", "ccc", "dddd", "", ""]
    assert spelled(batch["teacher_query_ids"][0], batch["teacher_query_mask"][0]) == ">q0"
    assert batch["teacher_passage_ids"][1, 1].tolist() == [9] * 4
    assert batch["teacher_passages"][:, :, 0].tolist() == [[2.0, 3.0, 4.0], [5.0, 0.0, 0.0]]
    assert rows.lengths == [3, 4]


def test_on_a_gpu_lengths_are_few() -> None:
    samples = [{"text_ids": torch.arange(5)}]
    for longest, width in ((100, 32), (20, 20)):  # never more than a model has positions for
        collate = collate_for({STUDENT: reading(max_length=longest)}, torch.device("cuda"))
        assert collate(samples)["text_ids"].shape == (1, width)


def test_the_longest_texts_come_first() -> None:
    assert by_length([Text("a", True), Text("ccc", False), Text("bb", True)]) == [1, 2, 0]


def test_a_held_out_query_is_not_trained_on() -> None:
    records = [Record(f"q{number % 10}", f"p{number}", (f"n{number}",)) for number in range(40)]
    (kept,), found, test = hold_out([records], 0.25, 500, 0.0, seed=1)
    assert found is not None and test is None
    assert len(found.queries) == 3, "a quarter of ten, rounded up"
    assert not set(found.queries) & {record.query for record in kept}
    assert len(kept) == 28 and all(len(grades) == 4 for grades in found.relevant)
    for query, grades in zip(found.queries, found.relevant):
        assert {found.passages[number] for number in grades} == {r.positive for r in records if r.query == query}
    assert "n0" in found.passages or "q0" not in found.queries, "negatives are in the corpus too"
    fewer = hold_out([records], 0.25, 2, 0.0, seed=1)[1].queries
    assert len(fewer) == 2 and set(fewer) < set(found.queries)
    with pytest.raises(UserError, match=r"Give records that differ, .* cannot be split"):
        hold_out([records[:1]], 0.5, 500, 0.0, seed=1)
