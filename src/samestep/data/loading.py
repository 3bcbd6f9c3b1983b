"""Loading a data-parallel rank's share of a step: in this process, or ahead of time in loader processes."""

import copy
import gc
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.core.open_files import PER_BATCH, PER_WORKER, require_open_files
from samestep.core.parent import kill_with_parent
from samestep.data.augmented import Augmented, takes_generator
from samestep.data.collate import Collate, check_batch, stack_rows
from samestep.data.order import Order, Sequential, micro_batches
from samestep.data.random_state import RowSeeding, generator_of_row
from samestep.data.streams.reading import StreamPlace, StreamReader
from samestep.data.streams.stream import over, stream_of
from samestep.data.worker_queue import LoaderContext, naming_worker_failures, print_no_lost_connections, resource_error
from samestep.world.world import World

_SOCKET_NAME = len("/pymp-xxxxxxxx/listener-xxxxxxxx")
_SOCKET_PATH = 103 if sys.platform == "darwin" else 107
"""How long the path of a socket may be."""
Batch = dict[str, Tensor]
"""A micro-batch, as losses get it: by name a tensor with a row for each sample. `ids` [rows, 2] has the epoch and index
of each, `live` [rows] is false for filler rows, which count for nothing."""
RowWeights = Callable[[Batch], Mapping[str, Tensor]]
"""Gives each term's weight per row ([rows]); a term that it does not name is weighed by its rows."""


class Rows(Protocol):
    """Samples by index. If there is a method `rows(indices)`, it is used to get a whole batch at once, unless the feed
    has a collate; if there is torch's `__getitems__(indices)`, it is used to get a list of samples.

    Where `__getitem__(index, random)` takes a generator, each sample is read with its own; see augmented.py.

    Rows that depend on their step, such as rows that are padded to the longest of the global batch, have a method
    `of_step(step, indices)`: given a step and all rows of its global batch, it returns the rows to read for it. What
    it chooses by these two is the same on every rank and in every micro-batch.

    Data that comes from files may have a method `origins()` that names all files (paths, or a `DataFile` if the hash
    is known) and arrays in memory: a resumed run then compares these (see data/fingerprint.py).
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def gives_batches(rows: Rows) -> bool:
    """Whether rows have a method `rows(indices)`; some datasets have a list of that name."""
    return callable(getattr(rows, "rows", None))


def read_samples(rows: Rows, indices: np.ndarray) -> list[Any]:
    """The samples at these indices, all at once if the data can."""
    if hasattr(rows, "__getitems__"):
        return rows.__getitems__(indices.tolist())
    return [rows[int(index)] for index in indices]


def read_keyed(rows: Rows, ids: np.ndarray, seed: int, seeding: RowSeeding | None = None) -> list[Any]:
    """The samples of these (epoch, index) pairs, for each of which the global generators are seeded, and rows that take
    a generator given one: so a sample is the same whoever reads it. The global ones are restored afterwards. `seeding`
    knows from reads before which of them rows draw from."""
    return (seeding or RowSeeding(seed)).read(ids, _keyed_reader(rows, seed))


def _keyed_reader(rows: Rows, seed: int) -> Callable[[int, int], Any]:
    """Reads a row by its epoch and index. A generator is only made where there is something to draw from it: to make
    one takes longer than many rows."""
    if isinstance(rows, Augmented) and (plain := rows.without_generators()) is not None:
        return lambda _, index: plain(index)
    if takes_generator(rows):
        get = type(rows).__getitem__
        return lambda epoch, index: get(rows, index, generator_of_row(seed, epoch, index))  # type: ignore[call-arg]
    return lambda _, index: rows[index]


@dataclass
class Share:
    """This rank's share of a step, as loaded."""

    batches: list[Batch]
    weights: dict[str, float]
    """Per counted term, sorted by name, so that the order is the same on all ranks."""
    ids: np.ndarray
    spans: list[tuple[int, int]]
    position: dict[str, Json] | None = None
    """Of a stream: where a resumed run begins to read for this step."""

    def pin_memory(self) -> "Share":
        """Move it to page-locked memory, from which a copy to the device overlaps with computation."""
        self.batches = [{key: value.pin_memory() for key, value in batch.items()} for batch in self.batches]
        return self

    def with_filler(self) -> "Share":
        """One more micro-batch, of a filler row: a row of the first that counts for nothing."""
        row = {name: value[:1] for name, value in self.batches[0].items()} | {"live": torch.zeros(1, dtype=torch.bool)}
        end = self.spans[-1][1]
        return replace(self, batches=[*self.batches, row], spans=[*self.spans, (end, end)])


