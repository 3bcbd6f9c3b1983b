"""Finished runs that several tests read."""

import csv
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.launching import local

SINE = Path(__file__).parents[3] / "examples" / "sine.py"


@pytest.fixture(scope="package")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on one file with different splits, `a` with a stage `mle`; and a run of another recipe."""
    folder = tmp_path_factory.mktemp("compared")
    with (folder / "stories.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["title", "genre", "human_story"])
        rows.writerows([f"{number}", "calm" if number % 3 else "wild", f"It was day {number}."] for number in range(40))
    small = ["--preset", "verify", "--out", str(folder), "--no-log.tensorboard"]
    data = [f"data.path={folder / 'stories.csv'}", "data.validation_fraction=0.4", "max_steps=2"]
    jobs = {
        "a": ["gan", *small, *data, "mle_epochs=1"],
        "b": ["gan", *small, *data, "seed=3", "learning_rate=0.1"],
        "sine": [str(SINE), *small],
    }
    started = [
        local.start(main, 1, ["train", *args, "--name", name], logs=folder / f"out_{name}")
        for name, args in jobs.items()
    ]
    for workers in started:
        assert workers.wait(60) == [0], workers.output(0)
    return folder
