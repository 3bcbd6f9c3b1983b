"""A hash of the content of tensors that is the same at any world size, on any device, sharded or not.

Frozen weights are in no checkpoint: a run records their hash and compares it at every resume. Of each tensor the raw
bits are added up as integers, each times a fixed odd number for its position, modulo 2^64. Such a sum is computed on
the device at the speed of its memory, and in parts: a rank reads only its own shard, and one small all-gather adds the
parts up. The hash is SHA-256 over names, types, shapes and sums. It tells weights apart; it is no protection against
forgery.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from samestep.data import noise

CHUNK = 1 << 20
"""Integers of a tensor that are multiplied at a time: the product of all of a large tensor needs too much memory."""
_FACTORS = noise.purpose("fingerprint")
_INTEGER = {1: torch.int8, 2: torch.int16}  # by the size of an element; larger ones are read as several int32


def content_hash(tensors: Mapping[str, Tensor]) -> str:
    """The hash of named tensors. Collective where a tensor is sharded."""
    names = sorted(tensors)
    sums = _sums([tensors[name].detach() for name in names])
    content = [[name, str(tensors[name].dtype), list(tensors[name].shape), value] for name, value in zip(names, sums)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _sums(tensors: list[Tensor]) -> list[int]:
    if not tensors:
        return []
    longest = max(tensor.numel() * _integers_per_element(tensor) for tensor in tensors)
    factors = position_factors(longest, tensors[0].device)
    sums = torch.stack([_sum(tensor, factors) for tensor in tensors])
    sharded = torch.tensor([isinstance(tensor, DTensor) for tensor in tensors], device=sums.device)
    mesh = next((tensor.device_mesh for tensor in tensors if isinstance(tensor, DTensor)), None)
    if mesh is not None:
        parts = [torch.empty_like(sums) for _ in range(mesh.size())]
        dist.all_gather(parts, sums, group=mesh.get_group())
        sums = torch.where(sharded, torch.stack(parts).sum(0), sums)
    found: list[int] = sums.tolist()
    return found


def _sum(tensor: Tensor, factors: Tensor) -> Tensor:
    """The part of a tensor's sum that this rank's shard gives, or the sum if it is not sharded."""
    total, position = torch.zeros((), dtype=torch.int64, device=factors.device), 0
    if isinstance(tensor, DTensor):
        (chunk,) = tensor.__create_chunk_list__()
        assert not any(chunk.offsets[1:]), "a shard is some of the rows"
        position = chunk.offsets[0] * prod(tensor.shape[1:]) * _integers_per_element(tensor) if chunk.offsets else 0
        tensor = tensor.to_local()
    values = integers(tensor) if tensor.numel() else torch.zeros(0, dtype=torch.int8)
    while len(values):
        number, first = divmod(position, CHUNK)
        part, values = values[: CHUNK - first], values[CHUNK - first :]
        total = total + weighted_sum(part, factors[first:]) * factors[number % len(factors)]
        position += len(part)
    return total


def _integers_per_element(tensor: Tensor) -> int:
    return max(1, tensor.element_size() // 4)


def fingerprint_factors(tensors: Sequence[Tensor]) -> Tensor:
    """A fixed odd number of 64 bits for each position in a chunk, on the device, as many as these tensors need."""
    return position_factors(max(len(tensors), *(len(integers(tensor)) for tensor in tensors)), tensors[0].device)


def position_factors(length: int, device: torch.device) -> Tensor:
    """A fixed odd number of 64 bits for each of `length` positions, but for no more than a chunk has."""
    positions = torch.arange(min(length, CHUNK), device=device)
    high, low = noise.words(_FACTORS, positions)
    return ((high - (1 << 31)) << 32) + (low | 1)


def fingerprint(tensor: Tensor, factors: Tensor) -> Tensor:
    """An integer that depends on every bit of a tensor and its position, equal on every rank; nothing waits for it.

    Sums wrap around at 64 bits, so their order does not matter. A change of one element is never missed, because an odd
    factor maps no two numbers to the same one; changes of several cancel out only by a chance of one in billions.
    """
    chunks = [weighted_sum(chunk, factors) for chunk in integers(tensor).split(CHUNK)]
    return chunks[0] if len(chunks) == 1 else weighted_sum(torch.stack(chunks), factors)


def weighted_sum(integers: Tensor, factors: Tensor) -> Tensor:
    """The sum of integers, each times the factor of its position."""
    return (integers * factors[: len(integers)]).sum()


def integers(tensor: Tensor) -> Tensor:
    """The raw bits as integers."""
    return tensor.detach().reshape(-1).view(_INTEGER.get(tensor.element_size(), torch.int32))
