"""The settings of a proof, from a recipe's preset."""

from pathlib import Path

import pytest

from samestep.core.config import build, dump
from samestep.data.order import micro_batches
from samestep.train.record.config import Config
from samestep.verify.runner import other_batch_size, proof_settings, uneven_batch


def settings(**changes: object) -> dict:
    config = {**dump(Config()), **changes}
    return proof_settings(config, changes, Path("x"), 15)


def test_a_proof_is_in_float64_on_the_cpu_and_recorded() -> None:
    found = settings(compile=True, global_batch_size=10, max_steps=8)
    config = build(Config, found)
    where = config.distributed
    assert (where.dtype, where.device, where.backend) == ("float64", "cpu", "gloo")
    assert config.evidence
    assert not config.compile
    assert (config.global_batch_size, config.max_steps, config.out) == (10, 8, "x")
    assert config.checkpoint.every_steps == 2
    assert config.validate_every == 4


def test_steps_are_few_unless_the_preset_counts_epochs() -> None:
    assert settings()["max_steps"] == 8
    assert settings(epochs=2)["max_steps"] is None
    assert settings(max_steps=3)["checkpoint"]["every_steps"] == 1


@pytest.mark.parametrize("micro", [1, 2, 3, 8, 16])
def test_a_batch_is_chosen_that_cannot_be_shared_evenly(micro: int) -> None:
    batch = settings(batch_size=micro)["global_batch_size"]
    assert batch == uneven_batch(micro)
    assert batch > 2 * micro
    assert batch % 2
    assert batch % 3


@pytest.mark.parametrize(("batch", "micro"), [(10, 3), (10, 5), (7, 3), (7, 7), (3, 3), (13, 1)])
def test_another_micro_batch_size_cuts_unevenly(batch: int, micro: int) -> None:
    other = other_batch_size(batch, micro)
    assert other is not None
    cuts = [{stop - start for start, stop in micro_batches(batch, 0, 1, rows)} for rows in (micro, other)]
    assert len(micro_batches(batch, 0, 1, micro)) != len(micro_batches(batch, 0, 1, other))
    assert any(len(sizes) > 1 for sizes in cuts), "equal micro-batches hide that each counts the same"


@pytest.mark.parametrize(("batch", "micro", "other"), [(12, 4, 12), (2, 1, 2), (2, 2, 1)])
def test_a_batch_that_only_cuts_evenly_is_still_cut_differently(batch: int, micro: int, other: int) -> None:
    assert other_batch_size(batch, micro) == other


def test_a_single_row_cannot_be_cut_differently() -> None:
    assert other_batch_size(1, 1) is None
