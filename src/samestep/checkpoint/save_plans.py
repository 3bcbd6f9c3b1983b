"""Plans of DCP (torch.distributed.checkpoint) as JSON: what every rank of a save writes, and where it lies then.

DCP itself would send them between ranks as pickles, which run code when they are read.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from samestep.core.json_files import Json


def plan_to_json(plan: SavePlan) -> list[Json]:
    """The tensors and shards of a plan."""
    return [_item_to_json(item) for item in plan.items]


def plan_from_json(items: Sequence[Json]) -> SavePlan:
    """The plan that `plan_to_json` was given."""
    return SavePlan([_item_from_json(*item) for item in items])


def part_to_json(plan: SavePlan, part: SavePlan) -> list[Json]:
    """Which items of its plan a rank writes, each with its place among the chunks of its tensor."""
    places = {item.index: place for place, item in enumerate(plan.items)}
    return [[places[item.index], item.index.index] for item in part.items]


def part_from_json(plan: SavePlan, part: Sequence[Json]) -> SavePlan:
    """What a rank writes of its plan, as `part_to_json` has it."""
    items = [(plan.items[place], hint) for place, hint in part]
    return SavePlan([replace(item, index=replace(item.index, index=hint)) for item, hint in items])


def results_to_json(results: Sequence[WriteResult]) -> list[Json]:
    """Where the tensors and shards of a rank were written."""
    places = [(result, result.storage_data) for result in results]
    assert all(place.transform_descriptors is None for _, place in places), "nothing compresses our tensors"
    return [
        [*_index_to_json(result.index), result.size_in_bytes, place.relative_path, place.offset, place.length]
        for result, place in places
    ]


def results_from_json(results: Sequence[Json]) -> list[WriteResult]:
    """What `results_to_json` was given."""
    return [
        WriteResult(_index_from_json(fqn, offset, hint), size, _StorageInfo(path, start, length))
        for fqn, offset, hint, size, path, start, length in results
    ]


def _item_to_json(item: WriteItem) -> Json:
    data = item.tensor_data
    assert data is not None, "only tensors are saved by DCP"
    kind = data.properties
    assert (kind.layout, kind.memory_format) == (torch.strided, torch.contiguous_format), "as all tensors of DCP"
    return [
        _index_to_json(item.index),
        item.type.name,
        list(data.chunk.offsets),
        list(data.chunk.sizes),
        list(data.size),
        str(kind.dtype).removeprefix("torch."),
        kind.requires_grad,
        kind.pin_memory,
    ]


def _item_from_json(
    index: Json,
    kind: str,
    offsets: list[int],
    sizes: list[int],
    size: list[int],
    dtype: str,
    requires_grad: bool,
    pin_memory: bool,
) -> WriteItem:
    properties = TensorProperties(dtype=getattr(torch, dtype), requires_grad=requires_grad, pin_memory=pin_memory)
    chunk = ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
    data = TensorWriteData(chunk, properties, torch.Size(size))
    return WriteItem(_index_from_json(*index), WriteItemType[kind], tensor_data=data)


def _index_to_json(index: MetadataIndex) -> list[Json]:
    return [index.fqn, None if index.offset is None else list(index.offset), index.index]


def _index_from_json(fqn: str, offset: list[int] | None, hint: int | None) -> MetadataIndex:
    return MetadataIndex(fqn, None if offset is None else torch.Size(offset), hint)
