"""Tensors to and from a checkpoint folder, by the planners, writers and readers of torch.distributed.checkpoint (DCP).

Each rank writes its shards of sharded tensors and a share of the replicated ones; reading fills tensors in place,
sharded as they are now. DCP's own `save` and `load` are not called: they send pickles between the ranks.
"""

import hashlib
import os
import pickle
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan

from samestep.checkpoint.files import FileRecord
from samestep.checkpoint.save_plans import (
    part_from_json,
    part_to_json,
    plan_from_json,
    plan_to_json,
    results_from_json,
    results_to_json,
)
from samestep.core.errors import UserError, first_line
from samestep.core.json_files import Json
from samestep.core.safe_files import open_file

COPY_AHEAD = 10_000_000
"""Bytes that are copied from a device ahead of the writing."""

LARGE = 1_000_000
"""From this many bytes on, data is hashed in a thread while it is written."""


class TensorSave:
    """The tensors of one checkpoint being written. Rank 0 needs the plans of all ranks, and then what they wrote:

    1. every rank sends `own_plan` to rank 0, whose `plan_of_all` makes one of them for each rank;
    2. every rank calls `write` with its own and sends what that returns to rank 0, which calls `finish`.

    All that is sent is JSON.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, torch.Tensor], rank: int) -> None:
        """`tensors` are those of this rank; the folder need not be there yet."""
        # CPU tensors need no device stream, which in a thread would be that of GPU 0
        ahead = 0 if all(tensor.device.type == "cpu" for tensor in tensors.values()) else COPY_AHEAD
        self._tensors, self._writer, self._rank = dict(tensors), _Writer(folder, ahead), rank
        self._planner = DefaultSavePlanner(flatten_state_dict=False)
        self._plan = SavePlan([])
        self._metadata: Metadata | None = None

    def own_plan(self) -> Json:
        assert all(isinstance(tensor, torch.Tensor) for tensor in self._tensors.values()), "DCP would pickle the rest"
        self._writer.set_up_storage_writer(self._rank == 0)
        self._planner.set_up_planner(self._tensors, self._writer.storage_meta(), is_coordinator=self._rank == 0)
        self._plan = self._planner.create_local_plan()
        return plan_to_json(self._plan)

    def plan_of_all(self, plans: Sequence[Json]) -> list[Json]:
        """What every rank writes of that, by rank: of what several have, one does."""
        given = [plan_from_json(plan) for plan in plans]
        made, self._metadata = self._planner.create_global_plan(given)
        return [part_to_json(plan, part) for plan, part in zip(given, made)]

    def write(self, part: Json) -> Json:
        """Write this rank's part; returns where everything is."""
        named = replace(part_from_json(self._plan, part), storage_data=_StoragePrefix(f"__{self._rank}_"))
        try:
            results = self._writer.write_data(self._planner.finish_plan(named), self._planner).wait()
        except Exception as error:
            raise self._writer.fs.failure or error from None
        return results_to_json(results)

    def finish(self, results: Sequence[Json]) -> None:
        """Write the metadata: where every rank's tensors are. On rank 0, after `plan_of_all`."""
        assert self._metadata is not None
        self._writer.finish(self._metadata, [results_from_json(part) for part in results])

    @property
    def files(self) -> dict[str, FileRecord]:
        """The files that this rank has written so far."""
        return dict(self._writer.fs.records)


def fill_tensors(folder: Path, metadata: Metadata, tensors: dict[str, torch.Tensor]) -> None:
    """Fill tensors, or this rank's shards of them, from a checkpoint in place. Ranks need not tell each other anything.

    Raises UserError for whatever damaged or hostile files cause.
    """
    reader, planner = FileSystemReader(folder), DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plan = planner.finish_plan(planner.create_local_plan())
    try:
        reader.read_data(plan, planner).wait()
    except pickle.UnpicklingError:
        raise UserError(
            f"the tensors in {folder} would run code when read, so they were not; use a checkpoint you can trust"
        ) from None
    except (OSError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # there is no error that hostile bytes cannot cause
        raise UserError(
            f"the tensors in {folder} cannot be read ({first_line(error)}); use another checkpoint"
        ) from None


def check_tensors(path: Path, metadata: Metadata, wanted: Mapping[str, torch.Tensor]) -> None:
    """Raise UserError if a checkpoint's tensors are not exactly the wanted ones; it names the first that differs."""
    saved = metadata.state_dict_metadata
    problems = [f"it has no tensor {name!r}" for name in sorted(wanted.keys() - saved.keys())]
    problems += [f"it has a tensor {name!r} that is not asked for" for name in sorted(saved.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & saved.keys()):
        here, there = wanted[name], saved[name]
        assert isinstance(there, TensorStorageMetadata)
        if here.shape != there.size:
            problems.append(f"its tensor {name!r} has shape {tuple(there.size)} instead of {tuple(here.shape)}")
        elif here.dtype != there.properties.dtype:
            problems.append(f"its tensor {name!r} has type {there.properties.dtype} instead of {here.dtype}")
    if problems:
        more = f" (and {len(problems) - 1} more differences)" if len(problems) > 1 else ""
        raise UserError(
            f"the checkpoint {path} is of another model: {problems[0]}{more}; "
            "load it with the model and the options it was saved with"
        )


class _Writer(FileSystemWriter):
    """DCP's writer, which records the checksums of its files and writes no paths or random names into them."""

    def __init__(self, folder: Path, copy_ahead: int) -> None:
        super().__init__(folder, sync_files=True, per_thread_copy_ahead=copy_ahead)
        self.fs: HashingFileSystem = HashingFileSystem()

    def storage_meta(self) -> StorageMeta | None:
        return None


class HashingFileSystem(FileSystem):
    """The file system that DCP uses, which hashes every file while it is written.

    So no file is read again to compute its checksum, and the checksum is that of the data that was meant to be written.
    """

    def __init__(self) -> None:
        self.records: dict[str, FileRecord] = {}
        self.failure: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike, mode: str) -> Generator[Any, None, None]:
        """Open a file; after one that is written is closed, `records` has it."""
        with open_file(Path(path), mode) if "w" in mode else open(path, mode) as file:
            if "w" not in mode:
                yield file
                return
            with ThreadPoolExecutor(max_workers=1) as hasher:
                stream = _HashingStream(file, self, hasher)
                yield stream
        self.records[Path(path).name] = FileRecord(stream.size, stream.digest.hexdigest())

    def rename(self, path: str | os.PathLike, new_path: str | os.PathLike) -> None:
        """Rename a file, and its record with it."""
        os.replace(path, new_path)
        self.records[Path(new_path).name] = self.records.pop(Path(path).name)


class _HashingStream:
    """A file being written, and the checksum so far."""

    def __init__(self, file: IO[bytes], owner: HashingFileSystem, hasher: Executor) -> None:
        self._file = file
        self._owner = owner
        self._hasher = hasher
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        if size < LARGE:
            self.digest.update(data)
            self._write(data)
        else:  # in parallel, since hashing takes as long as writing; the caller may change the data once we return
            hashed = self._hasher.submit(self.digest.update, data)
            try:
                self._write(data)
            finally:
                hashed.result()
        self.size += size
        return size

    def _write(self, data: Any) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            self._owner.failure = error  # torch.save replaces it by an error about its own bookkeeping
            raise

    def __getattr__(self, name: str) -> Any:  # tell, flush, fileno, close: those of the file
        return getattr(self._file, name)
