"""How many rows of a micro-batch fit in memory: passes over more and more rows, before a learner's first update.

The sizes are those that cut a rank's share of the global batch evenly, from the smallest on. A size is at most twice
the one before, and is not tried where it would take too much memory by what the last two took. What a rank finds is
agreed on after each size, so all ranks try the same ones; a pass does not communicate, so a rank that runs out of
memory leaves none waiting.
"""

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch

from samestep.core.errors import OutOfMemory
from samestep.data.feed import MicroBatches
from samestep.world.memory import Memory, is_out_of_memory
from samestep.world.world import World

logger = logging.getLogger(__name__)


@dataclass
class SizeTrial:
    """The sizes that a stage's updates try, and the largest that fits all of them so far."""

    world: World
    memory: Memory
    share: int
    """The most rows that a rank has of a global batch."""
    together: int = 1
    """Rows that must be in one micro-batch."""
    reserved: int = 0
    """Bytes that training takes later and a pass does not, such as the state of some optimizers."""
    rows: int = 0
    """The largest size that fits; 0: none was tried."""

    def try_passes(self, passes: Callable[[int], object], gradients: int) -> None:
        """Find how many rows `passes` has memory for, not looking for more than fit before. `gradients`: the bytes that
        these take, however many rows there are."""
        sizes = [size for size in sizes_of(self.share, self.together) if size <= (self.rows or self.share)]
        at_rest = max(self.world.gather((self.memory.used() + gradients + self.reserved) / self.memory.limit))
        taken, too_many = {0: at_rest}, self.share + 1
        for size in reversed(sizes[:2]):  # some networks, such as with batch norms, cannot train on a single row
            first = self._try(passes, size)
            if first is not None and (first <= 1 or size == sizes[0]):
                taken[size] = first
                break
            too_many = size
        else:
            raise OutOfMemory(
                f"out of memory with a micro-batch of {sizes[0]}, and there is no smaller one; use a smaller model, "
                "shorter rows, or distributed.strategy=fsdp"
            )
        while chosen := self._next(sizes, taken, too_many):
            now = self._try(passes, chosen)
            if now is None or now > 1:
                too_many = chosen
            else:
                taken[chosen] = now
        self.rows = max(taken)

    def _next(self, sizes: list[int], taken: dict[int, float], too_many: int) -> int:
        """The size to try now; 0 when the largest that fits is known."""
        before, last = list(taken)[-2:]
        larger = [size for size in sizes if last < size < too_many]
        if not larger:
            return 0
        slope = max(0.0, (taken[last] - taken[before]) / (last - before))
        # Of a single size it is not known how much of it all sizes take; on a device that refuses, one more shows it.
        is_known = before > 0 or not self.memory.refuses
        half_way = (last + too_many) // 2 if too_many <= self.share else self.share
        near = [size for size in larger if size <= max(min(2 * last, half_way), larger[0])]
        fitting = [size for size in near if not is_known or taken[last] + slope * (size - last) <= 1]
        return fitting[-1] if fitting else 0

    def _try(self, passes: Callable[[int], object], size: int) -> float | None:
        """The part of the memory that the passes took on the rank with the least left; None where one had too
        little."""
        self.world.activity.made_progress()
        try:
            most: int | None = self.memory.most_used(lambda: passes(size))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            most = None
        if most is None:  # outside of `except`, whose error holds the tensors of the pass
            gc.collect()
            self.memory.give_back()
        told = self.world.gather(None if most is None else (most + self.reserved) / self.memory.limit)
        found = None if None in told else max(told)
        logger.info("a micro-batch of %d takes %s", size, "too much memory" if found is None else f"{found:.1%}")
        return found


def sizes_of(share: int, together: int = 1) -> list[int]:
    """The sizes of micro-batches that cut a share evenly, the smallest first: any other needs as many of them as the
    next smaller one of these."""
    groups = -(-share // together)
    return sorted({-(-groups // pieces) * together for pieces in range(1, groups + 1)})


def repeated(micro_batches: MicroBatches, rows: int, pieces: int, world: World) -> MicroBatches:
    """As many micro-batches of so many rows each, on every rank: copies of the rows of the largest of these."""
    largest = max(micro_batches.batches, key=lambda batch: sum(value[:1].nbytes for value in batch.values()))
    index = torch.arange(rows, device=largest["live"].device) % len(largest["live"])
    batch = {name: value[index] for name, value in largest.items()} | {"live": torch.ones_like(index, dtype=torch.bool)}
    mine, first = rows * pieces, world.dp_rank * rows * pieces
    return replace(
        micro_batches,
        batches=[batch] * pieces,
        ids=np.tile(micro_batches.ids[:1], (mine * world.dp_size, 1)),
        spans=[(first + rows * piece, first + rows * (piece + 1)) for piece in range(pieces)],
        bounds=[mine * rank for rank in range(world.dp_size + 1)],
    )
