"""Using a trained network on many inputs, outside of training: the same bits at any number of ranks.

Which rows are computed together can change the last bits of what a network says, and so a token. So the batches are
made first, of rows of similar length, and then shared out.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.errors import print_error
from samestep.parallel.precision import COMPUTE_DTYPES, autocast, cast_for_good
from samestep.train.api.generation import LocalGenerator
from samestep.train.api.whole_set import gather_tensors
from samestep.train.trained.trained_model import Trained
from samestep.world.world import World


def network_of(trained: Trained, learner: str, device: torch.device) -> tuple[nn.Module, torch.dtype | None]:
    """A network that is only used, and the type that it computes in where that is not the type of its weights."""
    network, compute = trained.network(learner, device), compute_dtype(trained.config, device)
    cast_for_good(network, compute)
    return network, compute


def compute_dtype(config: Any, device: torch.device) -> torch.dtype | None:
    """The type of mixed precision that a run was trained with; None on a CPU."""
    return None if device.type == "cpu" else COMPUTE_DTYPES.get(config.distributed.mixed_precision)


def my_batches(lengths: Sequence[int], rows: int, world: World, most: int | None = None) -> list[list[int]]:
    """The batches of this rank, of rows of similar length; every rank has as many, though some may be empty.

    A batch has at most `rows` rows, and with padding at most `most` tokens, unless a single row has more.
    """
    batches: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda number: lengths[number]):
        size = len(batches[-1]) + 1 if batches else rows + 1
        if size > rows or (most is not None and size * lengths[number] > most):
            batches.append([])
        batches[-1].append(number)
    batches += [[] for _ in range(-len(batches) % world.size)]
    return batches[world.rank :: world.size]


def compute_rows(
    lengths: Sequence[int], rows: int, world: World, compute: Callable[[list[int]], Mapping[str, Tensor]]
) -> dict[str, Tensor]:
    """What `compute` gives for the rows of each batch, on the CPU of every rank, in the order of the rows. Collective.

    A rank without a batch computes a row all the same: a sharded network must be called by all.
    """
    parts: list[dict[str, Tensor]] = []
    for batch in my_batches(lengths, rows, world):
        with torch.no_grad():
            found = {**compute(batch or [0]), "number": torch.tensor(batch or [0])}
        parts.append({name: value[: len(batch)].cpu() for name, value in found.items()})
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    gathered = gather_tensors(world, joined)
    order = gathered.pop("number").argsort()
    return {name: value[order] for name, value in gathered.items()}


def say_idle(idle: int, world: World) -> None:
    """Say on rank 0 that some ranks have nothing to do."""
    if idle and world.is_main:
        print_error(f"{idle} of {world.size} ranks have nothing to do; a smaller --batch_size helps")


def in_order(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """What the ranks computed, as pairs of number and value: the values by number."""
    return [value for _, value in sorted((pair for part in parts for pair in part), key=lambda pair: pair[0])]


def complete(
    generator: LocalGenerator,
    network: nn.Module,
    compute: torch.dtype | None,
    prompts: Sequence[Sequence[int]],
    ids: Tensor,
) -> list[tuple[list[int], bool]]:
    """For each prompt the tokens that follow it, and whether they end by themselves.

    `ids` [prompts, 2] key the noise. Collective: all ranks have all prompts, and get all completions.
    """
    world = generator.world
    mine: dict[int, tuple[list[int], bool]] = {}
    for batch in my_batches(list(map(len, prompts)), generator.config.rows_at_once, world):
        with autocast(world.device, compute):
            made = generator(network, [prompts[number] for number in batch], ids[batch], step=0)
        mine |= zip(batch, zip(made.to_lists(), made.finished.tolist(), strict=True), strict=True)
    return [(tokens, ended) for tokens, ended in in_order(world.gather(list(mine.items())))]
