"""`samestep.stream`: data that comes one row after the other, as a feed takes it.

Shards with an index have rows by number (see shards.py). All else can only be read in order, and is read by every rank
as a whole, which keeps its own rows of each step (see reading.py).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from samestep.core.arguments import check_function
from samestep.core.errors import UserError
from samestep.data.augmented import Augmented
from samestep.data.order import Order
from samestep.data.streams.shards import ShardRows, open_shards
from samestep.data.streams.source import ENDLESS, Passes, Source, is_stream
from samestep.data.windowed import WindowedOrder

BUFFER = 1000
"""Rows of a window, unless the user says."""
FIRST = 16
"""How many rows are compared at a launch."""


def stream(
    source: Any, *, buffer: int = BUFFER, rows: int | None = None, decode: Callable[[Any], Any] | None = None
) -> "Stream | ShardRows":
    """Rows that come one after the other, for a feed.

    `source` is the path of .tar or .jsonl files (a list, or with `*`), an iterable, a streaming dataset of Hugging
    Face, or a function that returns an iterator. Rows are shuffled in windows of `buffer` rows; 1: not at all. `rows`
    is how many an epoch has, where the source does not tell; without it, `max_steps` says how long training is.
    `decode` makes a sample of a row, such as tensors of the bytes of a file, and is called only for the rows that a
    rank trains on.
    """
    if decode is not None:
        check_function("the decode of a stream", decode, ["row"])
    if buffer < 1:
        raise UserError(f"buffer={buffer} shuffles nothing; give a stream windows of at least 1 row, which keeps order")
    if isinstance(source, str | Path) or _are_paths(source):
        if rows is not None:
            raise UserError("shards have an index, which says how many rows they have; leave out rows")
        return open_shards([source] if isinstance(source, str | Path) else source, buffer, decode)
    if hasattr(source, "__getitem__") and not is_stream(source):
        raise UserError(
            f"a {type(source).__name__} has rows by index, which is better than a stream; give it to the feed as it is"
        )
    return Stream(Source(source, rows), buffer, decode)


def _are_paths(source: Any) -> bool:
    return isinstance(source, list | tuple) and all(isinstance(each, str | Path) for each in source)


class Stream:
    """What `stream` makes of data without an index. It has no rows by number, but gives those of a step."""

    def __init__(self, source: Source, buffer: int, decode: Callable[[Any], Any] | None) -> None:
        self.source, self.buffer, self.decode = source, buffer, decode

    def __len__(self) -> int:
        """The rows of an epoch; `ENDLESS` where nobody has told."""
        return self.source.rows or ENDLESS

    def __getitem__(self, index: int) -> Any:
        raise TypeError("a stream has no rows by index; give it to bench.feed, which reads it in order")

    def own_order(self, batch: int, seed: int) -> Order:
        """Shuffled in windows."""
        return WindowedOrder([len(self)], batch, seed, self.buffer)

    def given(self, found: dict[int, Any]) -> "GivenRows":
        """These of its rows, by number."""
        return GivenRows(found, self.decode)

    def first(self) -> "FirstRows":
        """Its first rows."""
        return FirstRows(self)


class GivenRows:
    """Rows of a stream that were read, by number."""

    def __init__(self, found: dict[int, Any], decode: Callable[[Any], Any] | None) -> None:
        self._found, self._decode = found, decode

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: int) -> Any:
        row = self._found[index]
        return row if self._decode is None else self._decode(row)


class FirstRows:
    """The first rows of a stream, read when one is asked for."""

    def __init__(self, whole: Stream) -> None:
        self._whole = whole
        self._rows: GivenRows | None = None

    def __len__(self) -> int:
        return min(FIRST, len(self._whole))

    def __getitem__(self, index: int) -> Any:
        if self._rows is None:
            self._rows = self._whole.given(dict(enumerate(first_rows(self._whole.source, len(self)))))
        return self._rows[index]


def first_rows(source: Source, count: int = FIRST) -> list[Any]:
    """The first rows of a stream, which begins again where it has fewer."""
    passes = Passes(source)
    return [next(passes) for _ in range(count)]


def stream_of(rows: Any) -> Stream | None:
    """The stream that rows are read from, if there is one: itself, or below a function that augments its rows."""
    while isinstance(rows, Augmented):
        rows = rows.rows
    return rows if isinstance(rows, Stream) else None


def over(rows: Any, given: Any) -> Any:
    """Rows of a stream with what lies above it, such as a function that augments them."""
    return rows.over(over(rows.rows, given)) if isinstance(rows, Augmented) else given
