"""All ranks are started alike, each from its own command line: nothing that a rank runs comes out of the store."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from samestep.cli.args import read_start
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.core.json_files import JsonLines
from samestep.launching import local
from samestep.train.session import session
from samestep.train.session.entry import _config_of_rank_0
from samestep.train.session.start import require_same_start
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

pytestmark = pytest.mark.timeout(900)
EXAMPLE = str(Path(__file__).parents[3] / "examples" / "sine.py")
SMALL = ["--preset=verify", "--no-log.tensorboard", "--distributed.device=cpu", "--name=a"]


def main_in(folders: Sequence[str], commands: Sequence[Sequence[str]]) -> int:
    """Each rank runs a command of its own, in a folder of its own."""
    rank = int(os.environ["RANK"])
    os.chdir(folders[rank])
    session.is_disk_shared = lambda folder, world: folders[0] == folders[1]
    return main(commands[rank])


def two_ranks(folder: Path, *commands: Sequence[str], folders: Sequence[Path] = ()) -> tuple[list[int | None], str]:
    """The exit codes, and what rank 0 printed."""
    places = [str(place) for place in folders or (folder, folder)]
    workers = local.start(main_in, 2, places, commands, logs=folder / f"logs_{len(list(folder.iterdir()))}")
    return list(workers.wait(250)), workers.output(0)


@pytest.mark.parametrize(
    ("command", "difference"),
    [
        (["train", "mdlm", *SMALL], "another recipe"),
        (["train", "other/sine.py", *SMALL], "another version of the recipe's file"),
        (["train", EXAMPLE, *SMALL, "--lr=0.5"], "other settings"),
    ],
)
def test_a_rank_that_was_started_otherwise_ends_all_ranks(tmp_path: Path, command: list[str], difference: str) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sine.py").write_text(Path(EXAMPLE).read_text() + "\n# changed\n")
    codes, output = two_ranks(tmp_path, ["train", EXAMPLE, *SMALL], command)
    assert codes == [2, 2], output
    assert f"this rank was started with {difference} than rank 0" in output
    assert "rank 1 on " in output
    assert not (tmp_path / "runs").exists()


def test_a_recipe_file_may_be_in_another_folder_on_another_machine(tmp_path: Path) -> None:
    shutil.copy(EXAMPLE, tmp_path)
    codes, output = two_ranks(tmp_path, ["train", EXAMPLE, *SMALL], ["train", "sine.py", *SMALL])
    assert codes == [0, 0], output


def test_a_rank_that_does_not_see_the_run_takes_the_recipe_that_it_is_given(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    stopped = ["train", EXAMPLE, *SMALL, "--max_steps=100000", "--max_time=1s"]
    assert two_ranks(tmp_path, stopped, stopped, folders=(here, away))[0] == [75, 75]
    resumed = ["train", "--resume", "runs/a", "--max_time=1s"]
    codes, output = two_ranks(tmp_path, resumed, resumed, folders=(here, away))
    assert codes == [2, 2], output
    assert "'runs/a' is not a run directory" in output
    assert "if it is on another machine, name its recipe here with --recipe RECIPE" in output
    codes, output = two_ranks(tmp_path, resumed, [*resumed, "--recipe", EXAMPLE], folders=(here, away))
    assert codes == [75, 75], output
    assert [row["kind"] for row in JsonLines(here / "runs/a/events.jsonl")].count("resume") == 1
    assert not list(away.iterdir())


def test_what_the_store_names_is_not_run(tmp_path: Path) -> None:
    """Somebody who can write to the store can end a run, but cannot have code of his choice run."""
    marker = tmp_path / "ran"
    evil = tmp_path / "evil.py"
    evil.write_text(f"open({str(marker)!r}, 'w')\n" + Path(EXAMPLE).read_text())
    start = read_start([EXAMPLE, *SMALL])
    world = World(RankInfo("torchrun", rank=1, size=2), torch.device("cpu"), store=dist.HashStore())
    for key in ("started with", "settings"):
        world.store.set(f"samestep/share/{key}", json.dumps({"another recipe": str(evil), "recipe": str(evil)}))
    with pytest.raises(UserError, match="this rank was started with another recipe than rank 0"):
        _config_of_rank_0(start, world)
    own = World(RankInfo("torchrun", rank=0, size=2), torch.device("cpu"), store=world.store)
    require_same_start(own, start.name, start.settings)  # whoever knows the hashes still cannot name a recipe
    with pytest.raises(UserError, match="There is no setting 'another recipe'"):
        _config_of_rank_0(start, world)
    assert not marker.exists()
