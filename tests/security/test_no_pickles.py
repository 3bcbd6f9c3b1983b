"""Ranks that refuse to read a pickle of another rank: nothing that a run does needs one.

torch's object collectives, which libraries use too where they are given a group, unpickle what comes from a socket.
"""

from pathlib import Path

import pytest
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from samestep.cli.main import main
from samestep.world.world import World
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(900)


class Refused(AssertionError):
    """A pickle came from another rank."""


def refuse_pickles() -> None:
    """From here on, nothing is read that torch would unpickle of another rank."""

    def refuse(*_: object) -> None:
        raise Refused("a pickle of another rank was to be read")

    c10d._tensor_to_object = refuse  # type: ignore[assignment]


def object_collectives() -> None:
    refuse_pickles()
    world = World.join(device="cpu", timeout=60)
    with pytest.raises(Refused):
        dist.all_gather_object([None] * world.size, "text", group=world.control)


def test_object_collectives_are_refused(tmp_path: Path) -> None:
    """Or the test below could not fail."""
    run_on_ranks(object_collectives, 2, logs=tmp_path)


def command(*args: str) -> None:
    refuse_pickles()
    assert main(list(args)) == 0, args


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_needs_none(strategy: str, tmp_path: Path) -> None:
    """It trains, dumps, saves in both ways, resumes, resumes on another number of ranks, evaluates and exports."""
    run, how = str(tmp_path / "run"), f"distributed.strategy={strategy}"
    small = ("--preset=verify", "distributed.device=cpu", "checkpoint.every_steps=1", "evaluation.rows=0")
    launches = (
        (2, "train", "lens", *small, how, "checkpoint.background=true", "max_steps=2", f"out={tmp_path}", "name=run"),
        (2, "train", f"--resume={run}", "max_steps=3", "extend=true", "checkpoint.background=false"),
        (3, "train", f"--resume={run}", "max_steps=4", "extend=true", "checkpoint.background=true"),
        (2, "evaluate", run, "evaluation.rows=7"),
        (1, "export", run, str(tmp_path / "exported")),
    )
    for number, (ranks, *args) in enumerate(launches):
        run_on_ranks(command, ranks, *args, logs=tmp_path / f"logs_{number}")
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints" / "train").glob("step_*"))
    assert saved[-1] == "step_00000004"
    assert any((tmp_path / "exported").iterdir())
