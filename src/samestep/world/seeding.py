"""Torch's own random state: equal on all ranks while models are built, different afterwards, saved per rank."""

import random

import numpy as np
import torch

from samestep.core.json_files import Json
from samestep.world.world import World


def seed_everywhere(seed: int) -> None:
    """The same state on every rank, so that every rank builds the same model at any world size."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class RandomState:
    """The generators of this rank as checkpoint state."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._seed = seed

    def seed_this_rank(self) -> None:
        """Give this rank a stream of its own: what is drawn from torch after set-up should not repeat over ranks."""
        seed_everywhere((self._seed * 1_000_003 + self._world.rank + 1) % 2**63)

    def state_dict(self) -> dict[str, Json]:
        """There is no state that all ranks share."""
        return {}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """There is no state that all ranks share."""

    def rank_state(self) -> Json:
        """The states of this rank's generators, as text."""
        numpy_state = np.random.get_state(legacy=False)
        keys = numpy_state["state"]["key"]
        state = {
            "torch": _text(torch.get_rng_state()),
            "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": keys.tolist()}},
            "python": random.getstate(),
        }
        if self._world.device.type == "cuda":
            state["cuda"] = _text(torch.cuda.get_rng_state(self._world.device))
        return state

    def load_rank_state(self, states: list[Json]) -> None:
        """Continue this rank's streams; at another world size fresh ones begin."""
        if len(states) != self._world.size:
            self.seed_this_rank()
            return
        self.restore(states[self._world.rank])

    def restore(self, mine: Json) -> None:
        """Continue with what `rank_state` returned on this rank."""
        torch.set_rng_state(_bytes(mine["torch"]))
        keys = np.array(mine["numpy"]["state"]["key"], dtype=np.uint32)
        np.random.set_state({**mine["numpy"], "state": {**mine["numpy"]["state"], "key": keys}})
        version, state, gauss = mine["python"]
        random.setstate((version, tuple(state), gauss))
        if "cuda" in mine and self._world.device.type == "cuda":
            torch.cuda.set_rng_state(_bytes(mine["cuda"]), self._world.device)


def _text(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _bytes(text: str) -> torch.Tensor:
    return torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8)
