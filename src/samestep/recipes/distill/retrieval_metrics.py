"""How good a ranking is, and the ranking by vectors."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from samestep import RunFailed, UserError

CUTOFF = 10
"""How many passages of a ranking nDCG and MRR look at."""
_QUERIES = 256
_PASSAGES = 16384
_LOW = 0xFFFFFFFF


def retrieval_metrics(
    ranked: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, float]], ks: Sequence[int] = (1, 10, 100)
) -> dict[str, float]:
    """Means over all queries of nDCG@10, MRR@10 and Recall@k, as trec_eval computes them.

    `ranked` has the passages found for each query, best first; `relevant` the grade of each passage that is relevant to
    it. A grade of 0 or less is that of a passage that is not relevant. nDCG's gain is the grade itself.
    """
    assert len(ranked) == len(relevant), "one ranking for each query"
    useless = [number for number, grades in enumerate(relevant) if not any(grade > 0 for grade in grades.values())]
    if useless or not relevant:
        named = ", ".join(map(str, useless[:10])) + (", ..." if len(useless) > 10 else "")
        what = f"{len(useless)} of {len(relevant)} have none: number {named}" if useless else "there is no query"
        raise UserError(f"Evaluate on queries that have a relevant passage each; {what}.")
    sums: dict[str, float] = dict.fromkeys((f"ndcg@{CUTOFF}", f"mrr@{CUTOFF}", *(f"recall@{k}" for k in ks)), 0.0)
    for found, grades in zip(ranked, relevant):
        assert len(set(found)) == len(found), "a passage is ranked once"
        gains = [max(grades.get(passage, 0.0), 0.0) for passage in found]
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        sums[f"ndcg@{CUTOFF}"] += _discounted(gains) / _discounted(ideal)
        sums[f"mrr@{CUTOFF}"] += next((1 / place for place, gain in enumerate(gains[:CUTOFF], 1) if gain > 0), 0.0)
        for k in ks:
            sums[f"recall@{k}"] += sum(gain > 0 for gain in gains[:k]) / len(ideal)
    return {name: total / len(relevant) for name, total in sums.items()}


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(place + 1) for place, gain in enumerate(gains[:CUTOFF], start=1))


def rank_by_vectors(queries: Tensor, passages: Tensor, top: int) -> list[list[int]]:
    """For each query the numbers of the passages with the largest inner products, largest first; ties by number.

    Products are computed in float64 and compared in float32, so that neither the device nor the size of a block
    decides which of two equal passages comes first. Passages may be on another device than the queries.
    """
    for name, vectors in (("queries", queries), ("passages", passages)):
        if not bool(vectors.isfinite().all()):
            raise RunFailed(f"The vectors of the {name} are not finite, so nothing can be ranked by them.")
    device = queries.device if queries.device.type in ("cpu", "cuda") else torch.device("cpu")
    return [
        numbers
        for block in queries.split(_QUERIES)
        for numbers in _best(block.to(device, torch.float64), passages, top).tolist()
    ]


def _best(queries: Tensor, passages: Tensor, top: int) -> Tensor:
    best = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(passages), _PASSAGES):
        block = passages[start : start + _PASSAGES].to(queries.device, torch.float64)
        keys = torch.cat([best, _sortable((queries @ block.T).float(), start)], dim=1)
        best = keys.topk(min(top, keys.shape[1]), dim=1).values
    return _LOW - (best & _LOW)


def _sortable(scores: Tensor, start: int) -> Tensor:
    """Integers in the order of (score, then lower number): no two are equal, so the order has no choice."""
    bits = (scores + 0.0).view(torch.int32).long()  # + 0.0: zero has one sign
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    numbers = torch.arange(start, start + scores.shape[1], device=scores.device)
    return (ordered << 32) | (_LOW - numbers)
