"""What cannot be read twice alike is refused with the reason; all else is found again from any place."""

import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from data.streams.stream_toys import Numbers, feed_of, rows_seen
from samestep import Mixed, UserError, Weighted, augmented, stream
from samestep.data.chosen_rows import ReadOptions
from samestep.data.datasets import as_rows
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.loading import read_in_worker
from samestep.data.order_choice import choose_order
from samestep.data.streams.probe import RandomStream, StreamCount, StreamProbe
from samestep.data.streams.source import ENDLESS, Passes, Position, Source
from samestep.train.api.stream_checks import check_stream, count_stream, training_rows
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

READING = ReadOptions(seed=3)


def numbers(count: int = 23) -> Iterator[dict[str, int]]:
    return ({"x": number} for number in range(count))


class Divided(Numbers):
    """It divides its rows among loader processes, as torch's own guide says."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        return iter(
            [row for n, row in enumerate(super().__iter__()) if info is None or n % info.num_workers == info.id]
        )


class Stateful(Numbers):
    """Counts how many rows it gives."""

    given = 0

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.next = 0

    def __iter__(self) -> Iterator[Any]:
        begin, self.next = self.next, 0
        for number in range(begin, self.count):
            self.next = number + 1
            type(self).given += 1
            yield {"x": torch.tensor(number)}

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


@pytest.mark.parametrize("data", [numbers, lambda: list(numbers()), Divided(23), Stateful(23)])
@pytest.mark.parametrize("workers", [0, 2])
def test_iterables_of_every_kind_are_the_same_in_loader_processes(data: Any, workers: int) -> None:
    whole = rows_seen(feed_of(stream(numbers, buffer=6, rows=23)), range(8))
    assert rows_seen(feed_of(stream(data, buffer=6, rows=23), workers=workers, length=8), range(8)) == whole


@pytest.mark.parametrize("rows", [23, None])
@pytest.mark.parametrize("kind", [Numbers, Stateful])
@pytest.mark.parametrize(("size", "step"), [(2, 1), (3, 4), (1, 9)])
def test_a_resumed_feed_goes_on_at_another_number_of_ranks(
    kind: Callable[[int], Any], rows: int | None, size: int, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    def opened() -> Any:
        made = stream(kind(23), buffer=6, rows=rows)
        made.source.uses_state = made.source.has_state
        return made

    whole = rows_seen(feed_of(opened()), range(12))
    before = feed_of(opened(), size=2, rank=1)
    rows_seen(before, range(step))
    seen: dict[Any, float] = {}
    for rank in range(size):
        after = feed_of(opened(), size=size, rank=rank)
        after.place.load_state_dict(before.place.state_dict())
        Stateful.given = 0
        part = rows_seen(after, range(step, 12))
        assert not seen.keys() & part.keys()
        seen |= part
    assert seen == {key: x for key, x in whole.items() if key[0] >= step}
    is_said = "rows are read again to find the place" in caplog.text
    assert is_said == (kind is Numbers and before.place.now["row"] > 0)


def test_a_state_saves_reading() -> None:
    Stateful.given = 0
    source = Source(Stateful(1000), 1000)
    source.uses_state = True
    passes = Passes(source)
    passes.seek(900, [])
    position, Stateful.given = passes.position(), 0
    other = Passes(source)
    other.seek(903, [Position(**position.to_json())])
    assert next(other)["x"] == 903 and Stateful.given == 4
    source.uses_state = False
    other = Passes(source)
    other.seek(2903, [])
    assert next(other)["x"] == 903 and other.skipped == 903, "the passes before are not read"


class Lossy(Stateful):
    """Its state leads further than where it was taken, once it has given a few rows."""

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"] + (state["next"] > 9)


def test_a_state_that_leads_elsewhere_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    made = stream(Lossy(23), buffer=6, rows=23)
    assert StreamProbe(made.source)[0]["uses_state"]
    made.source.uses_state = True
    whole = rows_seen(feed_of(made), range(8))
    before, after = feed_of(made), feed_of(made)
    rows_seen(before, range(4))
    after.place.load_state_dict(before.place.state_dict())
    assert rows_seen(after, range(4, 8)) == {key: x for key, x in whole.items() if key[0] >= 4}
    assert "leads to another row than when it was taken" in caplog.text and not made.source.uses_state


def test_a_stream_that_has_changed_since_the_checkpoint_is_refused() -> None:
    before = feed_of(stream(Numbers(23), buffer=6, rows=23))
    rows_seen(before, range(4))
    after = feed_of(stream(lambda: ({"x": torch.tensor(n * (n < 9))} for n in range(23)), buffer=6, rows=23))
    after.place.load_state_dict(before.place.state_dict())
    with pytest.raises(UserError, match="the stream has changed since the checkpoint was made: its row"):
        after[4]


def test_no_row_is_read_twice_in_a_launch() -> None:
    Stateful.given = 0
    rows_seen(feed_of(stream(Stateful(200), buffer=6, rows=200)), range(39))
    assert Stateful.given <= 200 + 6


def test_a_feed_may_be_asked_for_any_step() -> None:
    made = stream(numbers, buffer=6, rows=23)
    whole = rows_seen(feed_of(made), range(12))
    feed = feed_of(made)
    for step in (7, 2, 2, 11, 0, 5):
        assert rows_seen(feed, range(step, step + 1)) == {key: x for key, x in whole.items() if key[0] == step}


@pytest.mark.parametrize(
    ("count", "rows", "sentence"),
    [
        (23, 20, r"has more than 20 rows in pass 1, but samestep.stream was given rows=20"),
        (23, 30, r"ended after 23 rows in pass 1, but samestep.stream was given rows=30"),
        (0, None, "the stream has no rows"),
    ],
)
def test_another_number_of_rows_than_was_said(count: int, rows: int | None, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        rows_seen(feed_of(stream(lambda: numbers(count), buffer=4, rows=rows)), range(8))


@pytest.mark.parametrize(("second", "found"), [(20, "ended after 20 rows"), (26, "has more than 23 rows")])
def test_passes_of_different_lengths_are_refused(second: int, found: str) -> None:
    class Changing(Numbers):
        def set_epoch(self, epoch: int) -> None:
            self.count = second if epoch else 23

    with pytest.raises(UserError, match=f"{found} in pass 2, but another pass had others"):
        rows_seen(feed_of(stream(Changing(23), buffer=4)), range(12))


class Random(IterableDataset):
    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __iter__(self) -> Any:
        return ({"x": self.draw()} for _ in range(5))


once = iter(list(numbers(5)) * 3)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (Random(random.random), "draws from Python's `random`, so it would differ between ranks"),
        (Random(lambda: float(torch.rand(()))), "draws from torch's default generator"),
        (Random(itertools.count().__next__), "differs each time it is read from its beginning"),
        (lambda: once, "differs each time|has no rows"),
    ],
)
def test_streams_that_cannot_be_replayed(data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        StreamProbe(Source(data, None))[0]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (numbers(), "a generator can be read only once.* give samestep.stream the function that makes it"),
        (5, "samestep.stream takes .tar or .jsonl files, an iterable, or a function"),
        ([{"x": 1}], "a list has rows by index, which is better than a stream"),
    ],
)
def test_what_is_no_stream(data: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        stream(data)


def test_a_stream_that_rank_and_process_see_differently_is_refused() -> None:
    class OfProcess(Numbers):
        def __iter__(self) -> Iterator[Any]:
            return ({"x": torch.tensor(os.getpid() + n)} for n in range(5))

    class Ranks(World):
        """Two ranks, of which the other one's is a loader process."""

        def run_on_all_ranks(self, doing: str, work: Any) -> Any:
            return [work(), read_in_worker(StreamProbe(made.source), 0)]

    made = stream(OfProcess(5))
    with pytest.raises(UserError, match="differs between ranks: rank 1 reads other rows than rank 0"):
        check_stream(made, "the training data", Ranks(RankInfo("test", 0, 2), torch.device("cpu")), READING)
    check_stream(stream(numbers), "the training data", World.single(), READING)


