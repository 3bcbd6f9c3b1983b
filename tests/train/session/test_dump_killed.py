"""A dump that is killed in the middle of a step, and resumed on other ranks, writes the bytes of one that was not."""

from pathlib import Path

import numpy as np
import pytest
import torch

from cli.conftest import Shell
from samestep.core.json_files import JsonLines, read_json
from samestep.train.artifacts.array_rows import ArrayRows
from train.session.dumped_line import ROWS, SETTINGS, SOURCE

pytestmark = pytest.mark.timeout(900)
DUMP = ["train", "line.py", *SETTINGS, "--until", "dump"]


@pytest.fixture
def shell(shell: Shell) -> Shell:
    (shell.folder / "line.py").write_text(SOURCE)
    np.savetxt(shell.folder / "numbers.txt", np.linspace(-1, 1, ROWS))
    return shell


def content(run: str) -> dict[str, bytes]:
    folder = Path("runs") / run / "artifacts" / "dump"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("[!d]*/*")}


def test_bytes_are_those_of_an_uninterrupted_dump(shell: Shell) -> None:
    codes, output = shell(*DUMP, "--name", "whole")
    assert codes == [0], output
    codes, output = shell(*DUMP, "--name", "killed", ranks=2, env={"KILL_AT": "5"})
    assert codes == [-9, -9], output
    folder = Path("runs/killed/artifacts/dump")
    steps = np.load(folder / ".squares.partial" / ".steps.npy")
    assert 6 in steps and 0 in steps, "some rows of the step in which it was killed are there, and not all"
    assert not (folder / "squares").exists() and not (folder / "done.json").exists()
    codes, output = shell("train", "--resume", "killed", ranks=3)
    assert codes == [0, 0, 0], output
    resumed = [event["step"] for event in JsonLines(Path("runs/killed/events.jsonl")) if event["kind"] == "resume"]
    assert resumed in ([2], [4]), "the save of step 4 may not have ended by then"
    assert content("killed") == content("whole") and len(content("whole")) == 4
    rows = ArrayRows(folder / "squares")
    x = torch.from_numpy(np.linspace(-1, 1, ROWS))
    assert torch.equal(rows.rows(range(ROWS))["x"][:, 0], x.float())
    assert torch.equal(rows.rows(range(ROWS))["y"][:, 0], x.float().square().bfloat16())
    assert read_json(folder / "count.json") == ROWS
    codes, output = shell(*DUMP, "--name", "taken", "--stages_from", "whole", ranks=2)
    assert codes == [0, 0] and "stage 'dump' is taken over from runs/whole" in output, output
    assert content("taken") == content("whole")
