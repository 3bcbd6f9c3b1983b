"""Each planted mistake is found, and its cause is named."""

import re
from pathlib import Path

import pytest

from samestep.cli.verify import run

DRAWN = "random numbers were drawn from torch's own generator during the update"
LOW = "arithmetic in float32 or less inside this float64 run"
ORDER = "a loss that depends on the order of its rows"
PLANTED = {
    "rank_noise": ("row losses at 1, 2, 3 ranks", rf"row \(\d+, \d+\) .*{DRAWN}"),
    "unkeyed_dropout": ("row losses at 1, 2, 3 ranks", DRAWN),
    "functional_dropout": ("row losses at 1, 2, 3 ranks", DRAWN),
    "batch_norm": ("same run with batch_size 3 and 7", "the same data and parameters: BatchNorm module '1' normalises"),
    "mean_of_means": ("gradients at 1, 2, 3 ranks", r"row's loss agrees: each rank divides .*\(mean of means\)"),
    "accumulation_weight": ("same run with batch_size 3 and 7", r"its own size .*\(wrong accumulation weight\)"),
    "accumulation_count": (
        "same run with batch_size 3 and 7",
        r"the weight depends on .*\(wrong accumulation weight\)",
    ),
    "forgotten_state": (
        "kill -9, resume at 2 ranks",
        r"resumed at step (\d): from step \1 on .*; candidates: a forgotten state",
    ),
    "module_call": ("runs on one rank", "went around it, through a part or another method"),
    "unsynchronised": ("parameters equal on all ranks", r"after step 0 at 2 ranks .*not synchronised"),
    "padded_validation": ("validation at 1, 2, 3 ranks", "candidates: padded validation"),
    "unseeded_split": ("same run with batch_size 3 and 7", "holds other data .*candidates: an unseeded split"),
    "hash_order": ("same run with batch_size 3 and 7", "holds other data"),
    "early_return": (
        "runs at 2 ranks",
        r"rank \d left step \d after 0 updates of 1 while rank \d did not get to its end: an early return",
    ),
    "neighbour_dump": (
        "artifacts at 1, 2, 3 ranks",
        r"row \d+ of the array dump/outputs/score.npy differs; .* ranks",
    ),
    "idle_parameter": ("every parameter gets a gradient", "model.idle.weight, model.idle.bias never got one"),
}

LONG = (
    *("functional_dropout", "unkeyed_dropout", "batch_norm", "accumulation_weight", "accumulation_count"),
    *("padded_validation", "hash_order", "neighbour_dump", "idle_parameter"),
)
"""Those that `make test` leaves out: most are like another one."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in LONG else name for name in PLANTED]
)
def test_planted_mistake(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check, cause = PLANTED[name]
    code = run([f"planted.{name}", "--kill-seed", "3", "--timeout", "5", "--keep", str(tmp_path / "runs")])
    output = capsys.readouterr().out
    assert code == 1, output
    failed = [line for line in output.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1, output
    assert re.fullmatch(rf"FAILED  {check}: .*{cause}.*", failed[0]), output
    assert str(tmp_path / "runs") in output


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "first"), [("order_dependent", ORDER), pytest.param("low_precision", LOW, marks=pytest.mark.long)]
)
def test_where_nothing_can_be_proved_that_is_reported(
    name: str, first: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([f"planted.{name}", "--kill-seed", "3", "--timeout", "5", "--keep", str(tmp_path / "runs")])
    output = capsys.readouterr().out
    assert code == 1, output
    assert "FAILED" not in output, "what another order changes is not known to be a mistake"
    floor = next(line for line in output.splitlines() if " rounding floor: " in line)
    assert re.match(rf"UNVERIFIABLE rounding floor: losses .*; candidates: {first}", floor), output
    assert "\nUNVERIFIABLE gradients at 1, 2, 3 ranks: " in output
    assert "checks are unverifiable, so this is not a proof" in output
