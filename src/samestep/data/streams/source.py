"""What can only be read in order: an iterable dataset, a function that returns an iterator, streaming of Hugging Face.

It is read in passes, one after the other. A row is known by its place in the sequence of all passes, which is the same
in every process: nothing is divided by rank or by loader process before it is read.
"""

import copy
import inspect
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, NoReturn

from torch.utils.data import IterableDataset
from torch.utils.data._utils import worker as torch_worker

from samestep.core.arguments import described
from samestep.core.errors import UserError
from samestep.core.json_files import Json

ENDLESS = 1 << 40
"""The rows of an epoch of a stream whose length nobody has told: more than are ever read, so it is one epoch, in which
the stream begins again as often as it ends."""
_END = object()


@dataclass(frozen=True)
class Position:
    """A place in the sequence of all passes, and how to get there."""

    at: int
    """Rows before it, over all passes."""
    turn: int = 0
    """The pass, from 0."""
    row: int = 0
    """Rows of this pass before it."""
    state: Json = None
    """The source's own state there, if it has one."""
    length: int = 0
    """The rows of a pass, once one has ended; 0 before."""
    first: Json = None
    """The digest of the row there."""

    def to_json(self) -> dict[str, Json]:
        """For the checkpoint."""
        return asdict(self)


def is_stream(data: Any) -> bool:
    """Whether data is given to be read in order."""
    has_rows = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return isinstance(data, IterableDataset) or (not has_rows and (callable(data) or hasattr(data, "__iter__")))


class Source:
    """What a stream is read from."""

    def __init__(self, data: Any, rows: int | None) -> None:
        """`rows`: of a pass, as the user says."""
        _refuse(data)
        self.data, self.uses_state = data, False
        self.rows = _length(data) if rows is None else rows
        if self.rows is not None and not 1 <= self.rows < ENDLESS:
            raise UserError(f"a stream has at least 1 row, but rows={self.rows}")
        has_both = hasattr(data, "state_dict") and hasattr(data, "load_state_dict")
        self.has_state = has_both and not _has_shuffle_buffer(data)

    def open(self, turn: int, state: Json = None) -> tuple[Any, Iterator[Any]]:
        """What is read from in this pass, and its rows, from the beginning or from where it had this state."""
        data = copy.deepcopy(self.data) if self.has_state else self.data  # what is loaded would stay in it
        if callable(getattr(data, "set_epoch", None)):
            data.set_epoch(turn)
        if state is not None:
            data.load_state_dict(copy.deepcopy(state))
        with whole_stream():
            return data, iter(data() if _is_function(data) else data)


@contextmanager
def whole_stream() -> Iterator[None]:
    """Inside, a loader process looks like any other: a dataset that divides itself among them gives all its rows."""
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info


