"""The record of a run: opening its directory for the first time or again; and what changed in the recipe's code.

This module does not import torch: `samestep why` and `samestep checkpoints` use it.
"""

import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from samestep.checkpoint.manifest import folders_in, versions
from samestep.core.config import changed, dump
from samestep.core.disk_space import is_disk_full, no_space, refusing_full_disk
from samestep.core.errors import UserError
from samestep.core.json_files import (
    DamagedFile,
    expected_content,
    read_object,
    read_object_if_readable,
    write_json,
)
from samestep.core.launch_env import LAUNCH_ID
from samestep.core.near_names import did_you_mean
from samestep.core.rundir import LEASE, RunDir, RunLock
from samestep.core.safe_files import is_temporary
from samestep.core.status import is_done, set_status
from samestep.core.typed_json import from_json
from samestep.models.hub_download import hub_model
from samestep.train.record.config import Config, named_source
from samestep.train.record.extension import LENGTH_SETTINGS, Extension, LaterLength, find_extension, read_done
from samestep.train.record.fixed_values import read_fixed
from samestep.train.record.plan import global_batch
from samestep.train.record.run_status import reset_watch_folder

StageConfigs = Callable[[Any], dict[str, Any]]
"""Gives the settings of a recipe's stages, in order, for those of the run."""


@dataclass(frozen=True)
class CodeChanges:
    """The names of a recipe's source files that changed."""

    changed: list[str]
    appeared: list[str]
    vanished: list[str]

    @classmethod
    def between(cls, before: Mapping[str, str], now: Mapping[str, str]) -> "CodeChanges":
        """What changed from one set of hashes to the other."""
        changed = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
        return cls(changed, sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys()))

    def __bool__(self) -> bool:
        return bool(self.changed or self.appeared or self.vanished)

    def __str__(self) -> str:
        kinds = {"changed": self.changed, "new": self.appeared, "gone": self.vanished}
        listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names)
        changed = f"the recipe's code is not that of the run's last launch ({listed})"
        return f"{changed}; the run continues with the current code"

    def to_json(self) -> dict[str, list[str]]:
        """For the events of the run."""
        return asdict(self)


@dataclass(frozen=True)
class RunRecord:
    """What config.json holds of a run."""

    recipe: str
    config: dict[str, Any]
    launch: str = ""
    global_batch: int = 0
    """Rows per step: of all stages, also of those that begin after a resume with other ranks or another batch_size."""
    precision: str = ""
    """The type of the arithmetic that mixed_precision=auto became."""
    code: dict[str, str] = field(default_factory=dict)
    """The hash of each of the recipe's source files at the last launch."""
    recipe_version: int = 1
    """The version of the recipe that the run began with."""

    @classmethod
    def read(cls, rundir: RunDir) -> "RunRecord | None":
        """The record of a run directory, or None when it holds no run."""
        known = read_object(rundir.config)
        if not known or (not {"recipe", "config"} <= known.keys() and not rundir.status.exists()):
            return None  # folders of published weights have a config.json too
        with expected_content(rundir.config):
            return from_json(cls, known)

    @classmethod
    def read_if_readable(cls, rundir: RunDir) -> "RunRecord | None":
        """The same, for who only looks around: a damaged record counts as none."""
        try:
            return cls.read(rundir)
        except DamagedFile:
            return None

    def differing(self, recipe: str, config: Config) -> list[str]:
        """What makes this another run than that of `recipe` with `config`; empty when it is the same."""
        if not self._is_of(recipe):
            return ["recipe"]
        found = changed(self.config, dump(config), type(config))
        same = {"init_from"} if self._is_name_of_source(config) else set()
        if config.distributed.mixed_precision == "auto":  # what the run has is what was decided for it
            same.add("distributed.mixed_precision")
        if config.extend:
            same.update(LENGTH_SETTINGS)
        return [name for name in found if name not in same]

    def require_version(self, rundir: RunDir, version: int) -> None:
        """Refuse to go on with another version of the recipe: the rest of the run would be that of another run."""
        if self.recipe_version != version:
            raise UserError(
                f"{rundir.path} was begun with version {self.recipe_version} of the recipe {self.recipe}, and this is "
                f"version {version}, which trains otherwise with the same settings; go on with the samestep that it "
                f"was begun with, or begin a new run with its weights: init_from={rundir.path}"
            )

    def lengths(self, config: Config, stage_configs: StageConfigs) -> tuple[dict[str, Config], dict[str, Config]]:
        """The settings of the stages with this configuration, and with the recorded length of the run."""
        config = replace(config, global_batch_size=self.global_batch or config.global_batch_size)
        recorded = {name: self.config[name] for name in LENGTH_SETTINGS if name in self.config}
        return stage_configs(config), stage_configs(replace(config, **recorded))

    def _is_of(self, recipe: str) -> bool:
        """Whether it is a run of this recipe; a recipe file that no longer exists at its path may have been moved."""
        ours, theirs = Path(self.recipe), Path(recipe)
        is_moved = ours.suffix == ".py" and ours.name == theirs.name and not ours.exists()
        return self.recipe == recipe or ours.absolute() == theirs.absolute() or is_moved

    def _is_name_of_source(self, config: Config) -> bool:
        """Whether `init_from` is the name of the run whose path is recorded; that run may be deleted by now."""
        return self.config.get("init_from") in {f"{Path(out) / str(config.init_from)}" for out in (config.out, "runs")}

    def is_of_launch(self, launches: Sequence[str]) -> bool:
        """Whether this same launch wrote it, in an earlier attempt; maybe with other nodes."""
        return _may_be_restart() and bool(set(launches) & set(self.launch.split()))

    def write(self, rundir: RunDir) -> None:
        """Write the record, with the versions of the packages."""
        write_json(rundir.config, {**asdict(self), "versions": versions()})


