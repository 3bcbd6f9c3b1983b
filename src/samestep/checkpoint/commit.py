"""The commit protocol: how the state of a run becomes a checkpoint, so that a kill at any moment loses none.

1. `take_snapshot`: every rank takes its state, and picks the tensors that it writes.
2. `write`: every rank tells rank 0 what it has. Rank 0 makes an empty hidden folder,
   `.staging_step_N`, and tells every rank what to write.                                 phase "staged"
3. Every rank writes its tensors into it with fsync, hashing them on the way.             phase "written"
4. Every rank reports its files to rank 0, with their sizes and checksums. Rank 0 writes
   the metadata of all tensors, `state.json` and `ranks.json`.                            phase "reported"
5. `commit`: rank 0 writes the manifest, which lists all files, and its checksum.         phase "manifest"
6. An older checkpoint of the same step is renamed to `.replaced_step_N`.                 phase "replaced"
7. The staging folder is renamed to `step_N`. From here on it is a checkpoint.            phase "renamed"
8. `Store` (store.py) deletes what the retention rules do not keep.                       phase "pruned"

A folder named `step_N` is therefore complete, unless it was damaged later. A kill leaves hidden folders, and their
names say what they are: `.staging_` a save that did not finish, `.replaced_` the older of two checkpoints of one step,
`.deleting_` a checkpoint that was being deleted. `remove_leftovers` handles them at the next start.
If a step fails on any rank, all ranks raise that failure and the staging folder is removed.
`Saver` (background.py) runs `write` and `commit` in a thread while training goes on.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from samestep.checkpoint.across_ranks import split_by_size
from samestep.checkpoint.files import FileRecord, remove_folder, write_file
from samestep.checkpoint.manifest import RANKS, STAGING, STATE, Manifest, versions, write_manifest
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.state import PreparesSave, RankStateful, Stateful, check_json, split_state
from samestep.checkpoint.tensors import TensorSave
from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import Json, sync_folder
from samestep.world.world import World

REPLACED = ".replaced_"
DELETING = ".deleting_"
_log = logging.getLogger("samestep.checkpoint")


@dataclass(frozen=True)
class Snapshot:
    """A state as it was at one step, ready to be written: tensors by name, everything else as JSON text."""

    step: int
    about: dict[str, Json]
    tensors: dict[str, torch.Tensor]
    """Those that this rank writes: its shards, and a share of the replicated tensors."""
    layout: str
    """A hash of all tensors' names and shapes, equal on all ranks."""
    state: str
    ranks: str
    """This rank's own part of the state."""

    @property
    def name(self) -> str:
        """The name of the checkpoint folder."""
        return f"step_{self.step:08d}"