def row_weights(
    count: RowWeights | None, batches: Sequence[Batch], spans: Sequence[tuple[int, int]]
) -> dict[str, float]:
    """The weight of the batches in each counted term; an empty span is a filler row of weight zero."""
    weights: dict[str, float] = {}
    if count is None:
        return weights
    for batch, (start, stop) in zip(batches, spans):
        for term, weight in _counted(count, batch).items():
            total, least = torch.stack([weight.sum(dtype=torch.float64), weight.min().double()]).tolist()
            is_filler = start == stop
            if not is_filler and (least < 0 or not math.isfinite(total)):
                _refuse_weight(term, weight, batch["ids"])
            weights[term] = weights.get(term, 0.0) + (0.0 if is_filler else total)
    return dict(sorted(weights.items()))


def _counted(count: RowWeights, batch: Batch) -> Mapping[str, Tensor]:
    """What `count` gives for a batch, once it is known to be one number a row."""
    counted = count(batch)
    example = 'such as {"nll": batch["length"]}'
    if not isinstance(counted, Mapping):
        raise UserError(
            f"count returned a {type(counted).__name__}; return a dict with each row's weight by term, {example}"
        )
    for term, weight in counted.items():
        if not isinstance(weight, Tensor):
            raise UserError(
                f"count gives {term!r} a value of type {type(weight).__name__}; give a tensor with one number a row, "
                f"{example}"
            )
        if weight.shape != batch["live"].shape:
            raise UserError(f"count must give {term!r} one number a row, not the shape {tuple(weight.shape)}")
    return counted


def _refuse_weight(term: str, weight: Tensor, ids: Tensor) -> NoReturn:
    """Refuse weights of which one is negative or not finite, which would turn the gradient of a term around."""
    wrong = ~(weight >= 0) | (weight == math.inf)  # also NaN
    row = int(wrong.nonzero()[0]) if bool(wrong.any()) else 0
    raise UserError(
        f"count gives row {int(ids[row, 1])} the weight {weight[row].item():g} in {term!r}; a weight is a number from "
        "0 up, such as how many tokens of the row have a loss"
    )


class Steps(Dataset):
    """A dataset whose items are steps, so that torch's own loader workers can prefetch them."""

    def __init__(
        self,
        rows: Rows,
        order: Order,
        world: World,
        micro_rows: int,
        count: RowWeights | None,
        collate: Collate | None = None,
        row_seed: int | None = None,
    ) -> None:
        """With a `row_seed` the global generators are seeded for each row, by it, the epoch and the index."""
        self.rows, self.order, self.micro_rows, self.count, self.collate = rows, order, micro_rows, count, collate
        self.row_seed = row_seed
        self._seeding = RowSeeding(row_seed) if row_seed is not None else None
        self.together = 1
        """How many consecutive rows of a global batch are in one micro-batch."""
        self.rank, self.size = world.dp_rank, world.dp_size  # plain numbers: a worker process gets no group
        self.dtype = torch.get_default_dtype()
        self._stream = stream_of(rows)
        self._reader: StreamReader | None = None
        self.place = StreamPlace() if self._stream is not None else None
        """Of a stream: where to begin."""
        self.moved: Callable[[], None] = lambda: None
        """Called while rows of a stream are read again, to show the watchdog that there is progress."""

    def of_first_rows(self) -> "Steps":
        """These steps of rows by index: themselves, or of a stream its first rows, in which its own place stays."""
        steps = copy.copy(self)
        if self._stream is not None:
            first = self._stream.first()
            steps.rows, steps.order, steps._stream = over(self.rows, first), Sequential(len(first), len(first)), None
        return steps

    def __getitem__(self, step: int) -> Share:
        ids = self.order.ids(step)
        rows, position = self._rows_of(step, ids)
        spans = self._spans(ids)
        batches = [self._batch(rows, ids[start:stop], ids) for start, stop in spans]
        return Share(batches, row_weights(self.count, batches, spans), ids, spans, position)

    def _spans(self, ids: np.ndarray) -> list[tuple[int, int]]:
        return micro_batches(len(ids), self.rank, self.size, self.micro_rows, self.together)

    def _rows_of(self, step: int, ids: np.ndarray) -> tuple[Rows, dict[str, Json] | None]:
        """What the rows of a step are read from, and for a stream where that begins."""
        if self._stream is not None:
            if self._reader is None:
                self._reader = StreamReader(self._stream.source, self.order, self._share_of, self.moved)
            found, begins = self._reader.read(step, int(ids[0, 0]), self.place.begin if self.place else None)
            return over(self.rows, self._stream.given(found)), begins.to_json()
        return (self.rows.of_step(step, ids[:, 1]) if hasattr(self.rows, "of_step") else self.rows), None

    def _share_of(self, step: int) -> np.ndarray:
        """The numbers of the rows of a step that this rank reads."""
        ids = self.order.ids(step)
        spans = self._spans(ids)
        mine = ids[spans[0][0] : spans[-1][1]]
        return (mine if all(start < stop for start, stop in spans) else np.concatenate([ids[:1], mine]))[:, 1]

    def _batch(self, rows: Rows, mine: np.ndarray, all_ids: np.ndarray) -> Batch:
        ids = mine if len(mine) else all_ids[:1]  # a real row of weight zero still touches every parameter
        fetched = check_batch(self._fetch(rows, ids), len(ids))
        batch = {key: self._cast(value) for key, value in fetched.items()}
        batch["ids"] = torch.from_numpy(np.ascontiguousarray(ids))
        batch["live"] = torch.full((len(ids),), len(mine) > 0)
        return batch

    def _fetch(self, rows: Rows, ids: np.ndarray) -> Mapping[str, Tensor]:
        make_batch = self.collate or stack_rows
        if self.row_seed is not None:
            return make_batch(read_keyed(rows, ids, self.row_seed, self._seeding))
        if self.collate is None and gives_batches(rows):
            return rows.rows(ids[:, 1])  # type: ignore[attr-defined]
        return make_batch(read_samples(rows, ids[:, 1]))

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value


