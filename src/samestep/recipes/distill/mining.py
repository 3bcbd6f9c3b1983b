"""Hard negatives: for each record the passages that the teacher scores highest and that do not answer the query."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from samestep import Batch, Bench, Dump, UserError
from samestep.recipes.distill.config import DistillConfig, MiningConfig
from samestep.recipes.distill.data import DistillData, Origin, load_data
from samestep.recipes.distill.models import open_models
from samestep.recipes.distill.retrieval_metrics import rank_by_vectors
from samestep.recipes.distill.teacher import CachedVectors, read_cache

STAGE = "mine"
ARTIFACT = FIELD = "negatives"
_DEPTH = 100
"""How many more passages are looked at than are wanted, since some are left out."""


class _RecordVectors:
    """The teacher's vectors of each record's query and positive."""

    def __init__(self, data: DistillData, vectors: CachedVectors) -> None:
        self._data, self._vectors = data, vectors

    def __len__(self) -> int:
        return len(self._data.table.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self._data.table.rows[index]
        query, positive = self._vectors.of([row.query, self._data.first_passage + row.positive])
        return {"record": torch.tensor(index), "query": query, "positive": positive}

    def origins(self) -> list[Origin]:
        """Where the texts come from."""
        return [*self._data.origins, *self._vectors.origins()]


def build_mining(bench: Bench) -> Dump:
    """The stage that finds them, with all ranks."""
    config: DistillConfig = bench.config
    data = load_data(config)
    vectors = read_cache(bench, data, open_models(config, data, bench.world))
    first = data.first_passage
    passages = vectors.as_stored(range(first, first + len(data.table.passages))).to(bench.world.device)
    answers: dict[int, set[int]] = defaultdict(set)
    for row in data.table.rows:
        answers[row.query].add(row.positive)
    wanted = config.mining.negatives

    def compute(batch: Batch) -> dict[str, Tensor]:
        queries = [data.table.rows[record].query for record in batch["record"].tolist()]
        found = hard_negatives(
            config.mining, batch["query"], batch["positive"], passages, [answers[query] for query in queries]
        )
        return {FIELD: torch.tensor([[*numbers, *[-1] * (wanted - len(numbers))] for numbers in found])}

    artifact = bench.array_artifact(ARTIFACT, len(data.table.rows), {FIELD: ((wanted,), "int64")})
    return Dump(bench.evaluation_feed(_RecordVectors(data, vectors)), compute, artifact)


def hard_negatives(
    mining: MiningConfig, queries: Tensor, positives: Tensor, passages: Tensor, answers: Sequence[set[int]]
) -> list[list[int]]:
    """For each query the numbers of its negatives, closest first; fewer where the closest passages have no more.
    `answers` are passages that are known to answer a query."""
    most = max(map(len, answers))
    ranked = rank_by_vectors(queries, passages, mining.skip + mining.negatives + most + _DEPTH)
    scores_of_positives = (queries.double() * positives.double()).sum(1)
    limits = scores_of_positives - (1 - mining.highest) * scores_of_positives.abs()
    found = []
    for query, numbers, limit, known in zip(queries, ranked, limits, answers):
        scores = (passages[numbers].to(query.device, torch.float64) @ query.double()).tolist()
        fitting = [n for n, score in zip(numbers, scores) if n not in known and score < limit]
        found.append(fitting[mining.skip : mining.skip + mining.negatives])
    return found


def read_mined(bench: Bench) -> list[list[int]]:
    """The negatives of each row of the table."""
    rows = bench.read_array_artifact(ARTIFACT, stage=STAGE)
    found = rows.rows(np.arange(len(rows)))[FIELD].tolist()
    if not any(number >= 0 for numbers in found for number in numbers):
        raise UserError("Set mining.highest higher: the teacher scores no passage low enough to be a negative.")
    return [[number for number in numbers if number >= 0] for numbers in found]
