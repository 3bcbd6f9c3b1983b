"""Phase 2: the student learns which passage answers which query, among all passages of the global batch."""

from collections.abc import Mapping, Sequence
from functools import partial

from torch import Tensor, nn

from samestep import Batch, Bench, Metrics, Tick, UserError
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.mining import read_mined
from samestep.recipes.distill.models import vectors_of
from samestep.recipes.distill.objective import KL, MARGIN_MSE, KnownPositives, RankObjective
from samestep.recipes.distill.phase import Phase, PhaseTask
from samestep.recipes.distill.rank_terms import RankTerms
from samestep.recipes.distill.rows import RecordRows, collate_for, mixed

STAGE = "rank"


class Rank(PhaseTask):
    """The student is trained with a loss that couples all rows of the global batch."""

    def __init__(self, bench: Bench) -> None:
        config: DistillConfig = bench.config
        phase = Phase.open(bench)
        data, texts = phase.data, phase.data.texts
        own: Sequence[Sequence[int]] = [row.negatives for row in data.table.rows]
        negatives = read_mined(bench) if config.mining.negatives else own
        width = min(config.negatives, max(map(len, negatives)))
        if not width and (config.rank.margin_mse or config.rank.kl):
            raise UserError("Give records negatives, or set mining.negatives: rank.margin_mse and rank.kl need some.")
        sources = [
            RecordRows(data, texts, rows, negatives, width, phase.readings, phase.vectors)
            for rows in data.rows_of_phase(config.max_samples_phase2)
        ]
        rows, order = mixed(sources, data.weights, config.bucketed)
        known = KnownPositives([(row.query, row.positive) for row in data.table.rows], len(data.table.passages))
        self._terms = RankTerms(config.rank, phase.models.dims, known)
        feed = bench.feed(
            rows,
            order=order,
            collate=collate_for(phase.readings, bench.world.device),
            count=partial(count_negatives, config.rank),
        )
        super().__init__(phase, feed)
        bench.screen.print(
            f"{len(rows):,} records with up to {width} negatives, {len(data.held_out.queries):,} queries for validation"
        )

    def step(self, tick: Tick) -> Metrics:
        """One update."""
        batches, objective = self.batches(tick.step), self._terms.objective
        if objective.pool == "local":
            return self.learner.update(batches, self._alone, objective.mix)
        return self.learner.update_coupled(batches, self._embed, self._terms.coupled, objective.mix)

    def _embed(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        query = vectors_of(network, batch["query_ids"], batch["query_mask"])
        passages = vectors_of(network, batch["passage_ids"], batch["passage_mask"])
        return self._terms.of_records(query, passages, batch)

    def _alone(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        """The same with the passages of one micro-batch as the pool, without those of rows that only fill it up."""
        rows = dict(self._embed(network, batch))
        is_same = (batch["ids"][:, None] == batch["ids"]).all(-1)
        is_repeated = is_same.tril(-1).any(1)
        rows["passage_numbers"] = rows["passage_numbers"].masked_fill(is_repeated[:, None], -1)
        return self._terms.coupled(rows, slice(0, len(batch["query"])))


def count_negatives(objective: RankObjective, batch: Batch) -> dict[str, Tensor]:
    """What terms of negatives are divided by: the negatives, or the records that have some."""
    present = (batch["passages"][:, 1:] >= 0).sum(1)
    counts = {MARGIN_MSE: present, KL: (present > 0).to(present.dtype)}
    return {name: count for name, count in counts.items() if getattr(objective, name)}
