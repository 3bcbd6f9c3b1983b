"""Torch's own random state as checkpoint state."""

import json
import random

import numpy as np
import torch

from samestep.world.rank_discovery import RankInfo
from samestep.world.seeding import RandomState, seed_everywhere
from samestep.world.world import World


def draw() -> tuple[list[float], float, float]:
    return torch.rand(3).tolist(), float(np.random.rand()), random.random()


def test_a_saved_state_goes_on_where_it_was() -> None:
    state = RandomState(World.single(), seed=7)
    state.seed_this_rank()
    draw()
    saved = json.loads(json.dumps(state.rank_state()))
    expected = draw()
    seed_everywhere(0)
    state.load_rank_state([saved])
    assert draw() == expected


def test_ranks_draw_apart_after_set_up_and_alike_during_it() -> None:
    drawn = []
    for rank in range(3):
        seed_everywhere(5)
        alike = draw()
        RandomState(World(RankInfo("test", rank, 3), torch.device("cpu")), seed=5).seed_this_rank()
        drawn.append((alike, draw()))
    assert len({repr(alike) for alike, _ in drawn}) == 1
    assert len({repr(apart) for _, apart in drawn}) == 3


def test_at_another_world_size_fresh_streams_begin() -> None:
    one = RandomState(World.single(), seed=3)
    one.seed_this_rank()
    fresh = draw()
    one.load_rank_state([one.rank_state(), one.rank_state()])
    assert draw() == fresh
