"""The store: the checkpoints of one stage, in one folder; finding, choosing, loading and deleting them.

How a checkpoint is written is in commit.py.
"""

import copy
import logging
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

from torch.distributed.tensor import DTensor

from samestep.checkpoint.across_ranks import verify_together
from samestep.checkpoint.commit import (
    CheckpointWriter,
    Snapshot,
    remove_checkpoints,
    remove_leftovers,
    replaced_path,
)
from samestep.checkpoint.files import FileRecord, remove_folder
from samestep.checkpoint.loading import load_state
from samestep.checkpoint.manifest import Checkpoint, find_checkpoints, manifest_from
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.state import Stateful
from samestep.core.disk_space import existing_folder
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.world.world import World

_SMALL_FILES = 1 << 16
"""Bytes for what is in a checkpoint beside tensors, and for metrics and logs."""
_log = logging.getLogger("samestep.checkpoint")
Ordering = Callable[[list[Checkpoint]], Iterable[Checkpoint]]
"""Picks checkpoints and puts them in the order in which they are tried."""


class NoIntactCheckpoint(UserError):
    """There are checkpoints, and all of them are damaged."""

    def __init__(self, folder: Path, damage: str) -> None:
        super().__init__(
            f"every checkpoint in {folder} is damaged ({damage}): restore one from a copy, "
            "or start the stage over from its beginning with start_over=true"
        )
        self.damage = damage


class Store(CheckpointWriter):
    """The checkpoints in one folder. Every method is collective: all ranks call it, all return or raise alike."""

    def __init__(
        self,
        folder: Path,
        world: World,
        *,
        keep: Retention | None = None,
        shared: bool = True,
        on_phase: Callable[[str], None] = lambda phase: None,
    ) -> None:
        """`shared`: whether `folder` is the same for all ranks (see `is_disk_shared`); if not, only rank 0's is used.

        `on_phase` is called with each phase that a save reaches (see commit.py), so that tests can end a process there.
        """
        super().__init__(folder, world, shared=shared, on_phase=on_phase)
        self.keep = keep or Retention()
        self._damaged: dict[Path, str] = {}

    def with_world(self, world: World) -> "Store":
        """The same store, whose ranks communicate over another group: for the thread that saves during training."""
        other = copy.copy(self)
        other.world = world
        return other

    def remove_leftovers(self) -> None:
        """Remove what killed saves left. Call it once, before the first save, and only in the process group that
        holds the run."""
        self._run_on_main(f"removing leftovers in {self.folder}", lambda: remove_leftovers(self.folder))

    def require_space(self, state: Mapping[str, Stateful]) -> None:
        """Refuse a disk without room for one checkpoint of this state."""
        tensors = self.take_snapshot(0, state, {}).tensors.values()
        own = sum((t.to_local() if isinstance(t, DTensor) else t).nbytes for t in tensors)
        needed = sum(self.world.gather(own)) + _SMALL_FILES

        def check() -> None:
            free = shutil.disk_usage(existing_folder(self.folder)).free
            if free < needed:
                raise UserError(
                    f"the disk of {self.folder} is full ({free / 1000:,.0f} kB are free, and a checkpoint needs "
                    f"{needed / 1000:,.0f} kB); free some space there, or choose a folder on another disk with out=..."
                )

        self._run_on_main(f"measuring the disk of {self.folder}", check)

    def save(self, step: int, state: Mapping[str, Stateful], about: Mapping[str, Json]) -> Path:
        """Save the state at `step`; a checkpoint of that step is replaced. `about["metric"]` is the metric that decides
        which checkpoint is best."""
        snapshot = self.take_snapshot(step, state, about)
        return self.commit(snapshot, self.write(snapshot))

    def commit(self, snapshot: Snapshot, files: Mapping[str, FileRecord]) -> Path:
        """Turn a written snapshot into a checkpoint, and remove those that need not be kept."""
        final = super().commit(snapshot, files)
        self._damaged.pop(final, None)
        if self.world.is_main:
            self._prune(replaced_path(final))
            self._on_phase("pruned")
        return final

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint, or None when there is no checkpoint; logs which newer ones are damaged."""
        found, damaged = self._first_intact(lambda found: sorted(found, key=lambda c: c.step, reverse=True))
        if found is None and damaged:
            raise NoIntactCheckpoint(self.folder, "; ".join(damaged))
        return found

    def best(self) -> Checkpoint | None:
        """The intact checkpoint with the best metric, or None when no checkpoint has one."""
        return self._first_intact(self.keep.ranked)[0]

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints by ascending step, each either verified or with its damage."""

        return [self._verify(candidate) for candidate in self._find(lambda found: found)]

    def load(self, checkpoint: Checkpoint, state: Mapping[str, Stateful]) -> None:
        """Load a checkpoint into the state, whatever number of ranks saved it."""
        load_state(checkpoint, state, self.world, self.shared)

    def _find(self, order: Ordering) -> list[Checkpoint]:
        """The checkpoints that rank 0 finds, in this order, not verified."""
        entries = self._run_on_main(
            f"reading {self.folder}", lambda: [_to_json(found) for found in order(find_checkpoints(self.folder))]
        )
        return [_from_json(entry, self.folder) for entry in entries]

    def _first_intact(self, order: Ordering) -> tuple[Checkpoint | None, list[str]]:
        """The first intact checkpoint in this order, and what is wrong with those before it."""
        damaged: list[str] = []
        for candidate in self._find(order):
            found = self._verify(candidate)
            if found.damage is None:
                return found, damaged
            if self.world.is_main:
                _log.warning("the checkpoint %s is damaged and not used: %s", found.path, found.damage)
            damaged.append(f"{found.path.name}: {found.damage}")
        return None, damaged

    def _verify(self, candidate: Checkpoint) -> Checkpoint:
        found = verify_together(candidate, self.world, self.shared)
        if found.damage is not None:
            self._damaged[found.path] = found.damage
        return found

    def _prune(self, replaced: Path) -> None:
        """Remove what need not be kept. The save itself has succeeded, so a failure here is only a warning."""
        try:
            remove_folder(replaced)
            found = [replace(c, damage=c.damage or self._damaged.get(c.path)) for c in find_checkpoints(self.folder)]
            remove_checkpoints(c.path for c in self.keep.to_delete(found))
        except (OSError, UserError) as error:
            _log.warning("old checkpoints in %s could not be removed: %s", self.folder, error)


def _to_json(checkpoint: Checkpoint) -> dict[str, Json]:
    """A checkpoint as JSON, for the other ranks, which have it in a folder of their own."""
    manifest = asdict(checkpoint.manifest) if checkpoint.manifest else None
    return {**asdict(checkpoint), "path": checkpoint.path.name, "manifest": manifest}


def _from_json(entry: Mapping[str, Json], folder: Path) -> Checkpoint:
    manifest = manifest_from(entry["manifest"]) if entry["manifest"] else None
    return Checkpoint(**{**entry, "path": folder / entry["path"], "manifest": manifest})
