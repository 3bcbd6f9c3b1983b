"""What the teacher gives: vectors, computed once for all texts in a stage of their own, or live with every batch; and
hard negatives, the passages that it scores highest and that do not answer the query.

What the stages leave has a key: all that it follows from. Whoever uses it compares that first.
"""

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from samestep import ArtifactKey, Batch, Bench, Dump, UserError, World
from samestep.models.wide import wide
from samestep.recipes.distill.config import DistillConfig, MiningConfig
from samestep.recipes.distill.data import DistillData, Origin, Text, digest_of, load_data
from samestep.recipes.distill.lengths import too_long
from samestep.recipes.distill.models import (
    STUDENT,
    TEACHER,
    Models,
    TextRows,
    by_length,
    collate_for,
    models_of,
    vectors_of,
)
from samestep.recipes.distill.retrieval import rank_by_vectors
from samestep.train.artifacts.array_rows import ArrayRows

TEACHER_STAGE, MINING_STAGE = "teacher", "mine"
"""The stages; the first is also the name of the frozen network."""
VECTORS, VECTOR, NEGATIVES = "vectors", "vector", "negatives"
_VECTOR_NAMES = {"teacher_text": "teacher", "teacher_query": "teacher_query", "teacher_passage": "teacher_passages"}
_DEPTH = 100
"""How many more passages are looked at than are wanted, since some are left out."""


class CachedVectors:
    """The teacher's vectors of all texts, by the numbers of these, memory-mapped."""

    def __init__(self, rows: ArrayRows, texts: Sequence[Text]) -> None:
        self._rows = rows
        places = {text: place for place, text in enumerate(cached_texts(texts))}
        self._places = np.array([places[text] for text in texts])

    def of(self, texts: Sequence[int]) -> Tensor:
        """[texts, dim], in float32 at least."""
        return wide(self.as_stored(texts))

    def as_stored(self, texts: Sequence[int]) -> Tensor:
        """The same in the type of the cache, for many at once."""
        return self._rows.rows(self._places[np.asarray(texts, dtype=np.int64)])[VECTOR]

    def origins(self) -> list[Path]:
        return self._rows.origins()


def cached_texts(texts: Sequence[Text]) -> list[Text]:
    """What the teacher reads: each distinct text once, the longest first."""
    distinct = list(dict.fromkeys(texts))
    return [distinct[number] for number in by_length(distinct)]


class LiveTeacher:
    """The teacher itself, asked with every batch."""

    def __init__(self, bench: Bench, models: Models) -> None:
        config: DistillConfig = bench.config
        own = config.teacher.dtype
        dtype = ("float32" if bench.world.device.type == "cpu" else "bfloat16") if own == "auto" else own
        is_sharded = config.distributed.strategy == "fsdp"
        self._network = bench.frozen(models.teacher.network, name=TEACHER_STAGE, shard=is_sharded, dtype=dtype)

    def __call__(self, batch: Batch) -> Batch:
        """The batch with the teacher's vectors in place of the teacher's tokens."""
        parts = [name.removesuffix("_ids") for name in batch if name.startswith(TEACHER) and name.endswith("_ids")]
        found = {_VECTOR_NAMES[part]: self.vectors(batch, part) for part in parts}
        tokens = {f"{part}_{kind}" for part in parts for kind in ("ids", "mask")}
        return {name: value for name, value in batch.items() if name not in tokens} | found

    def vectors(self, batch: Batch, part: str) -> Tensor:
        """Of `teacher_text`, `teacher_query` or `teacher_passage`."""
        with self._network.inference() as network:
            return normalize(vectors_of(network, batch[f"{part}_ids"], batch[f"{part}_mask"]), dim=-1)


