"""What `samestep train` says before torch is loaded."""

import pytest

from samestep.cli import train
from samestep.core import launch_env

SIX = {"WORLD_SIZE": "6", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("terminal", "env", "said"),
    [
        (True, {}, 1),
        (False, {}, 0),
        (True, {"RANK": "0", **SIX}, 1),
        (True, {"RANK": "1", **SIX}, 0),
        (True, {"RANK": "0", **SIX, launch_env.PARENT: "1"}, 0),
        (True, {launch_env.PARENT: "1"}, 1),
    ],
)
@pytest.mark.parametrize(("args", "begins"), [(["mdlm"], "_train"), (["mdlm", "--nproc", "2"], "_launch")])
def test_a_terminal_is_told_at_once_that_it_starts(
    terminal: bool,
    env: dict[str, str],
    said: int,
    args: list[str],
    begins: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before: list[str] = []
    monkeypatch.setattr(train, begins, lambda *args: before.append(capsys.readouterr().err) or 0)
    monkeypatch.setattr(train, "is_terminal", lambda file: terminal)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert train.run(args) == 0
    assert [line.count("torch is loaded first") for line in before] == [said]
