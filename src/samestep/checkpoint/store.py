"""The store: the checkpoints of one stage, in one folder.

A save is three steps: `stage` takes the state, `write` brings it into a hidden staging folder, every rank its own files
with their checksums, and `commit` lets rank 0 write the manifest and rename the folder to its final name. A folder of
that name is therefore whole, or damaged later; a kill leaves hidden folders that `tidy` removes at the next start.
`Saver` (background.py) does the last two while training goes on.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor

from samestep.checkpoint.across_ranks import share_out, verified
from samestep.checkpoint.commit import STAGING, make_anew, put_in_place, remove_checkpoints, replaced, tidy
from samestep.checkpoint.files import FileRecord, remove_folder, write_file
from samestep.checkpoint.loading import load_state
from samestep.checkpoint.manifest import (
    RANKS,
    STATE,
    Checkpoint,
    Manifest,
    find_checkpoints,
    manifest_from,
    versions,
    write_manifest,
)
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.retention import Retention
from samestep.checkpoint.state import RankStateful, Stateful, check_json, take_apart
from samestep.checkpoint.tensors import Written, write_tensors
from samestep.core.errors import RunFailed, UserError
from samestep.core.records import Json
from samestep.world.world import World

_log = logging.getLogger("samestep.checkpoint")


class NoneWhole(UserError):
    """There are checkpoints, and all of them are damaged."""

    def __init__(self, folder: Path, damage: str) -> None:
        super().__init__(
            f"no checkpoint in {folder} is whole ({damage}): put one back from a copy, "
            "or start the stage over from its beginning with start_over=true"
        )
        self.damage = damage


@dataclass(frozen=True)
class Snapshot:
    """A state as it was at one step, ready to be written: tensors by name, all else as text."""

    step: int
    about: dict[str, Json]
    tensors: dict[str, torch.Tensor]
    """Those that this rank writes: its shards, and a share of what all ranks hold whole."""
    layout: str
    """A mark of all tensors' names and shapes, equal on all ranks."""
    state: str
    ranks: str
    """This rank's own part of the state."""

    @property
    def name(self) -> str:
        """The folder it will lie in."""
        return f"step_{self.step:08d}"


