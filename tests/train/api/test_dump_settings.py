"""Settings of a stage that only writes."""

from dataclasses import dataclass

from samestep import Config
from samestep.core.config import changed, dump
from samestep.train.api.dump import dump_config


@dataclass(frozen=True)
class Own:
    batch_size: int = 7
    save_every: int = 3


def test_rows_at_once_and_what_a_kill_may_cost() -> None:
    before = Config(batch_size=2)
    found = dump_config(before, Own())
    assert (found.batch_size, found.checkpoint.every_steps) == (7, 3)
    other = {**dump(before), "batch_size": 7, "checkpoint": {**dump(before)["checkpoint"], "every_steps": 3}}
    assert dump(found) == other and type(found) is Config
    assert changed(dump(found), other, Config) == []
