"""Writing an array artifact: every rank writes its own rows into files that exist at full size from the start.

While the stage runs, the files lie in a hidden folder, `.NAME.partial`; `finish` checks that every row was written
once, and renames it. A row's progress is the step of the stage, so a resume writes again what came after its
checkpoint. `prepare_save` syncs the rows to the disk: a checkpoint of any rank's state is committed only after every
rank took its part of it, hence never claims rows that a crash of the machine could lose, though it is written later.

Rows are written by `pwrite` into files that are open for writing alone. Neither a memory map nor reading the files
would do: a network file system then writes back whole pages, with old rows of other ranks in them.
"""

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import DiskFailed, UserError
from samestep.core.json_files import Json, sync_folder, write_json
from samestep.train.artifacts.array_format import (
    LAYOUT,
    STEP_TYPE,
    STEPS,
    ArrayField,
    ArrayLayout,
    array_path,
    create_arrays,
    digest_of,
)
from samestep.train.artifacts.array_rows import require_shared
from samestep.train.artifacts.artifact_key import KEY, ArtifactKey
from samestep.train.artifacts.files import check_name
from samestep.world.world import World

_CHUNK = 1 << 22
_GIB = 2**30


def check_array_artifact(name: str, known: Collection[str], is_built: bool) -> None:
    """Refuse an array artifact that cannot be made here; `known` are the names of those that the stage has."""
    check_name(name)
    if is_built or name in known:
        raise UserError(f"make the array artifact {name!r} once, where the stage is built: checkpoints must know it")


