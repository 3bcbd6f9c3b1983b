"""A feed divides any step among the ranks: every row once, equal micro-batch counts, global weights."""

import random
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from samestep.core.errors import UserError
from samestep.data import feed as feed_module
from samestep.data.feed import FAST_LOAD, STEPS_PER_MESSAGE, Feed, MicroBatches
from samestep.data.loading import Batch, read_in_worker
from samestep.data.order import VALIDATION_EPOCH, Order, Sequential, Shuffled
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World
from toys import Points, default_dtype, feed_of, in_order, run_on_ranks


def rank_of(rank: int, size: int) -> World:
    """A rank without its peers: its weights then stay its own."""
    return World(RankInfo("test", rank, size), torch.device("cpu"))


def tokens(batch: Batch) -> dict[str, Tensor]:
    return {"tokens": batch["tokens"], "half": batch["tokens"] / 2}


def same(one: MicroBatches, other: MicroBatches) -> bool:
    return (
        one.step == other.step
        and one.weights == other.weights
        and np.array_equal(one.ids, other.ids)
        and one.spans == other.spans
        and len(one.batches) == len(other.batches)
        and all(
            a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a) for a, b in zip(one.batches, other.batches)
        )
    )


class OneByOne:
    """Only __getitem__, as in most datasets."""

    def __init__(self, size: int) -> None:
        self.points = Points(size)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        assert isinstance(index, int)
        return {name: value[0] for name, value in self.points.rows(np.array([index])).items()}


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 20),
    ranks=st.integers(1, 7),
    micro=st.integers(1, 9),
    whole_order=st.sampled_from([Shuffled, Sequential]),
)
def test_ranks_share_every_row_exactly_once(
    size: int, batch: int, ranks: int, micro: int, whole_order: Callable[..., Order]
) -> None:
    rows = Points(size)
    order = Shuffled(size, batch, seed=5) if whole_order is Shuffled else Sequential(size, batch)
    steps = 2 * order.steps_per_epoch
    feeds = [feed_of(rows, rank_of(rank, ranks), batch, micro, steps, tokens, order) for rank in range(ranks)]
    seen: list[int] = []
    for step in range(steps):
        ids = order.ids(step)
        shares = [feed[step] for feed in feeds]
        assert len({len(share.batches) for share in shares}) == 1, "every rank runs as many micro-batches"
        live = [b["ids"][b["live"]] for share in shares for b in share.batches]
        assert torch.equal(torch.cat(live), torch.as_tensor(ids)), "in the order's order, none twice, none left out"
        for share in shares:
            check_share(share, rows, ids, micro)
        wanted = rows.tokens[ids[:, 1]].sum()
        assert all(share.weights["rows"] == len(ids) for share in shares)
        for term, weight in {"tokens": wanted, "half": wanted / 2}.items():
            assert sum(share.weights[term] for share in shares) == weight
        seen += ids[:, 1].tolist()
    assert sorted(seen) == sorted(2 * list(range(size))), "two epochs hold every index twice"


def check_share(share: MicroBatches, rows: Points, ids: np.ndarray, micro: int) -> None:
    """The rows of a batch are those its ids name; a filler is a real row."""
    assert np.array_equal(share.ids, ids)
    for (start, stop), batch in zip(share.spans, share.batches):
        size = len(batch["ids"])
        assert 1 <= size <= micro
        assert (stop - start, bool(batch["live"].all())) == ((size, True) if stop > start else (0, False))
        assert stop > start or size == 1
        assert torch.equal(batch["x"].double(), rows.x[batch["ids"][:, 1]].to(batch["x"].dtype).double())


@pytest.mark.parametrize("workers", [0, 2])
def test_any_step_is_the_same_however_it_is_reached(workers: int) -> None:
    def fresh() -> Feed:
        order = Shuffled(23, 4, seed=5)
        return Feed(Points(23), order, rank_of(1, 2), micro_rows=1, length=12, count=tokens, workers=workers)

    walked = list(fresh())
    assert [micros.step for micros in walked] == list(range(12))
    jumping = fresh()
    for step in (7, 8, 2, 2, 11, 0, 1):
        assert same(jumping[step], walked[step])
    again = list(jumping)
    assert all(same(a, b) for a, b in zip(again, walked))


