"""batch_size=auto finds what fits on every rank, once, and the run is that of the number that it found."""

from pathlib import Path

import pytest
import torch

from cli.conftest import Shell
from samestep.checkpoint.loading import read_tensors
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir

pytestmark = pytest.mark.timeout(300)
RECIPE = str(Path(__file__).parent / "sized.py")


def train(shell: Shell, name: str, rows: str, *settings: str, ranks: int, most: str) -> str:
    args = ["train", RECIPE, "--preset", "verify", f"name={name}", f"batch_size={rows}", "log.every=1", *settings]
    codes, output = shell(*args, ranks=ranks, env={"MOST_ROWS": most})
    assert codes == [0] * ranks, output
    return output


def tried(rank: int) -> list[int]:
    """The rows of all calls of the loss so far, which are forgotten."""
    path = Path(f"rows_{rank}")
    found = [int(line) for line in path.read_text().split()]
    path.unlink()
    return found


def state(name: str) -> list[torch.Tensor]:
    """All tensors of the last checkpoint."""
    last = RunDir(Path("runs") / name).checkpoints("fit") / "step_00000004"
    parts = ("model/model", "model/optimizer", "average/model")
    return [tensor for part in parts for _, tensor in sorted(read_tensors(last, part).items())]


def losses(name: str) -> list[float]:
    return [row["loss"] for row in JsonLines(RunDir(Path("runs") / name).metrics) if "loss" in row]


def test_on_two_ranks_it_is_what_fits_both_and_the_same_run(shell: Shell) -> None:
    """12 rows each: 6 fit rank 0 and 5 rank 1, so three micro-batches of 4."""
    output = train(shell, "a", "auto", ranks=2, most="6,5")
    assert "12 (3 micro-batches of at most 4; measured in " in output
    assert read_json(RunDir(Path("runs/a")).first_launch)["fit"]["batch_size"] == 4
    first, second = tried(0), tried(1)
    assert max(first) == max(second) == 6 and set(first[-12:]) == {4}, "both tried the same"
    train(shell, "b", "4", "global_batch_size=24", ranks=2, most="6,5")
    assert len(state("a")) > 15 and all(map(torch.equal, state("a"), state("b")))
    assert losses("a") == losses("b") and len(losses("a")) == 4
    tried(0)
    output = shell("train", "--resume", "runs/a", "max_steps=6", "--extend", ranks=2, env={"MOST_ROWS": "99,99"})[1]
    assert "12 (3 micro-batches of at most 4; as measured at the first launch)" in output
    assert max(tried(0)) == 4, "nothing was tried again, although more would fit now"


def test_alone_the_whole_share_is_tried_at_twice_the_size_before(shell: Shell) -> None:
    output = train(shell, "a", "auto", ranks=1, most="99")
    assert "batch size per GPU  24 (measured in " in output
    assert list(dict.fromkeys(tried(0)))[:5] == [2, 4, 8, 12, 24]


def test_what_does_not_fit_at_all_is_said(shell: Shell) -> None:
    args = ["train", RECIPE, "--preset", "verify", "name=a", "batch_size=auto"]
    codes, output = shell(*args, ranks=2, env={"MOST_ROWS": "0,0"})
    assert codes == [77, 77], output
    assert "out of memory with a micro-batch of 1, and there is no smaller one; use a smaller model" in output


def test_one_rank_that_does_not_know_its_memory_stops_all_from_measuring(shell: Shell) -> None:
    args = ["train", RECIPE, "--preset", "verify", "name=a", "batch_size=auto"]
    codes, output = shell(*args, ranks=2, env={"MOST_ROWS": "99,99", "NO_MEMORY_ON": "1"})
    assert codes == [0, 0] and "not measured, since this system does not tell how much memory is free" in output


def test_a_network_in_parts_is_refused(shell: Shell) -> None:
    args = ["train", RECIPE, "--preset", "verify", "name=a", "batch_size=auto", "distributed.strategy=fsdp"]
    codes, output = shell(*args, ranks=2, env={"MOST_ROWS": "9,9"})
    assert codes == [2, 2] and "give batch_size a number" in output, output
    assert not Path("runs/a").exists()


def test_without_a_global_batch_there_is_nothing_to_cut(shell: Shell) -> None:
    args = ["train", RECIPE, "--preset", "verify", "name=a", "batch_size=auto", "global_batch_size=null"]
    codes, output = shell(*args, env={"MOST_ROWS": "9"})
    assert codes == [2] and "no global batch is given; add global_batch_size=N" in output, output
    assert not Path("runs/a").exists()
