"""The settings of a stage that trains nothing and only writes what a network says of many rows."""

from dataclasses import replace
from typing import Protocol, TypeVar

from samestep.train.record.config import Config

C = TypeVar("C", bound=Config)


class DumpSettings(Protocol):
    """The part of a recipe's settings that is about such a stage."""

    @property
    def batch_size(self) -> int:
        """Rows at once on a device."""

    @property
    def save_every(self) -> int:
        """Steps that a kill may cost."""


def dump_config(config: C, own: DumpSettings) -> C:
    """The settings of a run, for its stage that only writes."""
    saves = replace(config.checkpoint, every_steps=own.save_every)
    return replace(config, batch_size=own.batch_size, checkpoint=saves)
