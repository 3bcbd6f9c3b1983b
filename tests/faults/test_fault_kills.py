"""kill -9 at random moments and at every phase of a save: a selection; `make faults` runs all of them."""

import random

import pytest

from faults.campaign import save_faults
from faults.fault_injection import SaveFault
from faults.fault_runs import FaultRuns
from faults.trials import kill_during_save, random_kill

pytestmark = pytest.mark.timeout(900)
SEED = 4


@pytest.mark.parametrize(
    ("world", "all_ranks"), [(1, True), (2, True), (2, False), (3, False), (3, True)], ids=lambda value: str(value)
)
def test_a_random_kill(runs: FaultRuns, world: int, all_ranks: bool) -> None:
    label = f"random-{world}-{all_ranks}"
    trial = random_kill(runs, label, world, all_ranks, random.Random(f"{SEED}{label}"))
    assert not trial.problems, trial


@pytest.mark.parametrize("fault", save_faults(2), ids=lambda fault: f"{fault.phase}-{fault.ranks}")
def test_a_kill_during_a_save(runs: FaultRuns, fault: SaveFault) -> None:
    trial = kill_during_save(runs, f"save-{fault.phase}-{len(fault.ranks)}-{fault.ranks[0]}", 2, fault)
    assert trial.kills == 1
    assert not trial.problems, trial
