"""The manifest: what a checkpoint consists of, and how to tell whether it is intact.

step_00000100/
  manifest.json       format, step, every other file with size and checksum, versions, and what the caller adds (about)
  manifest.sha256     the manifest's own checksum, as `sha256sum --check` reads it
  state.json          the state without its tensors
  ranks.json          what differs from rank to rank
  .metadata, __0_0.distcp, __1_0.distcp ...    the tensors, as torch.distributed.checkpoint writes them
"""

import hashlib
import json
import math
import platform
import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from samestep.checkpoint.files import FileRecord, damage_of, size_damage_of, write_file
from samestep.core.errors import UserError
from samestep.core.json_files import Json, parse_json, sync_folder

FORMAT = 1
MANIFEST = "manifest.json"
CHECKSUM = "manifest.sha256"
STATE = "state.json"
RANKS = "ranks.json"
STAGING = ".staging_"
"""What the name of a checkpoint that is not committed yet begins with."""
_STEP = re.compile(r"(?:\.replaced_)?step_(\d+)")


class DamageError(Exception):
    """A checkpoint is damaged; the message says how."""


@dataclass(frozen=True)
class Manifest:
    """What is in a checkpoint."""

    step: int
    world_size: int
    files: dict[str, FileRecord]
    about: dict[str, Json]
    """What the caller adds: the configuration, and `metric`, `metric_name` and `metric_mode`, by which checkpoints are
    compared."""
    versions: dict[str, str] = field(default_factory=dict)
    saved_at: str = ""
    format: int = FORMAT


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint on disk."""

    path: Path
    step: int
    manifest: Manifest | None
    """None when it cannot be read."""
    damage: str | None = None
    """What is wrong with it, as far as it was checked."""
    verified: bool = False
    """Whether every byte of it was checked."""

    @property
    def about(self) -> dict[str, Json]:
        """What the caller added to the manifest."""
        return self.manifest.about if self.manifest else {}

    @property
    def metric_name(self) -> str:
        """The name of the metric; empty if the manifest does not name it."""
        return str(self.about.get("metric_name") or "")

    @property
    def metric(self) -> float | None:
        """The metric by which checkpoints are compared; None if there is none, or it is not a finite number."""
        metric = self.about.get("metric")
        if not isinstance(metric, int | float) or isinstance(metric, bool) or not math.isfinite(metric):
            return None
        return float(metric)


def step_of(name: str) -> int | None:
    """The step in a checkpoint folder's name, also while the checkpoint is being replaced; None for other folders."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def versions() -> dict[str, str]:
    """The versions of the software that writes this checkpoint."""
    return {**{name: _version(name) for name in ("samestep", "torch")}, "python": platform.python_version()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a copy of the sources
        return "unknown"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest beside the files it lists, and sync the folder to the disk."""
    text = json.dumps({"format": manifest.format, **asdict(manifest)}, indent=1) + "\n"
    record = write_file(folder / MANIFEST, text.encode())
    write_file(folder / CHECKSUM, f"{record.sha256}  {MANIFEST}\n".encode())
    sync_folder(folder)


def manifest_from(found: Mapping[str, Json]) -> Manifest:
    """The manifest that was written as this JSON."""
    files = {name: FileRecord(**record) for name, record in found["files"].items()}
    return Manifest(**{**found, "files": files})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint. Raises DamageError when it is damaged, UserError when its format is too new."""
    try:
        text = (folder / MANIFEST).read_bytes()
        checksum = (folder / CHECKSUM).read_bytes()
    except FileNotFoundError as error:
        raise DamageError(f"{Path(error.filename).name} is missing") from None
    except OSError as error:
        raise DamageError(f"{MANIFEST} cannot be read ({error.strerror})") from None
    if checksum != f"{hashlib.sha256(text).hexdigest()}  {MANIFEST}\n".encode():
        raise DamageError(f"{MANIFEST} does not match its checksum in {CHECKSUM}")
    try:
        found = parse_json(text)
        if found["format"] > FORMAT:
            raise UserError(
                f"the checkpoint {folder} has format {found['format']} and this version of samestep reads formats up "
                f"to {FORMAT}; load it with the newer version of samestep that wrote it"
            )
        manifest = manifest_from(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise DamageError(f"{MANIFEST} is not one that samestep writes") from None
    if manifest.step != step_of(folder.name):
        raise DamageError(f"{MANIFEST} is that of step {manifest.step}")
    return manifest


def find_checkpoints(folder: Path) -> list[Checkpoint]:
    """The checkpoints in a folder by ascending step. Only manifests are read; raises UserError when one is too new."""
    return [_open(path, step) for step, path in sorted(checkpoint_folders(folder).items())]


def checkpoint_folders(folder: Path) -> dict[int, Path]:
    """The folder of each step's checkpoint; a `.replaced_` one counts only while its successor is missing.

    Raises UserError when `folder` cannot be read: that is not the same as a folder without checkpoints.
    """
    by_step: dict[int, Path] = {}
    for path in sorted(folders_in(folder)):  # a `.replaced_` folder sorts first
        step = step_of(path.name)
        if step is not None:
            by_step[step] = path
    return by_step


def folders_in(folder: Path) -> list[Path]:
    """The folders in one that may not exist; raises UserError when it is there and cannot be read."""
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read ({error.strerror}), so it is not known which checkpoints there are; make it a "
            "folder that you may read"
        ) from None


def quick_check(path: Path, step: int) -> Checkpoint:
    """The checkpoint at `path`, of which only the manifest and the sizes of files are checked; raises nothing."""
    try:
        found = _open(path, step)
    except UserError as error:
        return Checkpoint(path, step, None, damage=str(error))
    for name, record in sorted(found.manifest.files.items()) if found.manifest else ():
        damage = size_damage_of(path / name, record)
        if damage:
            return replace(found, damage=damage)
    return found


def _open(path: Path, step: int) -> Checkpoint:
    try:
        return Checkpoint(path, step, read_manifest(path))
    except DamageError as error:
        return Checkpoint(path, step, None, damage=str(error))


def full_check(path: Path) -> Checkpoint:
    """The checkpoint at `path`, every byte of it checked; raises DamageError, or UserError when it is too new."""
    manifest = read_manifest(path)
    # hashing releases the GIL, so several files are checked in parallel
    with ThreadPoolExecutor(max_workers=8) as pool:
        for damage in pool.map(lambda item: damage_of(path / item[0], item[1]), sorted(manifest.files.items())):
            if damage:
                raise DamageError(damage)
    return Checkpoint(path, manifest.step, manifest, verified=True)


def verify(path: Path) -> str | None:
    """Why the checkpoint at `path` cannot be used, or None when every byte of it is as it was written."""
    try:
        full_check(path)
    except (DamageError, UserError) as error:
        return str(error)
    return None
