"""`samestep checkpoints RUN [--verify]`: what was saved, when, how large, and whether it is intact.

Torch is not needed and not imported, so the answer comes immediately.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from textwrap import indent

from samestep.checkpoint.manifest import STAGING, Checkpoint, checkpoint_folders, quick_check, step_of, verify
from samestep.checkpoint.retention import MODES, Retention
from samestep.cli.args import parse_run
from samestep.cli.help import asks_for_help
from samestep.core.durations import ago
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE
from samestep.core.json_files import damage_of_file
from samestep.core.output import format_size, print_text
from samestep.core.pages.tables import Column, Table
from samestep.core.rundir import RunDir
from samestep.train.record.run_record import find_run, stage_folders

HELP = """samestep checkpoints RUN [--verify]

Lists the checkpoints of a run. Without --verify only manifests and file sizes are checked; with it every byte is read
and compared with its checksum. The exit code is 1 when a checkpoint is damaged."""


def run(args: Sequence[str]) -> int:
    """List the checkpoints of a run; 1 when some are damaged."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    name, options = parse_run(args, "samestep checkpoints RUN [--verify]", flags=["verify"])
    rundir = find_run(name, damaged=True)
    for file in (rundir.config, rundir.first_launch):
        if damage := damage_of_file(file):
            print_text(f"{file} is damaged: {damage}")
    stages = [Listing.of(folder) for folder in stage_folders(rundir)]
    if not any(stage.found for stage in stages):
        print_text(f"the run {rundir.path} has no checkpoint yet")
    return _show(rundir, stages, read_all="verify" in options)


@dataclass(frozen=True)
class Listing:
    """The checkpoints of one stage."""

    folder: Path
    found: list[Checkpoint]
    unfinished: list[int]
    """Steps of saves that are in progress or were interrupted."""

    @classmethod
    def of(cls, folder: Path) -> "Listing":
        """What manifests and file sizes show."""
        found = [quick_check(path, step) for step, path in sorted(checkpoint_folders(folder).items())]
        staging = [step_of(path.name.removeprefix(STAGING)) for path in sorted(folder.glob(f"{STAGING}*"))]
        # a live run may have removed one in the meantime
        return cls(folder, [c for c in found if c.path.is_dir()], [step for step in staging if step is not None])

    def metric_name(self) -> str:
        """The name of the metric by which checkpoints are compared."""
        return next((str(c.about["metric_name"]) for c in self.found if "metric_name" in c.about), "metric")

    def roles(self) -> dict[int, str]:
        """Which checkpoint is the newest and which the best, among those not known to be damaged."""
        good = [c for c in self.found if c.damage is None]
        mode = next((c.about["metric_mode"] for c in good if c.about.get("metric_mode") in MODES), "min")
        roles = {c.step: ", best" for c in Retention(mode=mode).ranked(good)[:1]}
        if good:
            roles[good[-1].step] = ", newest" + roles.get(good[-1].step, "")
        return roles


def _show(rundir: RunDir, stages: Sequence[Listing], read_all: bool) -> int:
    damaged = 0
    for stage in stages:
        if read_all:
            stage = replace(stage, found=[_read(found) for found in stage.found])
        total = format_size(sum(_size(found) for found in stage.found))
        print_text(f"stage {stage.folder.name}: {len(stage.found)} checkpoints, {total} in {stage.folder}")
        _table(stage)
        for step in stage.unfinished:
            print_text(f"  the save of step {step} is in progress, or was interrupted and is removed at the next start")
        damaged += sum(found.damage is not None for found in stage.found)
    if not read_all and any(stage.found for stage in stages):
        print_text(
            f"only manifests and sizes were checked; samestep checkpoints {rundir.path} --verify reads everything"
        )
    return EXIT_FAILURE if damaged else EXIT_DONE


def _read(found: Checkpoint) -> Checkpoint:
    damage = found.damage or verify(found.path)
    return replace(found, damage=damage, verified=damage is None)


def _table(stage: Listing) -> None:
    roles, rows = stage.roles(), []
    for found in stage.found:
        state = f"damaged: {found.damage}" if found.damage else "intact" if found.verified else "not checked"
        metric = "-" if found.metric is None else f"{found.metric:.6g}"
        rows.append(
            (str(found.step), format_size(_size(found)), _age(found), metric, state + roles.get(found.step, ""))
        )
    columns = [Column(name, is_number=True) for name in ("step", "size", "age", stage.metric_name())]
    if rows:
        print_text(indent(Table([*columns, Column("state")], rows).text(), "  "))


def _size(found: Checkpoint) -> int:
    """The size of all files, by the manifest or, without one, on the disk."""
    if found.manifest is not None:
        return sum(record.size for record in found.manifest.files.values())
    return sum(path.stat().st_size for path in found.path.glob("*") if path.is_file())


def _age(found: Checkpoint) -> str:
    if found.manifest is not None:
        saved = datetime.fromisoformat(found.manifest.saved_at)
    else:
        saved = datetime.fromtimestamp(found.path.stat().st_mtime, UTC)
    return ago((datetime.now(UTC) - saved).total_seconds())