class OpenedRun(NamedTuple):
    """An open run directory."""

    rundir: RunDir
    lock: RunLock
    batch: int
    """The run's global batch."""
    precision: str
    """The type of the run's arithmetic."""
    code_changes: CodeChanges | None = None
    """What has changed in the recipe's code since the last launch; None where nothing has, or it is not known."""
    extension: Extension | LaterLength | None = None
    """How this launch changes the length of the run; None where it does not."""
    is_new: bool = False
    """Whether this launch made it."""


def open_run(
    recipe: str,
    config: Config,
    dp_size: int = 1,
    launches: Sequence[str] = (),
    code: Mapping[str, str] | None = None,
    precision: str = "none",
    stage_configs: StageConfigs | None = None,
    version: int = 1,
) -> OpenedRun:
    """Rank 0's part of opening: choose the directory, take its lock, and make sure that it holds this run and no other.

    `launches` are the ids of this launch on every node, `code` has the hashes of the recipe's source files,
    `precision` is what mixed_precision=auto means on these devices, `stage_configs` gives the settings of its stages,
    for a run that is extended, and `version` is that of the recipe.
    """
    launches = launches or [launch_id(os.environ)]
    rundir, lock = _lock_directory(recipe, config, launches)
    with ExitStack() as undo, refusing_full_disk(rundir.path):
        undo.callback(lock.release)
        known = RunRecord.read(rundir)
        if known is not None and known.is_of_launch(launches):  # maybe with a smaller batch_size, which changes no step
            config = replace(config, global_batch_size=known.config.get("global_batch_size"))
        if known is not None and known.differing(recipe, config) and is_failed_submission(rundir):
            _forget_run(rundir)
            known = None
        if known is None:
            undo.callback(discard_run, rundir)
        else:
            _require_same(rundir, known, recipe, config)
            known.require_version(rundir, version)
            _require_readable(rundir)
        extension = None
        if known is not None and config.extend and stage_configs is not None:
            extension = find_extension(rundir, *known.lengths(config, stage_configs))
        if isinstance(extension, Extension):
            rundir.done(extension.stage).unlink(missing_ok=True)
        is_planned = rundir.first_launch.exists()  # until then, another batch_size may mean another global batch
        batch = (known.global_batch if known and is_planned else 0) or global_batch(config, dp_size)
        precision = _precision(config, known if is_planned else None, precision)
        code, changes = _code_to_record(known, dict(code or {}), launches)
        recorded = dump(replace(config, start_over=False, extend=False))  # these are for one launch alone
        RunRecord(recipe, recorded, " ".join(launches), batch, precision, code, version).write(rundir)
        reset_watch_folder(rundir)
        ended = is_done(read_object_if_readable(rundir.status))  # at an earlier launch
        if isinstance(extension, Extension) or not ended:
            set_status(rundir, "running")
        undo.pop_all()
    return OpenedRun(rundir, lock, batch, precision, changes, extension, is_new=known is None)


