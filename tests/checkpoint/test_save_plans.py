"""Plans of DCP survive being JSON, and those of several ranks give each tensor to one."""

import json

import torch
from hypothesis import given
from hypothesis import strategies as some
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from samestep.checkpoint.save_plans import (
    part_from_json,
    part_to_json,
    plan_from_json,
    plan_to_json,
    results_from_json,
    results_to_json,
)

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
sizes = some.lists(some.integers(0, 2**40), max_size=4).map(torch.Size)
indices = some.builds(MetadataIndex, some.text(), some.none() | sizes, some.none() | some.integers(0, 2**31))
properties = some.builds(
    TensorProperties, dtype=some.sampled_from(DTYPES), requires_grad=some.booleans(), pin_memory=some.booleans()
)
tensors = some.builds(TensorWriteData, some.builds(ChunkStorageMetadata, sizes, sizes), properties, sizes)
kinds = some.sampled_from([WriteItemType.TENSOR, WriteItemType.SHARD])
items = some.builds(WriteItem, indices, kinds, tensor_data=tensors)
results = some.builds(
    WriteResult,
    indices,
    some.integers(0, 2**50),
    some.builds(_StorageInfo, some.text(), some.integers(0), some.integers(0)),
)


@given(some.lists(items, max_size=5))
def test_a_plan_is_the_same_after_being_json(found: list[WriteItem]) -> None:
    plan = SavePlan(found)
    again = plan_from_json(json.loads(json.dumps(plan_to_json(plan))))
    assert again == plan
    assert [item.index.index for item in again.items] == [item.index.index for item in found], "hints count too"


@given(some.lists(results, max_size=5))
def test_results_are_the_same_after_being_json(found: list[WriteResult]) -> None:
    again = results_from_json(json.loads(json.dumps(results_to_json(found))))
    assert again == found
    assert [result.index.index for result in again] == [result.index.index for result in found]


def shard(name: str, rows: tuple[int, int], size: int = 6) -> WriteItem:
    start, stop = rows
    chunk = ChunkStorageMetadata(torch.Size([start]), torch.Size([stop - start]))
    data = TensorWriteData(chunk, TensorProperties(dtype=torch.float32), torch.Size([size]))
    return WriteItem(MetadataIndex(name, torch.Size([start])), WriteItemType.SHARD, tensor_data=data)


def test_each_rank_gets_its_part_of_the_plan_that_dcp_makes() -> None:
    """What two ranks have, one writes; the others' places among the chunks are those of DCP."""
    plans = [
        SavePlan([shard("a", (0, 2)), shard("both", (0, 6))]),
        SavePlan([shard("both", (0, 6)), shard("a", (2, 4))]),
        SavePlan([shard("a", (4, 6))]),
    ]
    made, _ = DefaultSavePlanner(flatten_state_dict=False).create_global_plan(plans)
    parts = [json.loads(json.dumps(part_to_json(plan, part))) for plan, part in zip(plans, made)]
    found = [part_from_json(plan, part) for plan, part in zip(plans, parts)]
    assert found == made
    places = [[(item.index.fqn, item.index.index) for item in part.items] for part in found]
    assert places == [[(item.index.fqn, item.index.index) for item in part.items] for part in made]
    names = [name for part in places for name, _ in part]
    assert sorted(names) == ["a", "a", "a", "both"]