def test_workers_bring_the_same_batches_as_none() -> None:
    def feed(workers: int, prefetch: int) -> Feed:
        order = Shuffled(23, 6, seed=5)
        return Feed(
            OneByOne(23), order, rank_of(0, 2), micro_rows=2, length=8, count=tokens, workers=workers, prefetch=prefetch
        )

    alone = list(feed(0, 2))
    for workers, prefetch in ((2, 2), (1, 0)):
        assert all(same(a, b) for a, b in zip(alone, feed(workers, prefetch), strict=True))


class OfStep(OneByOne):
    """Rows that hold their step, and the largest index of its global batch."""

    def __init__(self, size: int, of: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(size)
        self.of = of

    def of_step(self, step: int, indices: np.ndarray) -> "OfStep":
        return OfStep(len(self), (step, int(indices.max())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"index": torch.tensor(index), "of": torch.tensor(self.of)}


@pytest.mark.parametrize("workers", [0, 1])
def test_rows_may_depend_on_the_global_batch_of_their_step(workers: int) -> None:
    order = Shuffled(7, 3, seed=1)
    for ranks in (1, 2, 4):
        for rank in range(ranks):
            feed = Feed(OfStep(7), order, rank_of(rank, ranks), micro_rows=1, length=3, workers=workers)
            for step in range(3):
                of = [step, order.ids(step)[:, 1].max()]
                assert all(row == of for batch in feed[step].batches for row in batch["of"].tolist())


def test_a_list_called_rows_is_not_a_method() -> None:
    class Table(OneByOne):
        rows = ("a", "list")

    order = Shuffled(23, 4, seed=3)
    assert same(feed_over(Table(23), order)[2], feed_over(OneByOne(23), order)[2])


def feed_over(rows: OneByOne, order: Order) -> Feed:
    return Feed(rows, order, rank_of(0, 2), micro_rows=2, length=5)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_task_may_use_more_steps_than_are_planned(workers: int) -> None:
    order = Shuffled(23, 4, seed=3)
    feed = Feed(Points(23), order, rank_of(0, 2), micro_rows=2, length=5, count=tokens, workers=workers)
    for step in range(10):  # two a step of the loop, which has five
        assert np.array_equal(feed[step].ids, order.ids(step))
    assert np.array_equal(feed[12].ids, order.ids(12))
    assert np.array_equal(feed[4].ids, order.ids(4))
    assert np.array_equal(feed[5].ids, order.ids(5))


@pytest.mark.parametrize("workers", [0, 2])
def test_loading_leaves_torchs_generator_alone(workers: int) -> None:
    """A resumed run opens its loaders at another step than an uninterrupted one, and must draw the same numbers."""
    before = torch.get_rng_state()
    feed = Feed(Points(9), Shuffled(9, 4, seed=5), World.single(), micro_rows=2, length=3, workers=workers)
    feed[1]
    list(feed)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_and_getitem_give_the_same() -> None:
    order = Shuffled(23, 6, seed=5)
    at_once, one_by_one = (feed_of(rows, World.single(), 6, 2, 4, tokens, order) for rows in (Points(23), OneByOne(23)))
    assert all(same(a, b) for a, b in zip(at_once, one_by_one, strict=True))


def test_floats_take_the_default_type_and_nothing_else_changes() -> None:
    with default_dtype(torch.float64):
        batch = feed_of(Points(4), World.single(), 4, 4, 1)[0].batches[0]
    assert {name: value.dtype for name, value in batch.items()} == {
        **{"x": torch.float64, "y": torch.float64, "tokens": torch.int64, "pairs": torch.int64},
        **{"ids": torch.int64, "live": torch.bool},
    }
    assert feed_of(Points(4), World.single(), 4, 4, 1)[0].batches[0]["x"].dtype == torch.float32


def test_a_term_that_is_not_counted_weighs_its_rows() -> None:
    micros = feed_of(Points(10), World.single(), 10, 3, 1, tokens)[0]
    assert micros.weight("rows") == micros.weight("anything") == 10
    assert micros.weight("tokens") == float(Points(10).tokens.sum())


def test_what_only_filler_rows_weigh_does_not_count() -> None:
    """Not even when it is not a number."""
    count = lambda batch: {"odd": torch.where(batch["live"], 1.0, float("nan"))}  # noqa: E731
    shares = [feed_of(Points(2), rank_of(rank, 3), 2, 1, 1, count)[0] for rank in range(3)]
    assert sorted(share.weights["odd"] for share in shares) == [0, 1, 1]


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (lambda tokens: {"tokens": tokens.sum()}, r"count must give 'tokens' one number a row, not the shape \(\)"),
        (lambda tokens: {"tokens": 4}, "count gives 'tokens' a value of type int; give a tensor with one number a row"),
        (lambda tokens: tokens, "count returned a Tensor; return a dict with each row's weight by term"),
        (lambda tokens: {"tokens": tokens - 1}, "count gives row 0 the weight -1 in 'tokens'; a weight is a number"),
        (lambda tokens: {"tokens": tokens / (tokens != 3)}, "count gives row 3 the weight inf in 'tokens'"),
        (lambda tokens: {"tokens": tokens / tokens}, "count gives row 0 the weight nan in 'tokens'"),
    ],
)
def test_a_count_is_one_number_a_row_from_0_up(count: Callable[[Tensor], Any], message: str) -> None:
    rows = Points(4)
    feed = feed_of(rows, World.single(), 4, 2, 1, lambda batch: count(batch["tokens"]), order=in_order(rows, 4))
    with pytest.raises(UserError, match=message):
        feed[0]


