"""What `samestep train` says about a run that depends on the number of ranks, and that it says nothing of others."""

from pathlib import Path

import pytest

from cli.conftest import EXAMPLE, SMALL, Shell

pytestmark = pytest.mark.timeout(900)


def warnings(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("WARNING")]


def test_rank_0_says_it_once(shell: Shell) -> None:
    codes, output = shell("train", "planted.rank_noise", *SMALL, "--name", "a", ranks=3)
    assert codes == [0, 0, 0], output
    (line,) = warnings(output)
    assert line.startswith("WARNING: learner 'model': torch.rand_like in the loss draws from torch's own generator")
    assert line.endswith('so the run depends on the number of ranks; use samestep.noise keyed by batch["ids"]')
    logs = [(Path("runs/a/logs") / f"rank_{rank}.log").read_text() for rank in range(3)]
    assert [log.count("torch.rand_like") for log in logs] == [1, 0, 0]


@pytest.mark.parametrize("recipe", [str(EXAMPLE), "mdlm", "planted.keyed_dropout"])
def test_nothing_is_said_of_sound_recipes(shell: Shell, recipe: str) -> None:
    codes, output = shell("train", recipe, *SMALL, "--max_steps", "2", "--name", "a")
    assert codes == [0], output
    assert warnings(output) == []
    assert " WARNING " not in Path("runs/a/logs/rank_0.log").read_text()