def _lock_directory(recipe: str, config: Config, launches: Sequence[str]) -> tuple[RunDir, RunLock]:
    """Choose the directory and take its lock."""
    rundir = RunDir(Path(config.out) / (config.name or free_name(recipe, config, launches)))
    if RunRecord.read(rundir) is None:
        source = named_source(config)
        is_of_hub = source == config.init_from and hub_model(source or "") is not None
        if source and not is_of_hub and not Path(source).exists():  # refused now, and not when a later stage needs it
            raise UserError(
                f"{source} does not exist; give a run's name or directory, a checkpoint folder, a weight file, or a "
                "model of the Hub as org/name"
            )
        if rundir.path.exists() and _has_other_files(rundir.path):
            raise UserError(f"{rundir.path} exists but holds no samestep run; choose another name with name=...")
    try:
        return rundir, rundir.lock()
    except OSError as error:
        if is_disk_full(error):
            raise no_space(error, rundir.path) from None
        raise UserError(f"the run directory {rundir.path} cannot be written ({error.strerror}); set out=...") from None


def has_results(rundir: RunDir) -> bool:
    """Whether a stage of the run has saved anything, or made anything for later stages."""
    places = (rundir.checkpoints("x").parent, rundir.artifacts("x").parent)
    return any(path.is_file() for place in places for path in _found(place, "**/*"))


def is_failed_submission(rundir: RunDir) -> bool:
    """Whether a run that no process has locked was submitted as a job that ended before training began: then its name
    may be used again, with other settings too."""
    is_logged = rundir.metrics.exists() and rundir.metrics.stat().st_size > 0
    has_trained = is_logged or has_results(rundir) or is_done(read_object_if_readable(rundir.status))
    return rundir.job.is_dir() and not has_trained


def _forget_run(rundir: RunDir) -> None:
    """Remove the settings and the plan of a run that has not begun, which this process has locked."""
    for path in (rundir.config, rundir.first_launch, rundir.status, rundir.events):
        path.unlink(missing_ok=True)


def discard_run(rundir: RunDir) -> None:
    """Remove a run that this process has made and locked; what `samestep submit` wrote before it stays.

    Other ranks may still be writing to it: they remove that themselves.
    """
    for path in _found(rundir.path, "*"):
        if path.is_dir() and path != rundir.job:
            shutil.rmtree(path, ignore_errors=True)
        elif path != rundir.job:
            path.unlink(missing_ok=True)
    _remove_if_empty(rundir.path)


def discard_files_of_rank(rundir: RunDir, rank: int) -> None:
    """Remove what another rank than 0 wrote into a run that rank 0 discards."""
    folders = (rundir.watch, rundir.log(rank).parent)
    for folder in folders:
        for path in (*_found(folder, f"rank_{rank}.*"), *_found(folder, f"rank_{rank}_*")):
            path.unlink(missing_ok=True)
    _remove_if_empty(*folders, rundir.path)


def _found(folder: Path, pattern: str) -> list[Path]:
    """What is in a folder that another rank may be removing now."""
    with suppress(FileNotFoundError):
        return list(folder.glob(pattern))
    return []


def _remove_if_empty(*folders: Path) -> None:
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _precision(config: Config, known: RunRecord | None, here: str) -> str:
    """The type of the run's arithmetic: as given, as it was decided at the first launch, or as it is decided here."""
    given = config.distributed.mixed_precision
    if known is not None and given == "auto":
        return known.precision
    return here if given == "auto" else given


def _code_to_record(
    known: RunRecord | None, now: dict[str, str], launches: Sequence[str]
) -> tuple[dict[str, str], CodeChanges | None]:
    """The code to record, and how it differs from what is recorded; a restart within a launch reports no change."""
    if known is None or not known.code or not now:
        return now, None
    if known.is_of_launch(launches):
        return known.code, None
    return now, CodeChanges.between(known.code, now) or None