def build_cache(bench: Bench) -> Dump:
    """The stage that computes the vectors of all texts, with all ranks; the longest texts first."""
    config: DistillConfig = bench.config
    data = load_data(config)
    models = models_of(bench, data)
    readings = {TEACHER: models.readings[TEACHER]}
    if config.data.too_long == "refuse":  # before the teacher has read them all
        too_long(data, range(data.held_out_texts.start), models.readings[STUDENT], "refuse")
    teacher = LiveTeacher(bench, models)
    distinct = cached_texts(data.texts)
    rows = TextRows(distinct, range(len(distinct)), readings, data.origins)
    fields: dict[str, tuple[Sequence[int], str]] = {VECTOR: ((models.teacher.dim,), config.teacher.cache_dtype)}
    bench.screen.print(f"{len(distinct):,} texts for the teacher, vectors of {models.teacher.dim} numbers")
    return Dump(
        bench.evaluation_feed(rows, collate=collate_for(readings, bench.world.device)),
        lambda batch: {VECTOR: teacher.vectors(batch, "teacher_text")},
        bench.array_artifact(VECTORS, len(distinct), fields, vectors_key(config, data, models, bench.world)),
    )


def vectors_key(config: DistillConfig, data: DistillData, models: Models, world: World) -> ArtifactKey:
    """All that the teacher's vectors follow from. Collective."""
    own, reading = config.teacher, models.readings[TEACHER]
    values = {
        "texts": digest_of(data.texts),
        "query instruction": reading.query_instruction,
        "passage instruction": reading.passage_instruction,
        "length": reading.max_length,
        "attention": own.attention,
        "end token": own.append_eos,
        "types": [own.dtype, own.cache_dtype],
        "drawn network": None if models.teacher.folder else {**asdict(own.shape), "seed": config.seed},
    }
    remedy = "start a new run that computes them, or use teacher.mode=live"
    return ArtifactKey.make(world, "the teacher's vectors", values=values, files=models.teacher.files, otherwise=remedy)


def read_cache(bench: Bench, data: DistillData, models: Models) -> CachedVectors:
    """What the stage left, if it is for these texts and this teacher. Collective."""
    key = vectors_key(bench.config, data, models, bench.world)
    return CachedVectors(bench.read_array_artifact(VECTORS, TEACHER_STAGE, key), data.texts)


def _negatives_key(bench: Bench, data: DistillData, models: Models) -> ArtifactKey:
    """They follow from the vectors, and from which passages answer which queries."""
    key = vectors_key(bench.config, data, models, bench.world)
    records = hashlib.sha256(repr(data.table.rows).encode()).hexdigest()
    values = {**key.values, "records": records, "settings": asdict(bench.config.mining)}
    return replace(key, what="the hard negatives", values=values, otherwise="start a new run that finds them")


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
        return [*self._data.origins, *self._vectors.origins()]


def build_mining(bench: Bench) -> Dump:
    """The stage that finds hard negatives, with all ranks."""
    config: DistillConfig = bench.config
    data = load_data(config)
    models = models_of(bench, data)
    vectors, first = read_cache(bench, data, models), data.first_passage
    passages = vectors.as_stored(range(first, first + len(data.table.passages))).to(bench.world.device)
    answers: dict[int, set[int]] = defaultdict(set)
    for row in data.table.rows:
        answers[row.query].add(row.positive)
    wanted = config.mining.negatives

    def compute(batch: Batch) -> dict[str, Tensor]:
        known = [answers[data.table.rows[record].query] for record in batch["record"].tolist()]
        found = hard_negatives(config.mining, batch["query"], batch["positive"], passages, known)
        return {NEGATIVES: torch.tensor([[*numbers, *[-1] * (wanted - len(numbers))] for numbers in found])}

    fields: dict[str, tuple[Sequence[int], str]] = {NEGATIVES: ((wanted,), "int64")}
    key = _negatives_key(bench, data, models)
    artifact = bench.array_artifact(NEGATIVES, len(data.table.rows), fields, key)
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


def read_mined(bench: Bench, data: DistillData, models: Models) -> list[list[int]]:
    """The negatives of each row of the table, if they were found for these. Collective."""
    rows = bench.read_array_artifact(NEGATIVES, MINING_STAGE, _negatives_key(bench, data, models))
    found = rows.rows(np.arange(len(rows)))[NEGATIVES].tolist()
    if not any(number >= 0 for numbers in found for number in numbers):
        raise UserError("Set mining.highest higher: the teacher scores no passage low enough to be a negative.")
    return [[number for number in numbers if number >= 0] for numbers in found]
