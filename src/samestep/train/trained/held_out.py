"""What `samestep evaluate RUN` measures on: records that the run held back, with the settings that chose them."""

from collections.abc import Mapping
from typing import Any

from samestep.core.config import changed, dump
from samestep.core.errors import UserError
from samestep.core.output import print_text
from samestep.core.rundir import RunDir
from samestep.train.record.run_record import RunRecord
from samestep.train.trained.trained_model import Trained

TEST, VALIDATION = "test", "validation"
"""The parts, as results name them."""


def run_with_its_data(trained: Trained) -> RunDir:
    """The run of a trained model; refused with settings of data other than the run's: what it held back follows from
    them."""
    if trained.run is None:
        raise UserError(
            f"Name the run, or a checkpoint in it, instead of {trained.source}: what was held back for a test or for "
            "validation is known there."
        )
    if others := [name for name in changed_settings(trained) if name.startswith("data.") or name == "seed"]:
        raise UserError(f"Leave out {', '.join(others)}: what was held back was chosen when the run was trained.")
    return trained.run


def changed_settings(trained: Trained) -> list[str]:
    """The settings of a model of a run that are not those of the run, but for those of the machine."""
    record = RunRecord.read(trained.run) if trained.run else None
    found = changed(record.config, dump(trained.config), type(trained.config)) if record else []
    return [name for name in found if not name.startswith("distributed.")]


def show_metrics(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print the part, the metrics, and what they mean."""
    rows = {name: value for name, value in results.items() if name != "notes"}
    width = max(map(len, rows))
    for name, value in rows.items():
        print_text(f"{name:{width}}  {value:.6g}" if isinstance(value, float) else f"{name:{width}}  {value}")
    for sentence in results["notes"]:
        print_text(sentence)
