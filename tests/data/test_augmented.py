"""Augmented rows are the same at any number of ranks and loader processes, whatever the function draws from."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from samestep import augmented
from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.augmented import takes_generator
from samestep.data.chosen_rows import ReadOptions, digest_rows
from samestep.data.datasets import open_rows
from samestep.data.feed import Feed
from samestep.data.order import Sequential, Shuffled
from samestep.data.random_state import ROW, RowSeeding, random_state_kept
from samestep.data.row_randomness import global_generators, own_generators
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

Row = dict[str, Any]
Seen = dict[tuple[int, int], list[float]]


class Images:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Row:
        return {"x": np.full((4, 4, 3), index * 10, dtype=np.uint8)}


class TakesGenerator(Images):
    def __getitem__(self, index: int, random: np.random.Generator) -> Row:  # type: ignore[override]
        return {"x": random.random(3) + index}


class Holds:
    """A transform with generators of its own, as albumentations has them."""

    def __init__(self) -> None:
        self.parts = {"numpy": np.random.default_rng(1), "python": random.Random(2)}
        self.torch, self.older = torch.Generator(), np.random.RandomState(3)

    def __call__(self, row: Row) -> Row:
        drawn = [self.parts["numpy"].random(), self.parts["python"].random(), self.older.rand()]
        return {"x": torch.tensor(drawn) + torch.rand(3, generator=self.torch) + row["x"][0, 0, 0]}


def global_draws(row: Row) -> Row:
    return {"x": torch.rand(3) + random.random() + np.random.rand() + row["x"][0, 0, 0]}


def torchvision() -> Callable[[Row], Row]:
    from torchvision.transforms import v2

    crop = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(3), v2.RandomHorizontalFlip(), v2.GaussianNoise()])
    ramp = torch.arange(48, dtype=torch.float32).view(4, 4, 3)
    return lambda row: {"x": crop(((row["x"] + ramp.numpy()) / 255).astype(np.float32)).flatten()}


def albumentations() -> Callable[[Row], Row]:
    import albumentations

    noise = albumentations.Compose([albumentations.GaussNoise(p=1), albumentations.HorizontalFlip()])
    return lambda row: {"x": torch.from_numpy(noise(image=row["x"] / np.float32(255))["image"]).flatten()}


def made(kind: str) -> Any:
    if kind in ("torchvision", "albumentations"):
        pytest.importorskip(kind)
    functions = {"torchvision": torchvision, "albumentations": albumentations, "global": lambda: global_draws}
    return TakesGenerator() if kind == "generator" else augmented(Images(), functions.get(kind, Holds)())


def seen(rows: Any, rank: int = 0, size: int = 1, micro: int = 5, workers: int = 0) -> Seen:
    world = World(RankInfo("test", rank, size), torch.device("cpu"))
    feed = Feed(rows, Shuffled(12, 5, seed=3), world, micro_rows=micro, length=6, workers=workers, row_seed=3)
    return {
        tuple(key): x
        for step in range(6)
        for batch in feed[step].batches
        for key, x, live in zip(batch["ids"].tolist(), batch["x"].tolist(), batch["live"])
        if live
    }


@pytest.mark.parametrize("kind", ["generator", "holds", "global", "torchvision", "albumentations"])
def test_rows_are_the_same_whoever_reads_them(kind: str) -> None:
    rows = made(kind)
    assert open_rows(rows, None, None).keyed_random
    alone = seen(rows)
    assert len({tuple(x) for x in alone.values()}) == len(alone) == 24, "each epoch draws others"
    parts = [seen(made(kind), rank, 2, micro=2) for rank in (0, 1)]
    assert parts[0] | parts[1] == alone
    assert digest_rows(rows, ReadOptions(3, keyed_random=True)).same_as(
        digest_rows(rows, ReadOptions(3, keyed_random=True))
    )


@pytest.mark.parametrize("kind", ["holds", "generator"])
def test_loader_processes_draw_the_same(kind: str) -> None:
    assert seen(made(kind), workers=2) == seen(made(kind))


def test_generators_are_put_back() -> None:
    function = Holds()
    generators = [*global_generators(), *own_generators(function)]
    assert len(generators) == 7
    before = [repr(each.state()) for each in generators]
    seen(augmented(Images(), function))
    assert [repr(each.state()) for each in generators] == before


def test_another_seed_draws_others_and_validation_the_same_again() -> None:
    rows, world = made("holds"), World(RankInfo("test", 0, 1), torch.device("cpu"))

    def read(seed: int) -> list[list[float]]:
        feed = Feed(rows, Sequential(12, 12), world, micro_rows=12, length=1, row_seed=seed)
        return feed[0].batches[0]["x"].tolist()  # type: ignore[no-any-return]

    assert read(1) == read(1) != read(2)


def test_rows_of_rows_and_files() -> None:
    twice = augmented(augmented(TakesGenerator(), lambda row: row), lambda row: {"x": row["x"] * 2})
    assert seen(twice) == {key: [2 * value for value in x] for key, x in seen(TakesGenerator()).items()}
    assert not hasattr(twice, "origins")
    assert not takes_generator(Images()) and not takes_generator([1]) and takes_generator(twice)
    rows = Images()
    rows.origins = lambda: ["a file"]  # type: ignore[attr-defined]
    assert augmented(rows, global_draws).origins() == ["a file"]


def test_a_generator_is_seeded_by_the_row_however_seldom_rows_draw_from_it() -> None:
    """Seeded one row at a time by hand; Python's and numpy's are first drawn from in row 300 and row 310."""

    def draw(row: int) -> list[float]:
        python = [random.gauss(0, 1), random.random()] if row in (300, 305, 700) else []
        numpy = [float(np.random.randn())] if row in (305, 310, 600) else []
        return [float(torch.rand(())), *python, *numpy]

    ids = np.stack((np.full(800, 2), np.arange(800)), 1)
    high, low = noise.words(5, ROW, ids[:, 0], ids[:, 1])
    expected = []
    with random_state_kept():
        for row, (one, other) in enumerate(zip(high.tolist(), low.tolist())):
            random.seed((one << 32) | other), np.random.seed(other), torch.manual_seed(one)
            expected.append(draw(row))
    before = [generator.state() for generator in global_generators()]
    for batch in (1, 64, 300, 800):
        seeding, found = RowSeeding(5), []
        for start in range(0, 800, batch):
            found += seeding.read(ids[start : start + batch], lambda _, row: draw(row))
        assert found == expected
    after = [generator.state() for generator in global_generators()]
    assert before[0] == after[0] and torch.equal(before[2], after[2])
    assert np.array_equal(before[1]["state"]["key"], after[1]["state"]["key"])


def test_what_cannot_be_augmented() -> None:
    with pytest.raises(UserError, match="needs rows by index, and a generator has none"):
        augmented((each for each in [1]), global_draws)
    with pytest.raises(UserError, match="needs a function of a row, not a str"):
        augmented([1], "flip")  # type: ignore[arg-type]