class Huge:
    """A million million rows, more than any memory."""

    def __len__(self) -> int:
        return 10**12

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": torch.tensor(index)}


def test_a_huge_dataset_costs_nothing() -> None:
    last = -(-(10**12) // 7) - 1  # the last step of the first epoch
    feed = feed_of(Huge(), rank_of(1, 2), 7, 2, steps=10**13)
    batch = feed[last].batches[0]
    assert torch.equal(batch["x"], batch["ids"][:, 1])
    assert int(batch["ids"][0, 0]) == 0
    assert len(feed[last].ids) == 10**12 - 7 * last
    assert int(feed[last + 1].batches[0]["ids"][0, 0]) == 1


class Faulty(OneByOne):
    def __init__(self, error: Exception) -> None:
        super().__init__(12)
        self.error = error

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index == 9:
            raise self.error
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("error", [UserError("row 9 has no text: remove it"), ValueError("broken")])
def test_a_failure_of_the_data_surfaces(workers: int, error: Exception) -> None:
    feed = Feed(Faulty(error), Sequential(12, 2), World.single(), micro_rows=2, length=6, workers=workers)
    with pytest.raises(type(error)) as caught:
        list(feed)
    if isinstance(error, UserError):
        assert str(caught.value) == "row 9 has no text: remove it", "what the user reads is one sentence"
    else:
        assert "broken" in str(caught.value)
        if workers:  # torch's loader is caught in a cycle with its exception, and takes 5 s when that is collected
            feed._load._iterator._shutdown_workers()  # type: ignore[attr-defined]


def test_a_sample_must_be_a_dict() -> None:
    with pytest.raises(UserError, match="a sample must be a dict of tensors, but the data gave a int"):
        feed_of([1, 2, 3], World.single(), 3, 3, 1)[0]


def test_a_pass_can_be_watched() -> None:
    watched: list[int] = []

    def track(steps: object, length: int) -> object:
        watched.append(length)
        return steps

    order = Sequential(10, 4, epoch=VALIDATION_EPOCH)
    feed = Feed(Points(10), order, World.single(), micro_rows=3, length=3, track=track)  # type: ignore[arg-type]
    ids = torch.cat([b["ids"] for micros in feed for b in micros.batches])
    assert watched == [3]
    assert ids.tolist() == [[VALIDATION_EPOCH, index] for index in range(10)]


class Watched(Points):
    """Records every batch that is loaded, with a clock that only loading advances."""

    loaded: list[int]
    seconds = now = 0.0

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        self.loaded.append(int(indices[0]))
        self.now += self.seconds
        return super().rows(indices)


class Unpicklable(Points):
    """Many datasets are: they hold open files, locks, or a function from a recipe."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.function = lambda: None


def on_ranks() -> None:
    """Weights are summed over the ranks, also if a rank has filler rows only, and steps may be skipped."""
    world = World.join(device="cpu", timeout=60)
    for size, batch, micro, workers in [(23, 8, 2, 0), (5, 2, 1, 0), (9, 4, 3, 1)]:
        rows, order = Unpicklable(size), Shuffled(size, batch, seed=3)
        feed = Feed(rows, order, world, micro_rows=micro, length=9, count=tokens, workers=workers)
        for step in (0, 1, 2, 6, 7, 8, 3):
            wanted = float(rows.tokens[order.ids(step)[:, 1]].sum())
            assert feed[step].weights == {"rows": len(order.ids(step)), "tokens": wanted, "half": wanted / 2}
    world.leave()


def counting_messages() -> None:
    """The same steps share a message, however long it takes to load them."""
    world = World.join(device="cpu", timeout=60)
    sent: list[int] = []
    all_gather = dist.all_gather
    dist.all_gather = lambda parts, own, **how: (sent.append(len(own)), all_gather(parts, own, **how))[1]
    messages = {}
    for seconds in (0.0, 2 * FAST_LOAD):
        sent.clear()
        rows, loaded = Watched(400), []
        rows.loaded, rows.seconds = loaded, seconds * world.rank
        feed_module.time = SimpleNamespace(perf_counter=lambda rows=rows: rows.now)  # type: ignore[assignment]
        feed = Feed(rows, Sequential(400, 4), world, micro_rows=4, length=100, count=tokens)
        ahead = []
        for step in range(100):
            feed[step]
            ahead.append(len(loaded) - 1 - step)
        assert ahead[0] == 2, "the step itself and the group of two after it"
        assert max(ahead) == STEPS_PER_MESSAGE and ahead[-1] == 0
        more = [later - before + 1 for before, later in pairwise(ahead[20:90])]
        if rows.seconds:
            assert set(more) == {1}, "slow loads are spread evenly"
        else:
            assert more.count(STEPS_PER_MESSAGE) >= 6, "fast ones are loaded all at once"
        messages[seconds] = [*sent]
    assert messages[0.0] == messages[2 * FAST_LOAD] and len(sent) == pytest.approx(100 / STEPS_PER_MESSAGE, abs=3), sent
    world.leave()


@pytest.mark.parametrize("nproc", [2])
def test_a_few_steps_share_a_message(tmp_path: Path, nproc: int) -> None:
    run_on_ranks(counting_messages, nproc, logs=tmp_path)


@pytest.mark.parametrize("nproc", [2, 3])
def test_ranks_sum_their_weights(tmp_path: Path, nproc: int) -> None:
    run_on_ranks(on_ranks, nproc, logs=tmp_path)


def test_a_temporary_folder_that_is_too_long_for_sockets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's loader processes would send nothing, and the run would wait."""
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * 80}")
    with pytest.raises(UserError, match="set TMPDIR to a shorter one, or num_workers=0"):
        read_in_worker([1, 2], 0)  # type: ignore[arg-type]
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    assert read_in_worker([1, 2], 1) == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_with_keyed_random_numbers_are_the_same_whoever_reads_them(workers: int) -> None:
    class Augmented:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            drawn = random.random() + float(np.random.rand())
            return {"index": torch.tensor(index), "x": torch.rand(2) + drawn}

    def seen(rank: int, size: int, micro: int, workers: int) -> dict[tuple[int, int], list[float]]:
        order = Shuffled(12, 5, seed=3)
        feed = Feed(Augmented(), order, rank_of(rank, size), micro_rows=micro, length=6, workers=workers, row_seed=3)
        batches = [batch for step in range(6) for batch in feed[step].batches]
        return {
            tuple(key): x
            for batch in batches
            for key, x, live in zip(batch["ids"].tolist(), batch["x"].tolist(), batch["live"])
            if live
        }

    alone = seen(0, 1, 5, workers)
    parts = [seen(rank, 2, 2, 0) for rank in (0, 1)]
    assert parts[0] | parts[1] == alone
    assert len({tuple(x) for x in alone.values()}) == len(alone) == 24, "each epoch draws others"


@pytest.mark.parametrize("workers", [0, 1])
def test_the_first_rows_are_a_batch_that_every_rank_has(workers: int) -> None:
    order = Sequential(5, 2, epoch=VALIDATION_EPOCH)
    feed = Feed(OneByOne(5), order, World.single(), micro_rows=1, length=3, workers=workers)
    feed._steps.rank, feed._steps.size = 1, 2
    for count, rows in ((3, 3), (9, 5)):
        batch = feed.first_rows(count)
        assert batch["ids"].tolist() == [[VALIDATION_EPOCH, row] for row in range(rows)]
        assert batch["live"].all() and len(batch["ids"]) == len(batch["live"]) == rows