class CheckpointWriter:
    """Writes checkpoints into one folder. Every method is collective: all ranks call it, all return or raise alike."""

    def __init__(self, folder: Path, world: World, *, shared: bool, on_phase: Callable[[str], None]) -> None:
        """`shared` and `on_phase` as in `Store`."""
        self.folder = folder
        self.world = world
        self.shared = shared
        self._on_phase = on_phase
        self._has_written = False

    def take_snapshot(self, step: int, state: Mapping[str, Stateful], about: Mapping[str, Json]) -> Snapshot:
        """Take a snapshot of the state. Tensors are not copied: they must not change until they are written."""
        for part in state.values():
            if isinstance(part, PreparesSave):
                part.prepare_save()
        plain, tensors = split_state({name: part.state_dict() for name, part in state.items()})
        tensors = dict(sorted(tensors.items()))  # the same state makes the same files, in whatever order it comes
        if not self.shared and any(isinstance(tensor, DTensor) for tensor in tensors.values()):
            raise UserError(
                f"sharded training needs a run directory on a disk that every rank sees, which {self.folder} is not; "
                "choose a folder on a shared disk, or train replicated"
            )
        ranks = {name: part.rank_state() for name, part in state.items() if isinstance(part, RankStateful)}
        check_json(ranks, ("rank_state",))
        check_json(about, ("about",))
        layout = hashlib.sha256(repr([(name, t.shape) for name, t in tensors.items()]).encode()).hexdigest()
        about = json.loads(json.dumps(about))  # a copy, which the caller cannot change
        own = self._tensors_to_write(tensors)
        return Snapshot(step, dict(about), own, layout, json.dumps(plain), json.dumps(ranks))

    def _tensors_to_write(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """This rank's shards and its share of replicated tensors; so no rank copies what another one writes."""
        if not self.shared:
            return tensors if self.world.is_main else {}
        replicated = {name: t.nbytes for name, t in tensors.items() if not isinstance(t, DTensor)}
        mine = set(split_by_size(replicated, self.world.size)[self.world.rank])
        return {name: t for name, t in tensors.items() if name in mine or isinstance(t, DTensor)}

    def write(self, snapshot: Snapshot) -> dict[str, FileRecord]:
        """Write a snapshot into its staging folder; returns the records of all files in it, on rank 0."""
        staging = self.folder / f"{STAGING}{snapshot.name}"
        doing = f"saving the checkpoint {self.folder / snapshot.name}"
        tensors = TensorSave(staging, snapshot.tensors, self.world.rank)

        def plan_for_all(found: list[Json]) -> list[Json]:
            layouts = sorted({layout for layout, _ in found})
            if len(layouts) > 1:
                return [[layouts, None] for _ in found]
            self._make_staging(staging)
            return [[layouts, part] for part in tensors.plan_of_all([plan for _, plan in found])]

        def write_part(part: Json) -> Json:
            self._on_phase("staged")
            places = tensors.write(part) if self.shared or self.world.is_main else []
            self._on_phase("written")
            return {"places": places, "ranks": snapshot.ranks, "files": _records_to_json(tensors.files)}

        def finish(reports: list[Json]) -> list[Json]:
            tensors.finish([report["places"] for report in reports])
            ranks = [json.loads(report["ranks"]) for report in reports]
            own = {
                **tensors.files,
                STATE: write_file(staging / STATE, snapshot.state.encode()),
                RANKS: write_file(staging / RANKS, json.dumps(ranks).encode()),
            }
            files = {name: record for report in reports for name, record in report["files"].items()}
            return [files | _records_to_json(own), *({} for _ in reports[1:])]

        with self._remove_on_failure(staging):
            layouts, part = self.world.exchange_with_main(
                doing, lambda: [snapshot.layout, tensors.own_plan()], plan_for_all
            )
            assert len(layouts) == 1, f"the tensors of the state differ between ranks: {layouts}"
            files = self.world.exchange_with_main(doing, lambda: write_part(part), finish)
            self._on_phase("reported")
        return {name: FileRecord(**record) for name, record in files.items()}

    def commit(self, snapshot: Snapshot, files: Mapping[str, FileRecord]) -> Path:
        """Turn a written snapshot into a checkpoint; returns its path. `files` as returned by `write`."""
        staging, final = self.folder / f"{STAGING}{snapshot.name}", self.folder / snapshot.name
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = Manifest(snapshot.step, self.world.size, dict(files), snapshot.about, versions(), now)

        def publish() -> None:
            # another torch may write what we refuse to read: better to learn that now
            read_metadata(staging, files, own=True)
            write_manifest(staging, manifest)
            self._on_phase("manifest")
            rename_into_place(staging, final, lambda: self._on_phase("replaced"))
            self._on_phase("renamed")

        with self._remove_on_failure(staging):
            self._run_on_main(f"saving the checkpoint {final}", publish)
        return final

    def _make_staging(self, staging: Path) -> None:
        """Make an empty staging folder."""
        has_vanished = self._has_written and not self.folder.is_dir()
        make_empty_folder(staging)
        self._has_written = True
        if has_vanished:
            _log.warning("the folder %s had vanished with the checkpoints in it; it was made again", self.folder)

    def _run_on_main(self, doing: str, work: Callable[[], Json]) -> Json:
        """What `work` returned on rank 0, on every rank; or its failure."""
        return self.world.run_on_all_ranks(doing, lambda: work() if self.world.is_main else None)[0]

    @contextmanager
    def _remove_on_failure(self, staging: Path) -> Iterator[None]:
        """Remove the staging folder of a save that failed on all ranks, as far as the disk allows it."""
        try:
            yield
        except (RunFailed, UserError):
            if self.world.is_main:
                try:
                    remove_folder(staging)
                except OSError as error:
                    _log.warning("%s could not be removed: %s", staging, error)
            raise


def _records_to_json(files: Mapping[str, FileRecord]) -> dict[str, Json]:
    return {name: asdict(record) for name, record in files.items()}


# The folder moves. Rank 0 alone makes them.


def make_empty_folder(folder: Path) -> None:
    """Make an empty folder; what was there before is removed."""
    remove_folder(folder)
    folder.mkdir(parents=True)


def replaced_path(final: Path) -> Path:
    """Where the older of two checkpoints of one step is kept until the new one has its name."""
    return final.with_name(f"{REPLACED}{final.name}")


def rename_into_place(staging: Path, final: Path, on_replaced: Callable[[], None]) -> None:
    """Give a written checkpoint its final name. Until then an older one of that name is found under `.replaced_`."""
    older = replaced_path(final)
    if final.exists():
        remove_folder(older)
        os.rename(final, older)
        on_replaced()
    os.rename(staging, final)
    sync_folder(final.parent)


def remove_checkpoints(paths: Iterable[Path]) -> None:
    """Remove checkpoints. All are hidden first, so that a kill in between leaves no half-deleted checkpoint."""
    hidden = []
    for path in paths:
        hidden.append(path.with_name(f"{DELETING}{path.name}"))
        remove_folder(hidden[-1])
        os.rename(path, hidden[-1])
        sync_folder(path.parent)
    for path in hidden:
        remove_folder(path)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed saves left in a folder. A replaced checkpoint without a successor gets its name back."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.startswith((STAGING, DELETING)):
            remove_folder(path)
        elif path.name.startswith(REPLACED):
            final = folder / path.name.removeprefix(REPLACED)
            if final.exists():
                remove_folder(path)
            else:  # killed between renaming the old one and renaming the new one
                os.rename(path, final)
                sync_folder(folder)
