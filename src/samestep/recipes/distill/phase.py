"""What both phases have: the student, the teacher's vectors, and the retrieval set that is kept for validation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Feed, Learner, MicroBatches, Tick, WholeSet
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import TEXTS, DistillData, Origin, load_data, record_texts
from samestep.recipes.distill.models import MODEL, Models, open_models, vectors_of
from samestep.recipes.distill.objective import COSINE, cosine, unit_prefix
from samestep.recipes.distill.retrieval_metrics import rank_by_vectors
from samestep.recipes.distill.retrieval_set import RetrievalSet
from samestep.recipes.distill.rows import STUDENT, Readings, TextRows, by_length, collate_for
from samestep.recipes.distill.teacher import CachedVectors, LiveTeacher, read_cache
from samestep.train.logging.metrics import MetricValues

NDCG = "ndcg@10"
KS = (1, 10, 100)
SHOWN = (NDCG, "recall@10", COSINE)
"""The metrics of a validation that come first, since the screen has no room for all."""


@dataclass(frozen=True)
class Phase:
    """What a phase builds its task from."""

    bench: Bench
    data: DistillData
    models: Models
    learner: Learner
    vectors: CachedVectors | None
    teacher: LiveTeacher | None
    """Where vectors are not cached."""

    @classmethod
    def open(cls, bench: Bench) -> "Phase":
        """Student, data and teacher of a stage."""
        config: DistillConfig = bench.config
        data = load_data(config)
        models = open_models(config, data, bench.world)
        if bench.world.is_main:
            record_texts(bench.artifact(TEXTS), data)
        learner = bench.learner(models.student.network, name=MODEL)
        if config.teacher.mode == "cached":
            return cls(bench, data, models, learner, read_cache(bench, data, models), None)
        return cls(bench, data, models, learner, None, LiveTeacher(bench, models))

    @property
    def readings(self) -> Readings:
        """Whose tokens rows have: the student's, and those of a live teacher."""
        return self.models.readings if self.teacher else {STUDENT: self.models.readings[STUDENT]}

    @property
    def origins(self) -> list[Origin]:
        """Where texts and vectors come from."""
        return [*self.data.origins, *(self.vectors.origins() if self.vectors else [])]

    def with_teacher(self, batch: Batch) -> Batch:
        """A batch with the teacher's vectors, wherever they come from."""
        return self.teacher(batch) if self.teacher else batch

    def validation_feed(self) -> Feed:
        """All texts of the retrieval set, the longest first."""
        texts, held_out = self.data.texts, self.data.held_out_texts
        numbers = [held_out[number] for number in by_length(texts[held_out.start : held_out.stop])]
        rows = TextRows(texts, numbers, self.readings, self.origins, self.vectors)
        return self.bench.evaluation_feed(rows, collate=collate_for(self.readings, self.bench.world.device))

    def retrieval(self) -> WholeSet:
        """How well the student retrieves, at each of its sizes, and how close it is to the teacher."""
        held_out, dims = self.data.held_out, self.models.dims
        numbers = self.data.held_out_texts
        places = torch.tensor(by_length(self.data.texts[numbers.start : numbers.stop])).argsort()

        def outputs(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
            vectors = vectors_of(network, batch["text_ids"], batch["text_mask"])
            wanted = unit_prefix(self.with_teacher(batch)["teacher"], dims[0])
            return {"vector": vectors, COSINE: cosine(unit_prefix(vectors, dims[0]), wanted)}

        def metrics(rows: dict[str, Tensor]) -> dict[str, float]:
            found = retrieval_by_dim(rows["vector"][places], held_out, dims)
            found[COSINE] = float(rows[COSINE].double().mean())
            return {name: found[name] for name in SHOWN} | found

        return WholeSet(outputs, metrics)


class PhaseTask:
    """What both phases do: updates of the student, and validation on the retrieval set."""

    def __init__(self, phase: Phase, feed: Feed) -> None:
        self.phase, self.feed, self.learner = phase, feed, phase.learner
        self.length = feed.length
        self.state: Mapping[str, Any] = {self.learner.name: self.learner}
        self._validation, self._retrieval = phase.validation_feed(), phase.retrieval()

    def batches(self, step: int) -> MicroBatches:
        """The rows of a step with the teacher's vectors."""
        found = self.feed[step]
        return self.phase.teacher.beside(found) if self.phase.teacher else found

    def validate(self, tick: Tick) -> MetricValues:
        """Metrics of the retrieval set, equal on all ranks."""
        found = self._retrieval.evaluate(self.learner, self._validation)
        return {f"val/{name}": value for name, value in found.items()}


def retrieval_by_dim(vectors: Tensor, held_out: RetrievalSet, dims: tuple[int, ...]) -> dict[str, float]:
    """Metrics of vectors of all queries and then all passages: of whole vectors by their names, and of the first d
    numbers as name/d."""
    found: dict[str, float] = {}
    for dim in dims:
        for name, value in retrieval_of(vectors, held_out, dim).items():
            found[name if dim == dims[0] else f"{name}/{dim}"] = value
    return found


def retrieval_of(vectors: Tensor, held_out: RetrievalSet, dim: int) -> dict[str, float]:
    """Metrics of the first `dim` numbers of vectors of all queries and then all passages."""
    unit = unit_prefix(vectors, dim)
    queries, passages = unit.split([len(held_out.queries), len(held_out.passages)])
    return held_out.metrics(rank_by_vectors(queries, passages, max(KS) + 1), KS)
