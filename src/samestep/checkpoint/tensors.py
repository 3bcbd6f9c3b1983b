"""Tensors to and from a checkpoint folder, by torch.distributed.checkpoint (DCP).

Each rank writes its shards of sharded tensors and a share of the replicated ones; reading fills tensors in place,
sharded as they are now. DCP sends an exception of one rank to the others as a pickle. Not every exception can be
unpickled, and then ranks would wait for each other forever. So our writer and reader keep an exception in `failure`,
and the caller passes it to the other ranks.
"""

import hashlib
import os
import pickle
from collections.abc import Generator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.futures import Future

from samestep.checkpoint.files import FileRecord
from samestep.core.errors import UserError, first_line
from samestep.core.safe_files import open_file

COPY_AHEAD = 10_000_000
"""Bytes that are copied from a device ahead of the writing."""

LARGE = 1_000_000
"""From this many bytes on, data is hashed in a thread while it is written."""


def write_tensors(folder: Path, tensors: Mapping[str, torch.Tensor], group: Any) -> "Written":
    """Write tensors to an existing folder, together with the ranks of `group`, or alone when it is None."""
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values()), "DCP would pickle anything else"
    # CPU tensors need no device stream, which in a thread would be that of GPU 0
    ahead = 0 if all(tensor.device.type == "cpu" for tensor in tensors.values()) else COPY_AHEAD
    writer = _Writer(folder, ahead)
    planner = DefaultSavePlanner(flatten_state_dict=False)
    if group is not None:
        save(dict(tensors), storage_writer=writer, planner=planner, process_group=group)
        return Written(writer.fs.records, writer.failure)
    # what `save` does in a single process, without its warning about that
    planner.set_up_planner(dict(tensors), writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(True)
    plans, metadata = planner.create_global_plan([writer.prepare_local_plan(planner.create_local_plan())])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    writer.finish(metadata, [writer.write_data(plan, planner).wait()])
    return Written(writer.fs.records, writer.failure)


def fill_tensors(folder: Path, metadata: Metadata, tensors: dict[str, torch.Tensor], group: Any) -> Exception | None:
    """Fill tensors from a checkpoint in place, together with the ranks of `group` or alone; returns its failure."""
    reader = _Reader(folder, metadata)
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    if group is not None:
        load(tensors, storage_reader=reader, planner=planner, process_group=group)
        return reader.failure
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    plans = planner.create_global_plan([reader.prepare_local_plan(planner.create_local_plan())])
    reader.read_data(planner.finish_plan(reader.prepare_global_plan(plans)[0]), planner).wait()
    return reader.failure


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


class Written:
    """What one rank wrote: its files, or why it could not."""

    def __init__(self, files: Mapping[str, FileRecord], failure: Exception | None) -> None:
        self._files = dict(files)
        self._failure = failure

    def files(self) -> dict[str, FileRecord]:
        """The files this rank wrote; raises its failure if there was one."""
        if self._failure is not None:
            raise self._failure
        return self._files


class _Writer(FileSystemWriter):
    """DCP's writer, which records the checksums of its files and writes no paths or random names into them."""

    def __init__(self, folder: Path, copy_ahead: int) -> None:
        super().__init__(folder, sync_files=True, per_thread_copy_ahead=copy_ahead)
        self.fs: HashingFileSystem = HashingFileSystem()
        self.failure: Exception | None = None

    def storage_meta(self) -> StorageMeta | None:
        return None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan  # DCP's own would look for an older checkpoint in the folder, which is new

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[Any]:
        try:
            return super().write_data(plan, planner)
        except Exception as error:
            self.failure = self.fs.failure or error
            return _done([])

    def finish(self, metadata: Metadata, results: list[Any]) -> None:
        try:
            super().finish(metadata, results)
        except Exception as error:
            self.failure = self.failure or error


class _Reader(FileSystemReader):
    """DCP's reader, for a folder whose metadata was already read by `read_metadata`."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata
        self.failure: Exception | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            return super().read_data(plan, planner)
        except pickle.UnpicklingError:
            text = (
                f"the tensors in {self.path} would run code when read, so they were not; use a checkpoint you can trust"
            )
            self.failure = UserError(text)
        except (OSError, torch.OutOfMemoryError) as error:
            self.failure = error
        except Exception as error:  # there is no error that hostile bytes cannot cause
            self.failure = UserError(
                f"the tensors in {self.path} cannot be read ({first_line(error)}); use another checkpoint"
            )
        return _done(None)


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


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
