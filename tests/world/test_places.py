"""Rank discovery from the environment."""

import pytest

from samestep.core.errors import UserError
from samestep.world.ranks import discover

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node1",
    "MASTER_PORT": "29500",
}


def test_no_launcher_is_a_single_process_without_a_group() -> None:
    place = discover({})
    assert (place.rank, place.size, place.grouped) == (0, 1, False)


def test_torchrun() -> None:
    place = discover(TORCHRUN)
    assert (place.launcher, place.rank, place.size, place.local_rank, place.local_size, place.grouped) == (
        "torchrun",
        5,
        8,
        1,
        4,
        True,
    )


def test_one_rank_under_torchrun_still_has_a_group() -> None:
    place = discover({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"})
    assert place.grouped


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_half_set_variables_never_become_a_single_run(missing: str) -> None:
    env = {name: value for name, value in TORCHRUN.items() if name != missing}
    with pytest.raises(UserError, match=missing):
        discover(env)


@pytest.mark.parametrize("changes", [{"RANK": "8"}, {"RANK": "-1"}, {"RANK": "one"}, {"WORLD_SIZE": ""}])
def test_nonsense_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(UserError):
        discover({**TORCHRUN, **changes})
