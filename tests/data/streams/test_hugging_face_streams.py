"""Streaming datasets of Hugging Face are trained on as they are, and go on by their own state."""

from pathlib import Path
from typing import Any

import pytest

from data.streams.stream_toys import feed_of, make_lines, rows_seen
from samestep import UserError, stream
from samestep.data.streams.probe import StreamProbe
from samestep.data.streams.source import Passes, Source
from samestep.data.streams.stream import first_rows

hf = pytest.importorskip("datasets")
hf.disable_progress_bars()


@pytest.fixture(params=["json", "parquet"])
def data(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    files = make_lines(tmp_path, [9, 4, 10])
    if request.param == "parquet":
        for number, file in enumerate(files):
            table = hf.Dataset.from_list([{"x": int(line[6:-1])} for line in file.read_text().splitlines()])
            files[number] = file.with_suffix(".parquet")
            table.to_parquet(files[number])
    return hf.load_dataset(request.param, data_files=[str(file) for file in files], split="train", streaming=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_row_comes_once_an_epoch_at_any_number_of_ranks(data: Any, workers: int) -> None:
    made = stream(data, buffer=6, rows=23)
    whole = rows_seen(feed_of(made), range(10))
    assert all(x == index for (_, _, index), x in whole.items())
    for epoch in (0, 1):
        assert sorted(index for _, turn, index in whole if turn == epoch) == list(range(23))
    halves = [rows_seen(feed_of(made, rank=rank, size=2, length=10, workers=workers), range(10)) for rank in (0, 1)]
    assert halves[0] | halves[1] == whole and not halves[0].keys() & halves[1].keys()


def test_it_goes_on_by_its_own_state_without_reading_again(data: Any) -> None:
    made = stream(data, buffer=6, rows=23)
    probe = StreamProbe(made.source)[0]
    assert probe["uses_state"]
    made.source.uses_state = True
    whole = rows_seen(feed_of(made), range(10))
    before = feed_of(made, size=2)
    rows_seen(before, range(4))
    after = feed_of(made, size=3, rank=1)
    after.place.load_state_dict(before.place.state_dict())
    rest = rows_seen(after, range(4, 10))
    assert rest == {key: x for key, x in whole.items() if key in rest} and rest
    begin, passes = after.place.begin, Passes(made.source)
    passes.seek(begin.at, [begin])
    assert begin.row and passes.skipped == 0 and after.place.now["at"] > begin.at


@pytest.mark.parametrize("data", ["json"], indirect=True)
def test_its_own_shuffling_is_another_in_each_epoch_and_found_again(data: Any) -> None:
    shuffled = data.shuffle(seed=5, buffer_size=8)
    source = Source(shuffled, 23)
    assert not StreamProbe(source)[0]["uses_state"], "rows in its buffer would be lost"
    passes = Passes(source)
    epochs = [[next(passes)["x"] for _ in range(23)] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(23)) and epochs[0] != epochs[1]
    other = Passes(Source(shuffled, 23))
    other.seek(30, [])
    assert next(other)["x"] == epochs[1][7] and other.skipped == 7


def test_a_stream_that_is_divided_by_node_is_refused(data: Any) -> None:
    from datasets.distributed import split_dataset_by_node

    with pytest.raises(UserError, match="divided by split_dataset_by_node; give the whole of it"):
        stream(split_dataset_by_node(data, rank=0, world_size=2))


def test_first_rows_begin_again_where_there_are_fewer(data: Any) -> None:
    assert [row["x"] for row in first_rows(Source(data.take(3), None), 5)] == [0, 1, 2, 0, 1]