def loader(steps: Steps, length: int, workers: int, prefetch: int, pin: bool) -> Callable[[int], Share]:
    """A function that loads a step; with `workers` processes, steps are best asked for in order."""
    return _LoadInWorkers(steps, length, workers, prefetch, pin) if workers else _LoadInline(steps, pin)


class _LoadInline:
    """Loads in this process, a step ahead, while the GPU computes. No thread: it would compete with the training loop
    for the interpreter lock and cost more than it hides."""

    def __init__(self, steps: Steps, pin: bool) -> None:
        self._steps, self._pin = steps, pin

    def __call__(self, step: int) -> Share:
        share = self._steps[step]
        return share.pin_memory() if self._pin else share


class _LoadInWorkers:
    """Loads the next steps in DataLoader workers; asked for another step than the next, it restarts them there."""

    def __init__(self, steps: Steps, length: int, workers: int, prefetch: int, pin: bool) -> None:
        self._steps, self._length, self._pin = steps, length, pin
        self._workers, self._prefetch = workers, max(1, prefetch)
        self._next = -1
        self._iterator: Iterator[Share | Exception] = iter(())

    def __call__(self, step: int) -> Share:
        with naming_worker_failures():
            if step != self._next or step == self._length:
                self._iterator = iter(self._open(step))
            self._next = step + 1
            share = next(self._iterator)
        if isinstance(share, Exception):
            self._iterator = iter(())  # ends the processes now; the exception would keep them in a cycle
            raise share
        return share

    def _open(self, step: int) -> DataLoader:
        _require_short_temporary_folder()
        files = self._workers * (PER_WORKER + self._prefetch * PER_BATCH)
        require_open_files(files, f"num_workers={self._workers}", "use fewer data workers")
        free_before_fork()
        return DataLoader(
            _ReturnUserErrors(self._steps),
            batch_size=None,
            # A task may use more steps than planned, such as two batches a step; then the end is unknown.
            sampler=range(step, self._length) if step < self._length else count(step),
            num_workers=self._workers,
            prefetch_factor=self._prefetch,
            pin_memory=self._pin,
            # A generator of its own: torch's default one would advance, and a resumed run opens this at another step.
            generator=torch.Generator().manual_seed(self._steps.rank),
            multiprocessing_context=LoaderContext(),
            worker_init_fn=partial(_end_with_rank, os.getpid()),
        )


def _require_short_temporary_folder() -> None:
    """Refuse a folder in which the sockets of loader processes cannot be made: torch would wait for their data."""
    folder = tempfile.gettempdir()
    if len(os.fsencode(folder)) + _SOCKET_NAME > _SOCKET_PATH:
        raise UserError(
            f"the temporary folder {folder} has too long a name for the sockets of data workers; set TMPDIR to a "
            "shorter one, or num_workers=0"
        )


def free_before_fork() -> None:
    """Collect garbage in this process: a forked one would crash if its collector freed CUDA objects."""
    if torch.cuda.is_initialized():  # it takes a tenth of a second
        gc.collect()


def read_in_worker(dataset: Dataset, item: Any) -> Any:
    """One item of a dataset, read by a loader process that ends afterwards."""
    _require_short_temporary_folder()
    free_before_fork()
    loader = DataLoader(
        _ReturnUserErrors(dataset),
        batch_size=None,
        sampler=[item],
        num_workers=1,
        generator=torch.Generator(),  # its own: torch's default one would advance
        multiprocessing_context=LoaderContext(),
        worker_init_fn=partial(_end_with_rank, os.getpid()),
    )
    with naming_worker_failures():
        found = next(iter(loader))
    if isinstance(found, Exception):
        raise found
    return found


def _end_with_rank(rank_process: int, worker: int) -> None:
    """A loader process ends when its rank does, and ignores stop signals, which the rank handles."""
    kill_with_parent(rank_process)
    print_no_lost_connections()


class _ReturnUserErrors(Dataset):
    """Returns a UserError, or what a loader process lacks, as it is; torch would wrap its message in a traceback."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, item: Any) -> Any:
        try:
            return self._dataset[item]
        except UserError as error:
            return error
        except Exception as error:
            if found := resource_error(error):
                return found
            raise
