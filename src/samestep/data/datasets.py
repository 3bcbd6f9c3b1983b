"""What a feed takes as data: anything with rows by index, and the datasets of Hugging Face as they are.

Data that only comes one row after the other is read as a stream (see streams/stream.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import DataLoader

from samestep.core.errors import UserError
from samestep.data.augmented import Augmented, takes_generator
from samestep.data.collate import Collate, collate_by
from samestep.data.loading import Rows
from samestep.data.streams.source import is_stream
from samestep.data.streams.stream import stream, stream_of

_SAMPLE = 64
"""How many rows of a dataset are compared beside its files, which do not show how it was sliced or shuffled."""
_TABLES = ("arrow", "pandas", "polars")
_REMADE = ("cache-", "tmp")
"""How Hugging Face names the results of `map` and `filter`. Computed again, their bytes may differ although no row
does."""


@dataclass(frozen=True)
class FeedData:
    """The data of a feed, and how its samples become batches."""

    rows: Rows
    collate: Collate | None
    """None: samples are stacked."""
    keyed_random: bool = False
    """Whether the global generators are seeded for each row."""


def open_rows(
    data: Any, collate: Collate | None, pad: Mapping[str, float] | None, keyed_random: bool = False
) -> FeedData:
    """The data of a feed; columns that need a collate are refused without one."""
    rows, collate = as_rows(data), collate_by(collate, pad)
    if pad is not None or collate is None:
        other: list[str] = getattr(rows, "columns_of_no_numbers", list)()
        if other:
            raise UserError(
                f"the dataset has columns that are no numbers: {', '.join(other)}; tokenize them (dataset.map), take "
                "them out (dataset.remove_columns), or give the feed a collate that makes tensors of a list of samples"
            )
    return FeedData(rows, collate, keyed_random or takes_generator(rows))


def as_rows(data: Any) -> Rows:
    """The data as a feed reads it; what cannot be read by index is refused with what to do instead."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(data).__mro__}
    if kinds & {"datasets.dataset_dict.DatasetDict", "datasets.dataset_dict.IterableDatasetDict"}:
        raise UserError(f"choose one split of the dataset, such as data[{next(iter(data), 'train')!r}]")
    if isinstance(data, Augmented) and stream_of(data) is None:
        augmented: Any = data.over(as_rows(data.rows))
        return augmented
    if isinstance(data, DataLoader):
        raise UserError(
            "give the feed the dataset itself (loader.dataset), not a DataLoader; the feed makes the batches, in "
            "num_workers processes, and takes a collate and an order"
        )
    if "datasets.arrow_dataset.Dataset" in kinds:
        return HuggingFaceRows(data)
    if isinstance(data, str | Path):
        raise UserError(f"{data} is a path; give the feed the rows in it, such as samestep.stream({str(data)!r})")
    if not isinstance(data, Mapping) and is_stream(data):
        return stream(data)
    if isinstance(data, Mapping) or not hasattr(data, "__len__") or not hasattr(data, "__getitem__"):
        raise UserError(
            f"data must have len() and rows by index, and a {type(data).__name__} has not; a list of dicts has, and so "
            "has a class with __len__ and __getitem__; samestep.stream reads what comes one row after the other"
        )
    return data


class HuggingFaceRows:
    """A dataset of Hugging Face, whatever its format, read a batch at a time."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if dataset.format["type"] in _TABLES:
            raise UserError(
                f"the dataset gives its rows as {dataset.format['type']} tables; use dataset.with_format('torch')"
            )

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return self.dataset.__getitems__(indices)

    def origins(self) -> Sequence[Path | np.ndarray]:
        """The files that it was loaded from, and some of its rows; nothing if it was computed, or is in memory."""
        from datasets.table import list_table_cache_files

        files = [Path(file) for file in list_table_cache_files(self.dataset.data)]
        if not files or any(file.name.startswith(_REMADE) for file in files):
            return ()
        chosen = np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(int)).tolist()
        rows = self.dataset.with_format("arrow")[chosen].to_pydict()  # as stored: nothing is decoded
        return [*files, np.frombuffer(repr(rows).encode(), dtype=np.uint8)]

    def columns_of_no_numbers(self) -> list[str]:
        """The columns that cannot become tensors, with their types; none if a function makes the rows."""
        if self.dataset.format["type"] == "custom":
            return []
        return [
            f"{name!r} ({getattr(feature, 'dtype', type(feature).__name__)})"
            for name, feature in self.dataset.features.items()
            if name in self.dataset.format["columns"] and not _is_numeric(feature)
        ]


def _is_numeric(feature: Any) -> bool:
    if isinstance(feature, list):
        return _is_numeric(feature[0])
    inner = getattr(feature, "feature", None)
    if inner is not None:  # a list of something
        return _is_numeric(inner)
    return str(getattr(feature, "dtype", "")).startswith(("int", "uint", "float", "bool"))
