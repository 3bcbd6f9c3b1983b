"""kill -9 at random moments and at every instant of a save: a selection; `make faults` has the whole."""

import random

import pytest

from faults.campaign import blows
from faults.inside import Blow
from faults.trials import kill_inside, random_kill
from faults.yard import Yard

pytestmark = pytest.mark.timeout(120)
SEED = 4


@pytest.mark.parametrize(
    ("world", "everyone"), [(1, True), (2, True), (2, False), (3, False), (3, True)], ids=lambda value: str(value)
)
def test_a_random_kill(yard: Yard, world: int, everyone: bool) -> None:
    label = f"random-{world}-{everyone}"
    trial = random_kill(yard, label, world, everyone, random.Random(f"{SEED}{label}"))
    assert not trial.problems, trial


@pytest.mark.parametrize("blow", blows(2), ids=lambda blow: f"{blow.phase}-{blow.ranks}")
def test_a_kill_inside_a_save(yard: Yard, blow: Blow) -> None:
    trial = kill_inside(yard, f"inside-{blow.phase}-{len(blow.ranks)}-{blow.ranks[0]}", 2, blow)
    assert trial.kills == 1
    assert not trial.problems, trial
