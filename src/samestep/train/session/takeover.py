"""Taking over finished stages of another run: `stages_from=RUN`.

A stage is taken over if the other run finished it with the same settings, code and data files, if the files in the keys
of its artifacts have not changed since, and if every stage before it was taken over. Data that names no files in
`origins()` is not compared: its rows are known once the stage is built, which may need all that taking it over saves.
They follow from settings and code, unless the code reads them from a file that it does not name.

All but `take_over` runs on rank 0 alone. The files are hard-linked (copied where the disk cannot), first into a hidden
folder:

1. `.taking_over/STAGE/` gets the checkpoints and the artifacts, with a done.json that names the other run.
2. Its checkpoints are renamed into place, and first_launch.json gets what the other run fixed for the stage.
3. Its artifacts are renamed into place: from here on the stage is done.
4. The hidden folder is removed. As long as it is there, a stage that is not done is only half taken over.
"""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from samestep.checkpoint.files import remove_folder
from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.config import changed, dump
from samestep.core.errors import UserError
from samestep.core.json_files import Json, read_object, sync_folder, write_json
from samestep.core.rundir import DONE, RunDir
from samestep.core.safe_files import open_new
from samestep.data.fingerprint import recorded_file_difference
from samestep.train.api.recipe import Stage
from samestep.train.api.stage_feeds import FeedName
from samestep.train.artifacts.artifact_key import changed_inputs
from samestep.train.record.extension import read_done
from samestep.train.record.fixed_values import DATA, read_fixed
from samestep.train.record.run_record import CodeChanges, find_run
from samestep.world.world import World

SOURCE = "taken_over_from"
"""The key in done.json of a stage that was taken over: the directory of the other run."""
_CHUNK = 1 << 22
_NO_EFFECT = ("preset", "log.*")
"""Settings that are fixed for a run, but do not change what a stage computes."""


@dataclass(frozen=True)
class Comparison:
    """Whether a stage of another run is the same as one of this run."""

    difference: str = ""
    """Why it is not; empty when it is."""
    not_compared: str = ""
    """Data that could not be compared."""


def done_record(step: int, config: Any, code: Mapping[str, str] | None) -> dict[str, Json]:
    """What done.json holds of a finished stage; `code` is None if it changed while the stage was trained."""
    return {"step": step, "config": dump(config), "code": dict(code) if code else None}


def take_over(
    stage: Stage, earlier: Sequence[Stage], config: Any, rundir: RunDir, code: Mapping[str, str], world: World
) -> tuple[bool, str]:
    """Take the stage over from the run `config.stages_from` if it is the same there, and all `earlier` ones were taken
    over: whether it was, and a sentence about it. `config` has the settings of the stage, `code` the hashes of the
    recipe's files. Collective."""
    moved, doing = world.activity.made_progress, f"taking over stage {stage.name!r}"

    def on_main(work: Callable[[], Json]) -> Json:
        return world.run_on_all_ranks(doing, lambda: work() if world.is_main else None)[0]

    found = on_main(lambda: _find_source(stage, earlier, config, rundir, code, moved))
    if found is None:
        return False, ""
    path, difference, not_compared = found
    source = RunDir(Path(path))
    difference = difference or changed_inputs(source.artifacts(stage.name), rundir.artifacts(""), world)
    if difference:
        return False, f"stage {stage.name!r} is not taken over from {path}: {difference}"
    on_main(lambda: _take(stage.name, source, rundir, moved))
    return True, f"stage {stage.name!r} is taken over from {path}{not_compared}"


def _find_source(
    stage: Stage,
    earlier: Sequence[Stage],
    config: Any,
    rundir: RunDir,
    code: Mapping[str, str],
    moved: Callable[[], None],
) -> Json:
    """The run to take the stage over from, how the stage differs there, and what was not compared; None where it is
    not to be taken over at all."""
    if not all(is_taken_over(rundir, each.name) for each in earlier):
        return None
    if checkpoint_folders(rundir.checkpoints(stage.name)):
        return None  # it was begun here
    source = find_run(config.stages_from, config.out)
    if source.path.absolute() == rundir.path.absolute():
        raise UserError(f"stages_from={config.stages_from} is this run itself; name another run")
    found = _compare(stage, config, source, code) or _compare_data(stage.name, source, rundir, moved)
    return [str(source.path), found.difference, found.not_compared]


def _take(stage: str, source: RunDir, rundir: RunDir, moved: Callable[[], None]) -> None:
    _link(stage, source, rundir, moved)
    _publish(stage, source, rundir)