def with_run_path(config: Config) -> Config:
    """A configuration whose `init_from` may be the name of a run, with the path of that run in its place."""
    return replace(config, init_from=run_path(config.init_from, config.out)) if config.init_from else config


def run_path(text: str, out: str) -> str:
    """The path of the run of this name, if there is one; else what the user gave, to the letter."""
    if Path(text).exists():
        return text
    folders = (Path(folder) / text for folder in (out, "runs"))
    return next((str(path) for path in folders if RunRecord.read(RunDir(path)) is not None), text)


def find_run(text: str, out: str = "runs", *, damaged: bool = False) -> RunDir:
    """The run that a user named, by path or by name; `damaged`: also one whose record cannot be read."""
    for path in (Path(text), Path(out) / text):
        try:
            if RunRecord.read(RunDir(path)) is not None:
                return RunDir(path)
        except DamagedFile:
            if damaged:
                return RunDir(path)
            raise
    known = sorted(p.parent.name for p in Path(out).glob("*/config.json"))
    listed = f"runs in {out}/: {', '.join(known[-8:])}" if known else f"there is no run in {out}/ yet"
    raise UserError(f"{text!r} is not a run directory{did_you_mean(text, known)}; {listed}")


def stage_folders(rundir: RunDir) -> list[Path]:
    """The folders of the stages' checkpoints, in the order of the stages; raises UserError if they cannot be read."""
    folders = folders_in(rundir.checkpoints("x").parent)
    begun = list(read_object_if_readable(rundir.first_launch))  # has an entry for each stage that has begun, in order
    named = [rundir.checkpoints(stage) for stage in begun]
    folders += [path for path in named if path not in folders and path.exists()]  # not a folder: reading it refuses it
    return sorted(folders, key=lambda folder: begun.index(folder.name) if folder.name in begun else -1)


def _require_readable(rundir: RunDir) -> None:
    """Refuse damaged files now, and not when a stage needs them."""
    read_fixed(rundir)
    for artifacts in sorted(rundir.artifacts("x").parent.glob("*")):
        read_done(rundir, artifacts.name)


def _require_same(rundir: RunDir, known: RunRecord, recipe: str, config: Config) -> None:
    differing = known.differing(recipe, config)
    if differing:
        raise UserError(
            f"{rundir.path} holds a different run ({', '.join(differing[:5])} differ); choose another name with "
            f"name=..., or resume it as it is with: samestep train --resume {rundir.path}"
        )


def free_name(recipe: str, config: Config, launches: Sequence[str] = ()) -> str:
    """The next free number; after a restart, the run that this launch already began, maybe with other nodes."""
    plain = recipe.removesuffix(".py").replace("/", ".").rpartition(".")[2]
    stem = f"{plain}-{config.preset}"
    taken = [p for p in Path(config.out).glob(f"{stem}-*") if p.name.removeprefix(f"{stem}-").isdigit()]
    for path in taken if _may_be_restart() else ():
        record = RunRecord.read_if_readable(RunDir(path))
        if record and record.is_of_launch(launches):
            return path.name
    highest = max((int(p.name.removeprefix(f"{stem}-")) for p in taken), default=0)
    return f"{stem}-{highest + 1}"


def _may_be_restart() -> bool:
    """Whether launch ids can be relied on: without a launcher, two launches from one shell have the same."""
    return LAUNCH_ID in os.environ or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def launch_id(env: Mapping[str, str]) -> str:
    """An id that is the same for every restart of one launch on a node, and differs for other launches."""
    return env.get(LAUNCH_ID) or f"{socket.gethostname()}:{os.getppid()}:{env.get('TORCHELASTIC_RUN_ID', '')}"


def _has_other_files(path: Path) -> bool:
    # A kill while the record was written leaves a temporary file; other ranks may write after a run was discarded.
    ours = ("lock", LEASE, "logs", "watch", "job")
    return any(entry.name not in ours and not is_temporary(entry) for entry in path.iterdir())
