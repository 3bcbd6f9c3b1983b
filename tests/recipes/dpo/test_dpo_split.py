"""The split into training and validation: by what records say, whatever their order."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from samestep.recipes.dpo.designs import Design
from samestep.recipes.dpo.protein_data import ProteinPair, split_pairs
from samestep.recipes.dpo.structures import Chain, Structure


def pair(number: int, structure: str) -> ProteinPair:
    chain = Chain("A", "A", np.zeros((1, 4, 3), np.float32), np.ones(1, bool), np.zeros(1, np.int64))
    design = Design(Structure((chain,), structure), (chain,), (), np.ones(1, dtype=bool))
    return ProteinPair(number, Path("x.pdb"), design, f"{number}", "A")


def numbers(pairs: list[ProteinPair]) -> list[int]:
    return [pair.number for pair in pairs]


def test_414_records() -> None:
    pairs = [pair(number, f"{number // 4}") for number in range(414)]
    train, validation = split_pairs(pairs, 0.1, 0, "pair")
    assert (len(train), len(validation)) == (372, 42)
    assert numbers(train) == sorted(numbers(train)) and numbers(validation) == sorted(numbers(validation))
    assert sorted(numbers(train) + numbers(validation)) == list(range(414))


def test_the_seed_decides() -> None:
    pairs = [pair(number, "s") for number in range(100)]
    first, again, other = (numbers(split_pairs(pairs, 0.1, seed, "pair")[1]) for seed in (0, 0, 1))
    assert first == again != other


def test_structures_stay_together() -> None:
    pairs = [pair(number, f"{number % 16}") for number in range(64)]
    train, validation = split_pairs(pairs, 0.1, 3, "structure")
    sides = [{each.design.structure.sha256 for each in side} for side in (train, validation)]
    assert not sides[0] & sides[1]
    assert len(validation) == 8  # 7 are wanted; two structures of four are closer than one


def test_equal_records_stay_together() -> None:
    pairs = [pair(number % 25, "s") for number in range(50)]
    for seed in range(20):
        train, validation = split_pairs(pairs, 0.1, seed, "pair")
        assert not set(numbers(train)) & set(numbers(validation)) and len(validation) in (4, 6)


@settings(max_examples=50, deadline=None)
@given(
    structures=st.lists(st.integers(0, 9), min_size=2, max_size=40).filter(lambda s: len(set(s)) > 1),
    by=st.sampled_from(["pair", "structure"]),
    seed=st.integers(0, 99),
)
def test_every_record_is_on_one_side(structures: list[int], by: str, seed: int) -> None:
    pairs = [pair(number, str(structure)) for number, structure in enumerate(structures)]
    train, validation = split_pairs(pairs, 0.1, seed, by)  # type: ignore[arg-type]
    assert sorted(numbers(train) + numbers(validation)) == list(range(len(pairs)))
    assert set(numbers(split_pairs(pairs[::-1], 0.1, seed, by)[1])) == set(numbers(validation))  # type: ignore[arg-type]
