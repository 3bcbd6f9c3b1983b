"""Which share of the data a process takes: its data-parallel rank and size, and the group that averages gradients.

Without model parallelism every process takes its own share. Where several processes compute one model together
(tensor parallelism, or copies of it), those of a model-parallel group take the same share, and one of them counts it:

    ranks 0 1 2 3, model-parallel groups [0, 1] and [2, 3], data-parallel groups [0, 2] and [1, 3]
    rank  0 1 2 3
    share 0 0 1 1    DataParallel.over(group, counted=rank % 2 == 0)
"""

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True)
class DataParallel:
    """The data-parallel coordinates of a process."""

    rank: int
    """The number of its share; also its rank in the group."""
    size: int
    """How many shares the global batch is cut into."""
    group: Any = None
    """The processes that hold the other shares for the same part of the model; None: all processes."""
    counted: bool = True
    """Whether it is the one of its model-parallel group that counts the share in sums over all processes."""

    def __post_init__(self) -> None:
        assert 0 <= self.rank < self.size, f"data-parallel rank {self.rank} of {self.size}"

    @classmethod
    def over(cls, group: Any, counted: bool) -> "DataParallel":
        """The coordinates that follow from a data-parallel process group; `World.open_group` opens one."""
        return cls(dist.get_rank(group), dist.get_world_size(group), group, counted)