class ArrayArtifact:
    """An array artifact that is being written. It is a part of the stage's checkpoints."""

    def __init__(
        self,
        folder: Path,
        layout: ArrayLayout,
        world: World,
        *,
        step: Callable[[], int],
        resumed: bool,
        shared: bool = True,
        key: ArtifactKey | None = None,
    ) -> None:
        """`step` gives the number of steps done so far; `shared`: all ranks see the run directory; `key` is stored
        with it, and at a resume the rows so far must have the same. Collective."""
        require_shared(folder, world, shared)
        self.layout, self._key = layout, key
        self._final, self._partial = folder, folder.with_name(f".{folder.name}.partial")
        self._world, self._step = world, step
        self._files: dict[str, _RowFile] = {}
        self._written = 0  # rows by this rank; after a resume with other ranks, rank 0 counts all that came before
        prepare = self._reopen if resumed else self._create
        world.run_on_all_ranks(f"preparing {folder}", lambda: prepare() if world.is_main else None)

    def write(self, indices: np.ndarray | Tensor, values: Mapping[str, Tensor]) -> None:
        """Write rows of this rank: for each index a row of every field. Any rank may call it at any time in a step."""
        chosen = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices, dtype=np.int64)
        self._check(chosen, values)
        if not self._world.dp_counted or not len(chosen):  # of several ranks with the same rows, one writes them
            return
        stored = {name: _stored(values[name], field) for name, field in self.layout.fields.items()}
        steps = np.full(len(chosen), self._step() + 1, dtype=STEP_TYPE)
        with self._disk_errors():
            files = self._open()
            for name, rows in stored.items():
                files[name].write(chosen, rows)
            files[STEPS].write(chosen, steps)
        self._written += len(chosen)

    def prepare_save(self) -> None:
        """What was written so far is on the disk when this returns."""
        with self._disk_errors():
            for file in self._files.values():
                file.sync()

    def state_dict(self) -> dict[str, Json]:
        """How far it is."""
        return {"step": self._step()}

    def load_state_dict(self, state: dict[str, Json]) -> None:
        """Forget the rows that were written after the checkpoint: they will be written again. Collective."""
        self._world.run_on_all_ranks(
            f"reopening {self._partial}", lambda: self._forget_after(state["step"]) if self._world.is_main else None
        )

    def rank_state(self) -> Json:
        """The number of rows that this rank wrote."""
        return self._written

    def load_rank_state(self, states: list[Json]) -> None:
        """Continue counting; with another number of ranks, rank 0 takes all that was counted."""
        if len(states) == self._world.size:
            self._written = states[self._world.rank]
        else:
            self._written = sum(states) if self._world.is_main else 0

    def finish(self) -> None:
        """Check that every row was written once, and let the artifact appear. Collective."""

        def close() -> int:
            self.prepare_save()
            for file in self._files.values():
                file.close()
            self._files = {}
            return self._written

        written = sum(self._world.run_on_all_ranks(f"closing {self._partial}", close))
        self._world.run_on_all_ranks(
            f"finishing {self._final}", lambda: self._publish(written) if self._world.is_main else None
        )

    def _create(self) -> None:
        """Make new files; what an earlier attempt left is removed."""
        for left in (self._final, self._partial):
            shutil.rmtree(left, ignore_errors=True)
        self._final.parent.mkdir(parents=True, exist_ok=True)
        self._require_space(self.layout.bytes)
        self._partial.mkdir()
        create_arrays(self._partial, self.layout)
        self._write_layout()
        sync_folder(self._final.parent)

    def _write_layout(self, digests: Mapping[str, str] | None = None) -> None:
        stored = {} if self._key is None else {KEY: self._key.to_json(self._final.parent.parent)}
        write_json(self._partial / LAYOUT, {**self.layout.to_json(digests), **stored})

    def _reopen(self) -> None:
        """Continue with the files of an earlier launch, which may have got as far as finishing them."""
        if not self._partial.exists() and self._final.exists():
            os.rename(self._final, self._partial)
        found = ArrayLayout.read(self._partial)
        if found is None:
            raise UserError(
                f"the rows that were written so far for the array artifact {self._final.name!r} are gone; restore "
                f"{self._partial}, or start a new run"
            )
        if found != self.layout:
            raise UserError(
                f"the array artifact {self._final.name!r} was begun with {found.rows} rows and the fields "
                f"{_described(found)}, and has {self.layout.rows} rows and the fields {_described(self.layout)} now; "
                "undo the change, or start a new run"
            )
        if self._key is not None:
            self._key.refuse_other(self._partial, whole=True)
        self._require_space(0)

    def _require_space(self, new: int) -> None:
        """Refuse a disk without room for `new` bytes, and for what the stage's artifacts have still to write."""
        begun = [path.stat() for path in self._final.parent.glob(".*.partial/*.npy")]
        needed = new + sum(max(0, file.st_size - file.st_blocks * 512) for file in begun)
        free = shutil.disk_usage(self._final.parent).free
        if needed > free:
            raise UserError(
                f"the stage's array artifacts, with {self._final.name!r}, need {needed / _GIB:,.2f} GiB, but the disk "
                f"of {self._final.parent} has {free / _GIB:,.2f} GiB free; free some, or set out=... to another disk"
            )

    def _forget_after(self, step: int) -> None:
        steps = np.load(self._partial / STEPS, mmap_mode="r+")
        for start in range(0, self.layout.rows, _CHUNK):
            part = steps[start : start + _CHUNK]
            if (later := part > step).any():
                part[later] = 0
        steps.flush()

    def _publish(self, written: int) -> None:
        missing = self._missing()
        rows = self.layout.rows
        if len(missing):
            named = ", ".join(map(str, missing[:5])) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
            raise UserError(
                f"{len(missing)} of the {rows} rows of the array artifact {self._final.name!r} were never written "
                f"({named}); write each row of the data once, and start a new run"
            )
        if written != rows:
            raise UserError(
                f"{written} rows were written into the array artifact {self._final.name!r}, which has {rows}: some "
                "were written twice; let each rank write its own rows only, and start a new run"
            )
        moved = self._world.activity.made_progress
        digests = {name: digest_of(array_path(self._partial, name), moved) for name in self.layout.fields}
        self._write_layout(digests)
        os.rename(self._partial, self._final)
        sync_folder(self._final.parent)

    def _missing(self) -> np.ndarray:
        steps = np.load(self._partial / STEPS, mmap_mode="r")
        parts = [
            start + np.flatnonzero(steps[start : start + _CHUNK] == 0) for start in range(0, self.layout.rows, _CHUNK)
        ]
        return np.concatenate(parts)

    def _open(self) -> dict[str, "_RowFile"]:
        """The files, opened at the first write: by then rank 0 has made or reopened them."""
        if not self._files:
            rows = self.layout.rows
            for name, field in self.layout.fields.items():
                self._files[name] = _RowFile(array_path(self._partial, name), rows, field.row_bytes)
            self._files[STEPS] = _RowFile(self._partial / STEPS, rows, STEP_TYPE.itemsize)
        return self._files

    def _check(self, indices: np.ndarray, values: Mapping[str, Tensor]) -> None:
        name, fields = self._final.name, self.layout.fields
        if set(values) != set(fields):
            raise UserError(
                f"a row of the array artifact {name!r} has the fields {', '.join(sorted(fields))}, but "
                f"{', '.join(sorted(values)) or 'nothing'} was given"
            )
        for field, value in values.items():
            expected, kind = (len(indices), *fields[field].shape), fields[field].torch_dtype
            if tuple(value.shape) != expected or not torch.can_cast(value.dtype, kind):
                raise UserError(
                    f"field {field!r} of the array artifact {name!r} takes {expected} of {kind} for "
                    f"{len(indices)} rows, but got {tuple(value.shape)} of {value.dtype}"
                )
        if len(indices) and not (indices.min() >= 0 and indices.max() < self.layout.rows):
            wrong = indices.max() if indices.max() >= self.layout.rows else indices.min()
            raise UserError(f"there is no row {wrong} in the array artifact {name!r}, which has {self.layout.rows}")

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise DiskFailed(
                f"rows of the array artifact {self._final.name!r} cannot be written ({error.strerror}); the rows up to "
                "the last checkpoint are safe, so free some space or fix the disk, and start the run again to resume"
            ) from error


class _RowFile:
    """A .npy file that is open for writing rows into it."""

    def __init__(self, path: Path, rows: int, row_bytes: int) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        self._offset, self._row_bytes = os.fstat(self._handle).st_size - rows * row_bytes, row_bytes
        self._is_dirty = False

    def write(self, indices: np.ndarray, rows: np.ndarray) -> None:
        """Write rows, neighbours together."""
        self._is_dirty = True
        cuts = np.flatnonzero(np.diff(indices) != 1) + 1
        for first, part in zip(indices[np.r_[0, cuts]], np.split(rows, cuts)):
            data, at = memoryview(part.tobytes()), self._offset + int(first) * self._row_bytes
            while data:
                done = os.pwrite(self._handle, data, at)
                data, at = data[done:], at + done

    def sync(self) -> None:
        """Have what was written on the disk."""
        if self._is_dirty:
            os.fsync(self._handle)
            self._is_dirty = False

    def close(self) -> None:
        os.close(self._handle)


def _stored(value: Tensor, field: ArrayField) -> np.ndarray:
    value = value.detach().to(field.torch_dtype).cpu().contiguous()
    return (value.view(torch.int16) if field.dtype == "bfloat16" else value).numpy()


def _described(layout: ArrayLayout) -> str:
    return ", ".join(f"{name} {field.shape} {field.dtype}" for name, field in layout.fields.items())