class Store:
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
        """`shared`: whether `folder` is the same for all ranks (see `shared_probe`); if not, only rank 0's is used.

        `on_phase` is told how far a save came (staged, written, reported, and on rank 0 manifest, replaced, renamed,
        pruned), so that tests can end a process just there.
        """
        self.folder = folder
        self.world = world
        self.keep = keep or Retention()
        self.shared = shared
        self._on_phase = on_phase
        self._damaged: dict[Path, str] = {}
        self._has_written = False

    def over(self, world: World) -> "Store":
        """The same store, whose ranks talk over another group: for the thread that saves beside the training."""
        other = copy.copy(self)
        other.world = world
        return other

    def tidy(self) -> None:
        """Remove what killed saves left behind. For the one process group that holds the run, once, before it saves."""
        self._on_main(f"tidying {self.folder}", lambda: tidy(self.folder))

    def save(self, step: int, state: Mapping[str, Stateful], about: Mapping[str, Json]) -> Path:
        """Save the state at `step`; a checkpoint of that step is replaced. `about["figure"]` decides what is best."""
        snapshot = self.stage(step, state, about)
        return self.commit(snapshot, self.write(snapshot))

    def stage(self, step: int, state: Mapping[str, Stateful], about: Mapping[str, Json]) -> Snapshot:
        """Take the state. Tensors are not copied: they must not change until they are written."""
        plain, tensors = take_apart({name: part.state_dict() for name, part in state.items()})
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
        told = json.loads(json.dumps(about))
        return Snapshot(step, told, self._own(tensors), layout, json.dumps(plain), json.dumps(ranks))

    def _own(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What this rank writes. Sharing out before anything is copied spares time and memory on every rank."""
        if not self.shared:
            return tensors if self.world.is_main else {}
        whole = {name: t.nbytes for name, t in tensors.items() if not isinstance(t, DTensor)}
        mine = set(share_out(whole, self.world.size)[self.world.rank])
        return {name: t for name, t in tensors.items() if name in mine or isinstance(t, DTensor)}

    def write(self, snapshot: Snapshot) -> dict[str, FileRecord]:
        """Bring a snapshot into its staging folder; returns all files in it. If a rank fails, nothing is left of it."""
        staging = self.folder / f"{STAGING}{snapshot.name}"
        doing = f"saving the checkpoint {self.folder / snapshot.name}"

        def begin() -> Json:
            self._make_room(staging)
            return snapshot.layout

        with self._discarding(staging):
            layouts = self.world.run_on_all_ranks(doing, begin)
            assert set(layouts) == {snapshot.layout}, f"the tensors of the state differ between ranks: {layouts}"
            self._on_phase("staged")
            written = Written({}, None)
            if self.shared:
                written = write_tensors(staging, snapshot.tensors, self.world.control)
            elif self.world.is_main:
                written = write_tensors(staging, snapshot.tensors, None)
            ranks = [json.loads(text) for text in self.world.gather(snapshot.ranks)]
            self._on_phase("written")

            def report() -> dict[str, Json]:
                files = written.files()
                if self.world.is_main:
                    files[STATE] = write_file(staging / STATE, snapshot.state.encode())
                    files[RANKS] = write_file(staging / RANKS, json.dumps(ranks).encode())
                return {name: asdict(record) for name, record in files.items()}

            reports = self.world.run_on_all_ranks(doing, report)
            self._on_phase("reported")
        return {name: FileRecord(**record) for files in reports for name, record in files.items()}

    def commit(self, snapshot: Snapshot, files: Mapping[str, FileRecord]) -> Path:
        """Turn a written snapshot into a checkpoint, and remove those that need not be kept."""
        staging, final = self.folder / f"{STAGING}{snapshot.name}", self.folder / snapshot.name
        now = datetime.now(UTC).isoformat(timespec="seconds")
        manifest = Manifest(snapshot.step, self.world.size, dict(files), snapshot.about, versions(), now)

        def publish() -> None:
            read_metadata(staging, files)  # another torch may write what we refuse: better to learn that now
            write_manifest(staging, manifest)
            self._on_phase("manifest")
            put_in_place(staging, final, lambda: self._on_phase("replaced"))
            self._on_phase("renamed")

        with self._discarding(staging):
            self._on_main(f"saving the checkpoint {final}", publish)
        self._damaged.pop(final, None)
        if self.world.is_main:
            self._prune(replaced(final))
            self._on_phase("pruned")
        return final

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, None when there is none at all; says which newer ones are damaged."""
        found, damaged = self._first_whole(lambda found: sorted(found, key=lambda c: c.step, reverse=True))
        if found is None and damaged:
            raise NoneWhole(self.folder, "; ".join(damaged))
        return found

    def best(self) -> Checkpoint | None:
        """The whole checkpoint with the best figure, None when none has one."""
        return self._first_whole(self.keep.ranked)[0]

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints by ascending step, each either verified or with its damage."""

        return [self._checked(candidate) for candidate in self._found(lambda found: found)]

    def load(self, checkpoint: Checkpoint, state: Mapping[str, Stateful]) -> None:
        """Load a checkpoint into the state, whatever number of ranks saved it."""
        load_state(checkpoint, state, self.world, self.shared)

    def _make_room(self, staging: Path) -> None:
        """An empty staging folder, made by rank 0."""
        if self.world.is_main:
            has_vanished = self._has_written and not self.folder.is_dir()
            make_anew(staging)
            self._has_written = True
            if has_vanished:
                _log.warning("the folder %s had vanished with the checkpoints in it; it was made anew", self.folder)

    def _on_main(self, doing: str, work: Callable[[], Json]) -> Json:
        """What `work` returned on rank 0, on every rank; or its failure."""
        return self.world.run_on_all_ranks(doing, lambda: work() if self.world.is_main else None)[0]

    def _found(self, order: Callable[[list[Checkpoint]], Iterable[Checkpoint]]) -> list[Checkpoint]:
        """The checkpoints that rank 0 finds, in this order, not verified."""
        entries = self._on_main(
            f"reading {self.folder}", lambda: [_entry(found) for found in order(find_checkpoints(self.folder))]
        )
        return [_checkpoint_from(entry) for entry in entries]

    def _first_whole(
        self, order: Callable[[list[Checkpoint]], Iterable[Checkpoint]]
    ) -> tuple[Checkpoint | None, list[str]]:
        """The first whole checkpoint in this order, and what is wrong with those before it."""
        damaged: list[str] = []
        for candidate in self._found(order):
            found = self._checked(candidate)
            if found.damage is None:
                return found, damaged
            if self.world.is_main:
                _log.warning("the checkpoint %s is damaged and not used: %s", found.path, found.damage)
            damaged.append(f"{found.path.name}: {found.damage}")
        return None, damaged

    def _checked(self, candidate: Checkpoint) -> Checkpoint:
        found = verified(candidate, self.world, self.shared)
        if found.damage is not None:
            self._damaged[found.path] = found.damage
        return found

    def _prune(self, aside: Path) -> None:
        """Remove what need not be kept. The save itself has succeeded, so a failure here is only worth a word."""
        try:
            remove_folder(aside)
            found = [replace(c, damage=c.damage or self._damaged.get(c.path)) for c in find_checkpoints(self.folder)]
            remove_checkpoints(c.path for c in self.keep.to_delete(found))
        except (OSError, UserError) as error:
            _log.warning("old checkpoints in %s could not be removed: %s", self.folder, error)

    @contextmanager
    def _discarding(self, staging: Path) -> Iterator[None]:
        """Remove the staging folder of a save that failed on all ranks, as far as the disk lets us."""
        try:
            yield
        except (RunFailed, UserError):
            if self.world.is_main:
                try:
                    remove_folder(staging)
                except OSError as error:
                    _log.warning("%s could not be removed: %s", staging, error)
            raise


def _entry(checkpoint: Checkpoint) -> dict[str, Json]:
    """A checkpoint as JSON, for the other ranks."""
    manifest = asdict(checkpoint.manifest) if checkpoint.manifest else None
    return {**asdict(checkpoint), "path": str(checkpoint.path), "manifest": manifest}


def _checkpoint_from(entry: Mapping[str, Json]) -> Checkpoint:
    manifest = manifest_from(entry["manifest"]) if entry["manifest"] else None
    return Checkpoint(**{**entry, "path": Path(entry["path"]), "manifest": manifest})
