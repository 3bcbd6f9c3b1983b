"""Rows that draw random numbers are refused, also those that draw seldom or from a generator of their own."""

import random
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from samestep.data import chosen_rows
from samestep.data.chosen_rows import RandomRows, ReadOptions, digest_rows, refuse_random_rows
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint

OPTIONS, KEYED = ReadOptions(seed=3), ReadOptions(seed=3, keyed_random=True)
SHARED = np.random.default_rng(0)
Read = Callable[["Rows", int], Any]


class Rows:
    """Rows by a function, with generators of their own."""

    def __init__(self, read: Read, size: int = 200) -> None:
        self.read, self.size = read, size
        self.own = np.random.default_rng(0)
        self.transforms = {"crop": [random.Random(0), torch.Generator(), np.random.RandomState(0)]}
        self.cache: dict[int, float] = {}

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.read(self, index)


def flip(drawn: float) -> int:
    return int(drawn < 0.01)  # a coin that hardly ever shows


def cached(rows: Rows, index: int) -> float:
    return rows.cache.setdefault(index, random.random())


RANDOM: dict[str, tuple[Read, str]] = {
    "python": (lambda rows, index: flip(random.random()), "draws from Python's `random`"),
    "numpy": (lambda rows, index: flip(np.random.rand()), "draws from numpy's `np.random`"),
    "torch": (lambda rows, index: flip(float(torch.rand(()))), "draws from torch's default generator"),
    "seldom": (lambda rows, index: random.random() if index % 20 == 7 else 0, "draws from Python's `random`"),
    "cached": (cached, "draws from Python's `random`"),
    "own": (lambda rows, index: flip(rows.own.random()), "draws from its own generator `Rows.own`"),
    "inside": (
        lambda rows, index: flip(float(torch.rand((), generator=rows.transforms["crop"][1]))),
        "draws from its own generator `Rows.transforms['crop'][1]`",
    ),
    "old numpy": (lambda rows, index: flip(rows.transforms["crop"][2].rand()), "its own generator"),
    "own python": (lambda rows, index: flip(rows.transforms["crop"][0].random()), "its own generator"),
    "global object": (lambda rows, index: flip(SHARED.random()), "draws from its own generator `SHARED`"),
    "unseeded": (lambda rows, index: float(np.random.default_rng().random() < 0.5), "differs each time it is read"),
    "system": (lambda rows, index: secrets.randbelow(2), "differs each time it is read"),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_rows_are_refused_and_generators_stay_as_they_were(name: str) -> None:
    read, sentence = RANDOM[name]
    rows = Rows(read)
    generators = (random.getstate, torch.get_rng_state, rows.own.bit_generator.__getstate__)
    before = [str(state()) for state in generators]
    for check in (digest_rows, refuse_random_rows):
        rows.cache.clear()
        with pytest.raises(RandomRows) as refused:
            check(rows, OPTIONS)
        assert sentence in str(refused.value) and "keyed_random=True" in str(refused.value)
    assert [str(state()) for state in generators] == before


def reseeded(rows: Rows, index: int) -> tuple[float, float]:
    random.seed(index)
    rows.transforms["crop"][1].manual_seed(index)
    return random.random(), float(torch.rand((), generator=rows.transforms["crop"][1]))


def drawn_at_first(rows: Rows, index: int) -> int:
    if not rows.cache:  # as a library may do when it is imported
        rows.cache[0] = random.random()
    return index


@pytest.mark.parametrize(
    "read",
    [
        lambda rows, index: {"x": torch.tensor(float(index))},
        lambda rows, index: np.random.default_rng(index).random(3),
        lambda rows, index: torch.rand(3, generator=torch.Generator().manual_seed(index)),
        reseeded,
        drawn_at_first,
    ],
)
def test_functions_of_the_index_are_accepted(read: Read) -> None:
    known = take_fingerprint(Rows(read), OPTIONS)
    assert not compare_fingerprint(known, Rows(read), OPTIONS).difference


def test_a_loader_process_reads_the_same() -> None:
    assert digest_rows(Rows(reseeded), ReadOptions(3, in_worker=True)) == digest_rows(Rows(reseeded), OPTIONS)


def test_a_loader_process_finds_random_rows_too() -> None:
    for name in ("torch", "own"):
        with pytest.raises(RandomRows, match="draws from"):
            digest_rows(Rows(RANDOM[name][0]), ReadOptions(3, in_worker=True))


def test_rows_of_files_are_looked_at_too(tmp_path: Path) -> None:
    class Transformed(Rows):
        def origins(self) -> list[Path]:
            return [tmp_path / "file"]

    (tmp_path / "file").write_bytes(b"x")
    known = take_fingerprint(Transformed(lambda rows, index: index), OPTIONS)
    for fingerprint in (take_fingerprint, lambda *given: compare_fingerprint(known, *given)):
        with pytest.raises(RandomRows, match="torch's default generator"):
            fingerprint(Transformed(RANDOM["torch"][0]), OPTIONS)


def test_what_is_drawn_for_a_row_can_be_keyed() -> None:
    def all_three(rows: Rows, index: int) -> tuple[float, float, Tensor]:
        return random.random(), np.random.rand(), torch.rand(2)

    known = take_fingerprint(Rows(all_three), KEYED)
    random.random(), torch.rand(1)
    assert not compare_fingerprint(known, Rows(all_three), KEYED).difference
    for name, (read, sentence) in RANDOM.items():
        if "own generator" in sentence or "differs" in sentence:
            with pytest.raises(RandomRows):
                take_fingerprint(Rows(read), KEYED)
        elif name != "cached":
            take_fingerprint(Rows(read), KEYED)


@pytest.mark.parametrize(
    ("collate", "sentence"),
    [
        (lambda samples: {"x": torch.rand(len(samples))}, "its collate, which draws from torch's default generator"),
        (lambda samples: {"x": [secrets.token_bytes()]}, "its collate, which gives another batch for the same samples"),
        (lambda samples: {"x": torch.tensor(samples)}, ""),
    ],
)
def test_a_collate_that_draws_is_refused(collate: Callable[[list[Any]], Any], sentence: str) -> None:
    rows = Rows(lambda rows, index: index)
    for keyed in (False, True):
        options = ReadOptions(3, keyed_random=keyed, collate=collate)
        if not sentence:
            digest_rows(rows, options)
            continue
        with pytest.raises(RandomRows) as refused:
            digest_rows(rows, options)
        assert sentence in str(refused.value)


def test_slow_rows_are_hardly_read_more_often_than_for_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    now, reads = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def slow(rows: Rows, index: int) -> int:
        now[0] += chosen_rows.SECONDS / 4
        reads.append(index)
        return index

    digest_rows(Rows(slow), OPTIONS)
    assert len(reads) == chosen_rows.ROWS + 1 + 8, "all rows once, one before, and a batch again"
    reads.clear()
    refuse_random_rows(Rows(slow), OPTIONS)
    assert len(reads) == 1 + 8 + 8, "no digest is wanted"
