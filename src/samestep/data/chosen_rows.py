"""Reads a few rows of the data at the start of a launch: their digest, and whether they are random.

Rows that are no function of their index would depend on the number of ranks and of loader processes, and differ after a
resume. Each row is read once anyway, for its digest; only some are read again.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.collate import Collate
from samestep.data.loading import Rows, gives_batches, read_in_worker, read_keyed
from samestep.data.permutation import permute
from samestep.data.random_state import random_state_kept
from samestep.data.row_digest import DigestBuilder, RowDigest, digest_of
from samestep.data.row_randomness import RandomnessWatch, WatchedGenerator
from samestep.data.streams.stream import over, stream_of

ROWS = 64
"""How many rows are compared, if rows do not come from files."""
_BATCH = 8
SECONDS = 0.1
"""How long rows may be read for no other purpose than to find out whether they are random; a batch is read anyway."""
CHOICE = noise.purpose("data.fingerprint")
_WHY = "so it would depend on the number of ranks and of num_workers, and change after a resume"
_KEYED = "give the feed keyed_random=True, which seeds the global generators for each row by its epoch and index"


class RandomRows(UserError):
    """Rows are no function of their index. The message goes on after the name of the data."""


@dataclass(frozen=True)
class ReadOptions:
    """How data is read at the start of a launch."""

    seed: int
    """The run's seed; it chooses the rows."""
    in_worker: bool = False
    """Whether rows are read by a loader process, as they will be in training: what a dataset opens when it is first
    read must not be open when loader processes are forked."""
    moved: Callable[[], None] = lambda: None
    """Called regularly while a long file, or many rows, are read, to show the watchdog that there is progress."""
    keyed_random: bool = False
    """Whether the global generators are seeded for each row."""
    collate: Collate | None = None
    """What makes a batch of samples, if the recipe says so."""


def chosen_rows(size: int, seed: int) -> np.ndarray:
    """The rows to compare, in ascending order: all rows of small data, else as many as `ROWS`, chosen by the seed."""
    return np.sort(permute(np.arange(min(size, ROWS)), 0, size, seed, CHOICE))


def digest_rows(rows: Rows, options: ReadOptions) -> RowDigest:
    """The digest of the chosen rows; refuses random ones. The process's random state is left unchanged."""
    return _read(rows, options, is_digest_wanted=True)


def refuse_random_rows(rows: Rows, options: ReadOptions) -> None:
    """The same without a digest, so fewer rows are read where reading takes long."""
    _read(rows, options, is_digest_wanted=False)


def _read(rows: Rows, options: ReadOptions, is_digest_wanted: bool) -> Any:
    dataset = _ChosenRows(rows, options)
    if options.in_worker:
        return read_in_worker(dataset, is_digest_wanted)
    with random_state_kept():
        return dataset[is_digest_wanted]


class _ChosenRows(Dataset):
    """The digest of the chosen rows, as a dataset, so that a loader process can compute it."""

    def __init__(self, rows: Rows, options: ReadOptions) -> None:
        whole = stream_of(rows)
        self._rows: Rows = rows if whole is None else over(rows, whole.first())
        self._options = options
        self._reads_batches = options.collate is None and not options.keyed_random and gives_batches(self._rows)

    def __getitem__(self, is_digest_wanted: bool) -> RowDigest:
        batches = list(self._batches())
        if not batches:
            return digest_of(())
        at_first = RandomnessWatch(self._rows)
        try:
            self._samples(batches[0][:1])  # the first read may open files or make generators, and that only once
            watch = RandomnessWatch(self._rows, own_only=self._options.keyed_random)
            digest, found = self._read_once(batches, watch, is_digest_wanted)
            self._read_again(batches, found)
            self._try_collate(batches[0])
        finally:
            at_first.restore()
        return digest

    def _batches(self) -> Iterator[np.ndarray]:
        indices = chosen_rows(len(self._rows), self._options.seed)
        yield from (indices[start : start + _BATCH] for start in range(0, len(indices), _BATCH))

    def _samples(self, indices: np.ndarray) -> list[Any]:
        """The rows, or one batch of them."""
        self._options.moved()
        if self._reads_batches:
            return [self._rows.rows(indices)]  # type: ignore[attr-defined]
        if self._options.keyed_random:
            ids = np.stack((np.zeros_like(indices), indices), 1)
            return read_keyed(self._rows, ids, self._options.seed)
        return [self._rows[int(index)] for index in indices]

    def _read_once(
        self, batches: list[np.ndarray], watch: RandomnessWatch, is_digest_wanted: bool
    ) -> tuple[RowDigest, list[RowDigest]]:
        """The digest of all batches, and of each; without the former, of as many as there is time for."""
        builder, found, began = DigestBuilder(), list[RowDigest](), time.monotonic()
        for batch in batches:
            if found and not is_digest_wanted and time.monotonic() - began > SECONDS:
                break
            samples, generator = watch.read(lambda: self._samples(batch))  # noqa: B023 (called at once)
            if generator is not None:
                raise RandomRows(_drawn_sentence(generator, self._options.keyed_random))
            for sample in samples:
                builder.add(sample)
            found.append(digest_of(samples))
        return builder.digest(), found

    def _read_again(self, batches: list[np.ndarray], found: list[RowDigest]) -> None:
        """Refuse what differs, reading on for as long as there is time."""
        began = time.monotonic()
        for batch, before in zip(batches, found):
            if not before.same_as(digest_of(self._samples(batch))):
                raise RandomRows(
                    f"differs each time it is read, {_WHY}; make each row a function of its index, without a clock or "
                    f"a generator that nobody seeds, or draw from the global generators and {_KEYED}"
                )
            if time.monotonic() - began > SECONDS:
                break

    def _try_collate(self, batch: np.ndarray) -> None:
        """Refuse a collate that draws: its numbers would depend on how the rows are cut into micro-batches."""
        collate = self._options.collate
        if collate is None:
            return
        watch = RandomnessWatch(collate)
        samples = self._samples(batch)
        one, generator = watch.read(lambda: digest_of([collate(samples)]))
        other = digest_of([collate(self._samples(batch))])
        watch.restore()
        if generator is None and one.same_as(other):
            return
        how = f"draws from {generator.name}" if generator is not None else "gives another batch for the same samples"
        raise RandomRows(
            f"is made random by its collate, which {how}, {_WHY}; draw in the loss from samestep.noise keyed by "
            f'batch["ids"], or in the dataset and {_KEYED}'
        )


def _drawn_sentence(generator: WatchedGenerator, is_keyed: bool) -> str:
    drawn = f"is random: reading a row draws from {generator.name}, {_WHY}"
    if generator.is_global:
        return f"{drawn}; {_KEYED}"
    also = "" if is_keyed else f", or draw from the global generators and {_KEYED}"
    return f"{drawn}; make a generator for each row, such as np.random.default_rng(index){also}"
