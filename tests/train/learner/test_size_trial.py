"""The search for the largest micro-batch, with memory that is counted and not used."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import OutOfMemory
from samestep.data.feed import MicroBatches
from samestep.train.learner.size_trial import SizeTrial, repeated, sizes_of
from samestep.world.memory import HostMemory
from samestep.world.world import World
from toys import feed_of, learner_of

MIB = 2**20


class Counted:
    """Memory of which each row takes as much as `cost` says."""

    limit = 1000.0

    def __init__(self, cost: Callable[[int], float], refuses: bool) -> None:
        self.cost, self.refuses, self.now = cost, refuses, 0

    def used(self) -> int:
        return 100

    def most_used(self, work: Callable[[], object]) -> int:
        work()
        return int(self.cost(self.now))

    def give_back(self) -> None:
        pass


def trial_of(memory: Counted, share: int, together: int = 1) -> tuple[SizeTrial, list[int]]:
    trial, tried = SizeTrial(World.single(), memory, share, together), list[int]()

    def passes(size: int) -> None:
        tried.append(size)
        memory.now = size
        if memory.refuses and memory.cost(size) > memory.limit:
            raise torch.OutOfMemoryError

    trial.try_passes(passes, gradients=50)
    return trial, tried


def test_sizes_cut_a_share_evenly() -> None:
    assert sizes_of(10) == [1, 2, 3, 4, 5, 10]
    assert sizes_of(10, together=4) == [4, 8, 12]
    assert sizes_of(1) == [1]


@pytest.mark.parametrize("refuses", [True, False])
@pytest.mark.parametrize("share", [1, 7, 64, 500])
@pytest.mark.parametrize("row", [0.01, 3.0, 11.0, 90.0])
@pytest.mark.parametrize("constant", [150.0, 700.0, 890.0])
def test_the_largest_that_fits_is_found(refuses: bool, share: int, row: float, constant: float) -> None:
    memory = Counted(lambda rows: constant + row * rows, refuses)
    wanted = max(size for size in sizes_of(share) if constant + row * size <= 1000)
    trial, tried = trial_of(memory, share)
    careful = not refuses and constant > 150  # of one size alone it is not known what all sizes take
    assert trial.rows == wanted or (careful and trial.rows < wanted)
    assert len(tried) <= 14
    if not refuses:
        assert all(memory.cost(size) <= 1000 for size in tried[1:]), "nothing larger was tried in vain"


def test_memory_that_grows_faster_than_rows_is_found_too() -> None:
    memory = Counted(lambda rows: 200 + rows**2, refuses=True)
    assert trial_of(memory, 60)[0].rows == 20


def test_a_second_update_looks_for_no_more_than_the_first_found() -> None:
    trial, _ = trial_of(Counted(lambda rows: 100 + 100 * rows, refuses=True), 64)
    tried: list[int] = []
    trial.try_passes(tried.append, gradients=0)
    assert trial.rows == 8 == max(tried)


def test_a_smallest_one_that_does_not_fit_is_an_end() -> None:
    with pytest.raises(OutOfMemory, match="out of memory with a micro-batch of 4, and there is no smaller one"):
        trial_of(Counted(lambda rows: 2000, refuses=True), 64, together=4)


def test_other_failures_are_not_taken_for_a_lack_of_memory() -> None:
    def passes(size: int) -> None:
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        SizeTrial(World.single(), Counted(lambda rows: 0, refuses=True), 8).try_passes(passes, 0)


def test_copies_are_of_the_largest_row() -> None:
    short = {"x": torch.zeros(1, 2), "ids": torch.tensor([[0, 3]]), "live": torch.tensor([True])}
    long = {"x": torch.ones(2, 5), "ids": torch.tensor([[0, 4], [0, 5]]), "live": torch.tensor([True, False])}
    ids = np.array([[0, 3], [0, 4], [0, 5]])
    rows = repeated(MicroBatches(0, [short, long], {"rows": 3.0}, ids, [(0, 1), (1, 3)]), 3, 2, World.single())
    assert [len(batch["x"]) for batch in rows.batches] == [3, 3] and rows.batches[0]["x"].shape == (3, 5)
    assert rows.batches[0]["ids"].tolist() == [[0, 4], [0, 5], [0, 4]] and bool(rows.batches[0]["live"].all())
    assert rows.spans == [(0, 3), (3, 6)] and rows.bounds == [0, 6] and len(rows.ids) == 6


class Deep(nn.Module):
    """Keeps 16 MB a row for its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        x = x.float().expand(-1, 2**19) * self.scale
        for _ in range(7):
            x = x.tanh()
        return x.mean(1)


class Rows:
    def __len__(self) -> int:
        return 32

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        return {"x": torch.ones(len(indices), 1)}


def test_on_a_host_a_real_update_has_room() -> None:
    """What the C library keeps of freed memory counts too, so an update may take more than the trial saw."""
    world, memory = World.single(), HostMemory(400 * MIB)
    learner, feed = learner_of(Deep(), world, "lone"), feed_of(Rows(), world, 32, 4, steps=1)
    before = memory.used()

    def loss(module: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"mean": module(batch["x"])}

    learner.size_trial = trial = SizeTrial(world, memory, share=32)
    learner.update(feed[0], loss)
    assert learner.updates == 0 and learner.module.scale.item() == 1
    learner.size_trial = None
    feed.cut_into(trial.rows)
    taken = memory.most_used(lambda: learner.update(feed[0], loss)) - before
    assert 3 <= trial.rows <= 13 and taken < 400 * MIB
