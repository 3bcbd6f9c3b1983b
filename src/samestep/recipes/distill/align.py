"""Phase 1: the student learns the teacher's vectors of queries and passages."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Metrics, Tick
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.models import vectors_of
from samestep.recipes.distill.objective import (
    COSINE,
    COSINE_DISTANCE,
    MSE,
    cosine,
    mean_over_dims,
    squared_distance,
    unit_prefix,
)
from samestep.recipes.distill.phase import Phase, PhaseTask
from samestep.recipes.distill.rows import TextRows, collate_for, mixed

STAGE = "align"


class Align(PhaseTask):
    """The student is fitted to the teacher's vectors."""

    def __init__(self, bench: Bench) -> None:
        config: DistillConfig = bench.config
        phase = Phase.open(bench)
        texts, (parts, weights) = phase.data.texts, phase.data.texts_of_phase(config.max_samples_phase1)
        sources = [TextRows(texts, numbers, phase.readings, phase.origins, phase.vectors) for numbers in parts]
        rows, order = mixed(sources, weights, config.bucketed)
        super().__init__(phase, bench.feed(rows, order=order, collate=collate_for(phase.readings, bench.world.device)))
        self._objective, self._dims = config.align, phase.models.dims
        bench.screen.print(f"{len(rows):,} texts, {len(phase.data.held_out.queries):,} queries for validation")

    def step(self, tick: Tick) -> Metrics:
        """One update."""
        return self.learner.update(self.batches(tick.step), self._terms, self._objective.mix)

    def _terms(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        student = vectors_of(network, batch["text_ids"], batch["text_mask"])
        with torch.autocast(student.device.type, enabled=False):
            return align_terms(student, batch["teacher"], self._dims)


def align_terms(student: Tensor, teacher: Tensor, dims: tuple[int, ...]) -> dict[str, Tensor]:
    """Both terms and the cosine, a value for each text, from vectors [texts, dim]; the teacher's may be longer."""

    def distance(dim: int) -> Tensor:
        return squared_distance(unit_prefix(student, dim), unit_prefix(teacher, dim))

    def similarity(dim: int) -> Tensor:
        return cosine(unit_prefix(student, dim), unit_prefix(teacher, dim))

    return {
        MSE: mean_over_dims(dims, distance),
        COSINE_DISTANCE: 1 - mean_over_dims(dims, similarity),
        COSINE: similarity(dims[0]).detach(),
    }