def test_how_long_a_stream_is_has_to_be_known() -> None:
    with pytest.raises(UserError, match=r"set max_steps, or give the feed samestep.stream\(data, rows=...\)"):
        training_rows(augmented(stream(numbers), dict), None)
    assert training_rows(stream(numbers), 10) == ENDLESS and training_rows(stream(numbers, rows=23), None) == 23

    class Sized(Numbers):
        def __len__(self) -> int:
            return self.count

    assert len(as_rows(Sized(23))) == 23
    for workers in (False, True):
        made = as_rows(lambda: numbers(11))
        count_stream(made, World.single(), in_worker=workers)
        assert len(made) == 11
    assert StreamCount(Source(Numbers(7), None), lambda: None)[0] == 7


def test_orders_and_mixtures_need_rows_by_index() -> None:
    with pytest.raises(UserError, match=r"has its own order; leave out order, .*buffer="):
        choose_order(stream(numbers, rows=23), Weighted([1.0] * 23), 5, 0)
    with pytest.raises(UserError, match="one of its sources can only be read in order"):
        Mixed([numbers, list(numbers())], [1, 1])


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("workers", [0, 2])
def test_augmented_rows_draw_by_epoch_and_row(size: int, workers: int) -> None:
    def jitter(row: Any) -> Any:
        return {"x": row["x"] + torch.rand(())}

    made = augmented(numbers, jitter)
    whole = rows_seen(feed_of(augmented(stream(numbers, buffer=6, rows=23), jitter)), range(8))
    again = augmented(stream(numbers, buffer=6, rows=23), jitter)
    parts = [
        rows_seen(feed_of(again, size=size, rank=rank, workers=workers, length=8), range(8)) for rank in range(size)
    ]
    assert {key: x for part in parts for key, x in part.items()} == whole
    assert len({x - index for (_, _, index), x in whole.items()}) == len(whole)
    assert as_rows(made).rows.buffer == 1000, "a function is a stream under it too"


def test_the_first_rows_are_compared_at_a_resume() -> None:
    known = take_fingerprint(stream(numbers, rows=23), READING)
    assert known["rows"] == 23
    assert not compare_fingerprint(known, stream(lambda: numbers(23), rows=23), READING).difference
    other = compare_fingerprint(known, stream(lambda: ({"x": n * n} for n in range(23)), rows=23), READING)
    assert "rows differ" in other.difference
    with pytest.raises(RandomStream):
        StreamProbe(Source(Random(random.random), None))[0]


def test_decoding_that_draws_is_refused() -> None:
    drawing = stream(numbers, rows=23, decode=lambda row: {"x": row["x"] + random.random()})
    with pytest.raises(UserError, match="draws from Python's `random`"):
        take_fingerprint(drawing, READING)
