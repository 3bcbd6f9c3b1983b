"""Mistakes that the first step shows are refused or named there."""

from pathlib import Path

import pytest

from cli.conftest import Shell
from samestep.cli.main import main

pytestmark = pytest.mark.timeout(300)
RECIPE = str(Path(__file__).parent / "mistaken.py")


def train(shell: Shell, mistake: str, ranks: int = 1, strategy: str = "ddp") -> tuple[list[int | None], str]:
    settings = [f"mistake={mistake}", "name=a", f"distributed.strategy={strategy}"]
    codes, output = shell("train", RECIPE, "--preset", "verify", *settings, ranks=ranks)
    return list(codes), output


@pytest.mark.parametrize(
    ("mistake", "ranks", "strategy", "message"),
    [
        (
            "mean",
            1,
            "ddp",
            "'error' is one number for all rows of a micro-batch, such as a mean, so the run",
        ),
        (
            "mean",
            3,
            "fsdp",
            "'error' is one number for all rows of a micro-batch, such as a mean, so the run",
        ),
        ("broadcast", 1, "ddp", "with the other rows of its micro-batch, so the run depends on how a batch is split"),
        ("broadcast", 2, "ddp", "with the other rows of its micro-batch, so the run depends on how a batch is split"),
        ("fillers", 1, "ddp", "the metric 'right' may count filler rows"),
        ("fillers", 3, "ddp", "the metric 'right' may count filler rows"),
        ("none", 1, "ddp", ""),
        ("none", 3, "fsdp", ""),
    ],
)
def test_what_depends_on_the_ranks_is_named(
    shell: Shell, mistake: str, ranks: int, strategy: str, message: str
) -> None:
    codes, output = train(shell, mistake, ranks, strategy)
    assert codes == [0] * ranks, output
    assert message in output
    assert output.count("WARNING") == (1 if message else 0), output


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ("detached", "term 'error' of learner 'model' has no gradient in the network's parameters, so nothing would"),
        ("integer", "term 'error' of learner 'model' is of the type int64, which has no gradient; give floats"),
    ],
)
def test_a_loss_without_a_gradient_is_refused(shell: Shell, mistake: str, message: str) -> None:
    codes, output = train(shell, mistake)
    assert codes == [2] and message in output, output
    assert not Path("runs/a").exists()


def test_a_parameter_without_a_gradient_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a process alone; DDP refuses it."""
    monkeypatch.chdir(tmp_path)
    assert main(["train", RECIPE, "--preset", "verify", "mistake=unused"]) == 0
    assert "the parameter 'more.bias' and 1 more got no gradient in the first step" in "".join(capsys.readouterr())
