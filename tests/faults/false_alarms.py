"""Runs that are slow for a good reason: is one of them reported as hanging? With a table.

PYTHONPATH=tests python -m faults.false_alarms [--seconds 120] [--scenarios load cold rollouts validation]

`load`: six busy processes for each core, and steps of milliseconds. `cold`: in the first epoch some rows take up to ten
seconds, later none. `rollouts`: every step generates, a few tokens or thousands. `validation`: rare, and takes a
hundred times as long as a step. Limits are the defaults; exits non-zero when a run was reported, or failed.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from samestep import Bench, Config, Fit, Recipe, Stage, Tick
from samestep.core.config import free
from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED
from samestep.core.json_files import JsonLines, write_json
from samestep.core.rundir import RunDir

NAME = "faults.false_alarms"
SCENARIOS = ("load", "cold", "rollouts", "validation")
REPORT = "which is unusual"
"""Part of every report, in the logs of the ranks."""
BUSY_PER_CORE = 6
ROWS, RANKS = 64, 2
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class SlowConfig(Config):
    """A small network, and something that takes long."""

    scenario: str = free("load")
    """What takes long."""


class ColdRows:
    """Rows of a sine wave; reading one for the first time may take long."""

    def __init__(self, cold: bool) -> None:
        self._cold = set(range(ROWS)) if cold else set()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> Batch:
        if index in self._cold:
            self._cold.remove(index)
            time.sleep(min(10.0, random.Random(index).lognormvariate(-1.0, 1.5)))
        x = torch.tensor([index / 10.0])
        return {"x": x, "y": x.sin()}


class SlowFit(Fit):
    """A fit with a slow validation."""

    slow = False

    def validate(self, tick: Tick) -> Mapping[str, float]:
        if self.slow:
            time.sleep(15.0)
        return super().validate(tick)


def build(bench: Bench) -> SlowFit:
    scenario, lengths = bench.config.scenario, random.Random(bench.world.rank)

    def loss(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        if scenario == "rollouts":
            for _ in range(round(lengths.lognormvariate(3.0, 2.0))):
                time.sleep(0.01)
                bench.world.activity.made_progress()
        if scenario == "validation":
            time.sleep(0.1)
        return error(model, batch)

    def error(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"error": (model(batch["x"]) - batch["y"]).square().sum(1)}

    rows = ColdRows(scenario == "cold")
    fit = SlowFit(
        bench.learner(nn.Linear(1, 1)), bench.feed(rows), loss, validation=bench.evaluation_feed(rows), measure=error
    )
    fit.slow = scenario == "validation"
    return fit


recipe = Recipe(
    config=SlowConfig, stages=lambda config: [Stage("fit", build, validate=SlowFit.validate, best=("val/error", "min"))]
)


@contextmanager
def load(scenario: str) -> Iterator[None]:
    """Keep all cores busy with other things meanwhile, if the scenario is that."""
    count = BUSY_PER_CORE * (os.cpu_count() or 1) if scenario == "load" else 0
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def run(scenario: str, seconds: float, folder: Path) -> tuple[str, bool]:
    """Run one scenario; the row of the table, and whether all was well."""
    settings = {
        "out": str(folder),
        "name": scenario,
        "scenario": scenario,
        "max_steps": 1_000_000,
        "max_time": f"{seconds:.0f}s",
        "batch_size": 1,
        "validate_every": 300 if scenario == "validation" else 0,
        "distributed": {"device": "cpu", "backend": "gloo"},
        "log": {"quiet": True, "tensorboard": False, "every": 1},
    }
    write_json(folder / f"{scenario}.yaml", settings)
    command = [
        sys.executable,
        "-m",
        "samestep",
        "train",
        NAME,
        f"--config={folder / scenario}.yaml",
        f"--nproc={RANKS}",
    ]
    with load(scenario):
        code = subprocess.run(command, check=False).returncode
    rundir = RunDir(folder / scenario)
    seconds_of_steps = [RANKS / row["rows/s"] for row in JsonLines(rundir.metrics) if row.get("rows/s")]
    slowest = max(seconds_of_steps, default=0.0)
    reports = sum(log.read_text().count(REPORT) for log in (rundir.path / "logs").glob("rank_*.log"))
    row = f"| {scenario} | {len(seconds_of_steps)} | {slowest:.1f} s | {reports} | {code} |"
    return row, reports == 0 and code in (EXIT_DONE, EXIT_PREEMPTED)


def main(args: Sequence[str] | None = None) -> int:
    """Run all scenarios and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long each run takes")
    parser.add_argument("--scenarios", nargs="+", default=list(SCENARIOS), choices=SCENARIOS)
    options = parser.parse_args(args)
    folder = Path(tempfile.mkdtemp(prefix="samestep-false-alarms-"))
    print("| slow | steps | slowest step | reports | exit code |\n|---|---|---|---|---|", flush=True)
    good = True
    for scenario in options.scenarios:
        row, well = run(scenario, options.seconds, folder)
        print(row, flush=True)
        good = good and well
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