def remove_half_taken(rundir: RunDir) -> None:
    """Remove what a kill left of a stage that was being taken over."""
    for folder in rundir.taking_over.iterdir() if rundir.taking_over.is_dir() else ():
        stage = folder.name
        if not rundir.done(stage).exists():
            remove_folder(rundir.checkpoints(stage))
            remove_folder(rundir.artifacts(stage))
            known = read_fixed(rundir)
            if known.pop(stage, None) is not None:
                write_json(rundir.first_launch, known)
    remove_folder(rundir.taking_over)


def is_taken_over(rundir: RunDir, stage: str) -> bool:
    return SOURCE in (read_done(rundir, stage) or {})


_HAND_OVER = ("best_at_end", "early_stopping", "validate_at_start")
"""Settings that a resume may change, but that decide what a stage with a `best` metric hands over."""


def _compare(stage: Stage, config: Any, source: RunDir, code: Mapping[str, str]) -> Comparison | None:
    """How settings or code differ; None when they do not."""
    done = read_done(source, stage.name)
    if done is None:
        return Comparison("that run has not finished it")
    ignored = (*_NO_EFFECT, *stage.ignores)
    differing = [
        name
        for name in changed(done["config"], dump(config), type(config))
        if not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    if stage.best is not None:
        differing += [name for name in _HAND_OVER if done["config"][name] != getattr(config, name)]
    if differing:
        return Comparison(f"its settings differ ({', '.join(differing)})")
    if not done["code"] or not code:
        return Comparison("its code changed while it was trained, or is not known")
    changes = CodeChanges.between(done["code"], code)
    names = sorted((*changes.changed, *changes.appeared, *changes.vanished))
    return Comparison(f"the recipe's code differs ({', '.join(names)})") if names else None


def _compare_data(stage: str, source: RunDir, rundir: RunDir, moved: Callable[[], None]) -> Comparison:
    """Compare files that data came from with what they are now; other data is named as not compared."""
    not_compared: list[str] = []
    recorded = read_fixed(source).get(stage, {}).get(DATA, {})
    for purpose, feeds in recorded.items():
        for number, record in enumerate(feeds):
            name = FeedName(stage, purpose, number)
            for file in record.get("files", [{}]):
                if "path" not in file:
                    not_compared.append(purpose)
                    continue
                difference = recorded_file_difference(file, _relocated(file["path"], source, rundir), moved)
                if difference:
                    return Comparison(f"{name} has changed ({difference})")
    kinds = " and ".join(sorted(set(not_compared)))
    return Comparison(not_compared=f" (its {kinds} data names no files, and was not compared)" if kinds else "")


def _relocated(path: str, source: RunDir, rundir: RunDir) -> Path:
    """A file of the other run, such as an artifact of an earlier stage, at its place in this run."""
    found, inside = Path(path), source.path.absolute()
    return rundir.path.absolute() / found.relative_to(inside) if found.is_relative_to(inside) else found


def _fixed(stage: str, source: RunDir, rundir: RunDir) -> Json:
    """What the other run fixed for the stage, about files that are in this run now."""
    fixed = read_fixed(source).get(stage, {})
    for record in (record for feeds in fixed.get(DATA, {}).values() for record in feeds):
        for file in record.get("files", ()):
            if "path" in file:
                file["path"] = str(_relocated(file["path"], source, rundir))
    return fixed


def _link(stage: str, source: RunDir, rundir: RunDir, moved: Callable[[], None]) -> None:
    """Step 1: everything in a hidden folder."""
    staged = rundir.taking_over / stage
    remove_folder(staged)
    staged.mkdir(parents=True)
    for name, folder in (("checkpoints", source.checkpoints(stage)), ("artifacts", source.artifacts(stage))):
        if folder.is_dir():
            shutil.copytree(folder, staged / name, symlinks=True, copy_function=partial(_link_or_copy, moved))
    done = staged / "artifacts" / DONE
    write_json(done, {**read_object(done), SOURCE: str(source.path.absolute())})


def _publish(stage: str, source: RunDir, rundir: RunDir) -> None:
    staged = rundir.taking_over / stage
    if (staged / "checkpoints").is_dir():
        _rename(staged / "checkpoints", rundir.checkpoints(stage))
    write_json(rundir.first_launch, {**read_fixed(rundir), stage: _fixed(stage, source, rundir)})
    _rename(staged / "artifacts", rundir.artifacts(stage))
    remove_folder(rundir.taking_over)


def _rename(staged: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    remove_folder(folder)  # left by an attempt that was killed before its first checkpoint
    os.rename(staged, folder)
    sync_folder(folder.parent)


def _link_or_copy(moved: Callable[[], None], source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without hard links
        with open(source, "rb") as old, open_new(Path(target)) as new:
            while chunk := old.read(_CHUNK):
                new.write(chunk)
                moved()
            new.flush()
            os.fsync(new.fileno())
        shutil.copystat(source, target)  # the data of later stages is compared by its time, too
    moved()
