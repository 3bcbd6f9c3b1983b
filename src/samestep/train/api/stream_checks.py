"""What must be known of a stream before the first step: that it can be replayed, alike on all ranks, and its length."""

from typing import Any

from samestep.core.errors import UserError
from samestep.data.chosen_rows import ReadOptions
from samestep.data.loading import Rows, read_in_worker
from samestep.data.row_digest import RowDigest
from samestep.data.streams.probe import RandomStream, StreamCount, StreamProbe
from samestep.data.streams.stream import stream_of
from samestep.world.world import World


def training_rows(rows: Rows, max_steps: int | None) -> int:
    """The rows of an epoch; refuses a stream of which nobody has said how long it is, or how long training is."""
    stream = stream_of(rows)
    if stream is not None and stream.source.rows is None and max_steps is None:
        raise UserError(
            "nobody has told how many rows the stream has, so how long training is; set max_steps, or give the feed "
            "samestep.stream(data, rows=...) with the rows of an epoch"
        )
    return len(rows)


def count_stream(rows: Rows, world: World, in_worker: bool) -> None:
    """Count the rows of a stream to validate on, if nobody has told them: rank 0 reads it once. Collective."""
    stream = stream_of(rows)
    if stream is None or stream.source.rows is not None:
        return
    count = StreamCount(stream.source, world.activity.made_progress)
    with world.activity.doing("data"):
        found = world.run_on_all_ranks(
            "counting the rows of the validation data", lambda: _read(count, in_worker) if world.is_main else None
        )
    stream.source.rows = found[0]


def check_stream(rows: Rows, name: str, world: World, reading: ReadOptions) -> None:
    """Refuse a stream that cannot be replayed, or that differs between ranks; each reads a few rows. Collective.

    Then it is known whether a resume may use the stream's own state.
    """
    stream = stream_of(rows)
    if stream is None:
        return
    probe = StreamProbe(stream.source)

    def look() -> Any:
        try:
            return _read(probe, reading.in_worker)
        except RandomStream as random:
            raise UserError(f"{name} {random}") from None

    with world.activity.doing("data"):
        found = world.run_on_all_ranks(f"reading {name}", look)
    digests = [RowDigest(**each["digest"]) for each in found]
    other = next((rank for rank, digest in enumerate(digests) if not digest.same_as(digests[0])), None)
    if other is not None:
        raise UserError(
            f"{name} differs between ranks: rank {other} reads other rows than rank 0; give every rank the whole "
            "stream, not split by rank or node, since the feed divides the rows of every step among the ranks"
        )
    stream.source.uses_state = all(each["uses_state"] for each in found)


def _read(dataset: StreamProbe | StreamCount, in_worker: bool) -> Any:
    """In a process of its own where rows are read by workers: what a stream opens must not be open here."""
    return read_in_worker(dataset, 0) if in_worker else dataset[0]