class Passes:
    """The rows of a source, pass after pass, from any place on."""

    def __init__(self, source: Source, moved: Callable[[], None] = lambda: None) -> None:
        """`moved` is called for each row that is read only to come to a place."""
        self.source, self._moved = source, moved
        self._at = self._turn = self._row = self._length = 0  # as in Position
        self._rows: Iterator[Any] | None = None
        self._data: Any = None
        self.skipped = 0
        """Rows that were read only to come to a place."""

    def position(self) -> Position:
        """Where the next row is."""
        self._to_next_pass()
        uses_state = self.source.uses_state and self._row
        state = json.loads(json.dumps(self._data.state_dict())) if uses_state else None
        return Position(self._at, self._turn, self._row, state, self._length)

    def seek(self, at: int, known: list[Position]) -> None:
        """Go to a place by the shortest way: from here, from a known position, or from the start of its pass."""
        ways = [self._start_of_pass(at), *(position for position in known if position.at <= at)]
        nearest = max(ways, key=lambda position: (position.at, position.state is not None))
        if self._rows is None or not nearest.at <= self._at <= at:
            self._open(nearest if self.source.uses_state else replace(nearest, state=None))
        self._skip_to(at)

    def __next__(self) -> Any:
        """The next row, of whichever pass."""
        self._to_next_pass()
        if self._rows is None:
            self._open(Position(self._at, self._turn, 0, None, self._length))
        row = self._read()
        if row is _END:
            self._end_pass()
            return next(self)
        self._at += 1
        self._row += 1
        if self._row == self._wanted and self._read() is not _END:
            self._refuse_length(f"has more than {self._wanted:,} rows")
        return row

    @property
    def _wanted(self) -> int:
        """The rows of a pass, as they were said to be or were found; 0: not known yet."""
        return self.source.rows or self._length

    def _read(self) -> Any:
        assert self._rows is not None, "open the pass first"
        if torch_worker._worker_info is None:
            return next(self._rows, _END)
        with whole_stream():
            return next(self._rows, _END)

    def _open(self, position: Position) -> None:
        self._data, self._rows = self.source.open(position.turn, position.state)
        done = 0 if position.state is not None else position.row
        self._at, self._turn, self._row = position.at - done, position.turn, position.row - done
        self._length = position.length or self._length
        self._skip_to(position.at)
        if self._turn != position.turn:
            self._refuse_length(f"has fewer than the {position.row:,} rows that were read of it before")

    def _skip_to(self, at: int) -> None:
        while self._at < at:
            next(self)
            self.skipped += 1
            self._moved()

    def _start_of_pass(self, at: int) -> Position:
        """The start of the pass of a place, if the rows of a pass are known; else that of the first one."""
        return Position(at - at % self._wanted, at // self._wanted) if self._wanted else Position(0)

    def _to_next_pass(self) -> None:
        if self._row and self._row == self._wanted:
            self._rows = None
            self._turn, self._row = self._turn + 1, 0

    def _end_pass(self) -> None:
        """The source has no more rows: the first pass of a length that nobody told, or too short a one."""
        if not self._row:
            raise UserError("the stream has no rows; look at its files and filters")
        if self._wanted:
            self._refuse_length(f"ended after {self._row:,} rows")
        self._length = self._row
        self._to_next_pass()

    def _refuse_length(self, found: str) -> NoReturn:
        said = f"samestep.stream was given rows={self.source.rows}" if self.source.rows else "another pass had others"
        raise UserError(
            f"the stream {found} in pass {self._turn + 1}, but {said}; give the number of its rows, the same in every "
            "pass, or, where it has no end, leave rows out and set max_steps"
        )


def _refuse(data: Any) -> None:
    """Refuse what cannot be read again from its beginning, or as a whole."""
    if isinstance(data, Iterator) or inspect.isgenerator(data):
        raise UserError(
            f"a {type(data).__name__} can be read only once, and a resumed run reads a stream from its beginning; give "
            "samestep.stream the function that makes it, or an object whose __iter__ begins anew"
        )
    if getattr(data, "_distributed", None) is not None:
        raise UserError(
            "the stream was divided by split_dataset_by_node; give the whole of it, since the feed divides the rows "
            "of every step among the ranks"
        )
    if not hasattr(data, "__iter__") and not callable(data):
        raise UserError(
            f"samestep.stream takes .tar or .jsonl files, an iterable, or a function that returns an iterator, but "
            f"was given {described(data)}"
        )


def _has_shuffle_buffer(data: Any) -> bool:
    """Whether a dataset of Hugging Face shuffles rows itself: those in its buffer are in no state."""
    waiting = [getattr(data, "_ex_iterable", None)]
    while waiting:
        each = waiting.pop()
        if "Shuffle" in type(each).__name__:
            return True
        below = [getattr(each, "ex_iterable", None), *(getattr(each, "ex_iterables", None) or ())]
        waiting += [part for part in below if part is not None]
    return False


def _is_function(data: Any) -> bool:
    return not hasattr(data, "__iter__")


def _length(data: Any) -> int | None:
    """The rows that data says it has; a dataset of torch may have a __len__ that raises TypeError."""
    try:
        return len(data)
    except TypeError:
        return None
