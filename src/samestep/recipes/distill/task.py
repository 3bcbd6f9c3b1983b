"""The two phases: the student learns the teacher's vectors, then which passage answers which query, among all passages
of the global batch. Both validate on the retrieval set that is kept for that.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Feed, Metrics, MicroBatches, Tick, UserError, WholeSet, samples
from samestep.core.json_files import write_json
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import TEXTS, Origin, load_data
from samestep.recipes.distill.lengths import too_long
from samestep.recipes.distill.models import (
    MODEL,
    STUDENT,
    Readings,
    RecordRows,
    TextRows,
    by_length,
    collate_for,
    mixed,
    models_of,
    vectors_of,
)
from samestep.recipes.distill.objective import (
    COSINE,
    KL,
    MARGIN_MSE,
    RECORDS,
    KnownPositives,
    RankObjective,
    RankTerms,
    align_terms,
    cosine,
    unit_prefix,
)
from samestep.recipes.distill.retrieval import RetrievalSet, rank_by_vectors
from samestep.recipes.distill.teacher import CachedVectors, LiveTeacher, read_cache, read_mined
from samestep.train.logging.metrics import MetricValues

NDCG = "ndcg@10"
KS = (1, 10, 100)
HITS, MOST_COMPARED = 5, 20_000
"""Passages of a query that are shown; and up to how many texts the teacher's ranks are shown beside them."""
SHOWN = (NDCG, "recall@10", COSINE)
"""The metrics of a validation that come first, since the screen has no room for all."""
ALIGN, RANK = "align", "rank"
"""The stages."""


class PhaseTask:
    """What both phases have: the student, the teacher's vectors, and validation on the retrieval set."""

    feed: Feed

    def __init__(self, bench: Bench) -> None:
        config: DistillConfig = bench.config
        self.bench = bench
        self.data = load_data(config)
        self.models = models_of(bench, self.data)
        if bench.world.is_main:
            known = {"texts": self.data.digest, "queries": len(self.data.held_out.queries)}
            write_json(bench.artifact(TEXTS), known)
        self.learner = bench.learner(self.models.student.network, name=MODEL)
        self.vectors: CachedVectors | None = None
        self._by_teacher: Tensor | None = None
        self.teacher: LiveTeacher | None = None
        self.readings: Readings = self.models.readings
        self.origins: list[Origin] = list(self.data.origins)
        if config.teacher.mode == "cached":
            self.vectors = read_cache(bench, self.data, self.models)
            self.readings = {STUDENT: self.models.readings[STUDENT]}
            self.origins += self.vectors.origins()
        else:
            self.teacher = LiveTeacher(bench, self.models)
        self.collate = collate_for(self.readings, bench.world.device)

    def train_on(self, feed: Feed) -> None:
        """The last step of a phase's own constructor."""
        self.feed, self.length = feed, feed.length
        self.state: Mapping[str, Any] = {self.learner.name: self.learner}
        self._validation, self._retrieval = self._held_out()

    def fitting(self, parts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The texts of each part that the student can read, or reads cut."""
        numbers = sorted({number for part in parts for number in part})
        config: DistillConfig = self.bench.config
        if config.data.too_long == "truncate" and not self.bench.world.is_main:
            return [list(part) for part in parts]  # nothing is left out, and one process says what is cut
        dropped = too_long(self.data, numbers, self.models.readings[STUDENT], config.data.too_long)
        found = [[number for number in part if number not in dropped] for part in parts]
        if not all(found):
            raise UserError(
                f"Raise student.max_length, or set data.too_long=truncate: all texts of a part of {self.data.name} are "
                f"too long."
            )
        return found

    def text_rows(self, numbers: Sequence[int]) -> TextRows:
        """Rows of texts, by their numbers."""
        return TextRows(self.data.texts, numbers, self.readings, self.origins, self.vectors)

    def batches(self, step: int) -> MicroBatches:
        """The rows of a step with the teacher's vectors."""
        found = self.feed[step]
        return found.changed(self.teacher) if self.teacher else found

    def validate(self, tick: Tick) -> MetricValues:
        """Metrics of the retrieval set, equal on all ranks."""
        found = self._retrieval.evaluate(self.learner, self._validation)
        return {f"val/{name}": value for name, value in found.items()}

    def _held_out(self) -> tuple[Feed, WholeSet]:
        """All texts of the retrieval set, the longest first; and what is measured of their vectors: how well the
        student retrieves, at each of its sizes, and how close it is to the teacher."""
        held_out, dims, numbers = self.data.held_out, self.models.dims, self.data.held_out_texts
        longest_first = by_length(self.data.texts[numbers.start : numbers.stop])
        places = torch.tensor(longest_first).argsort()

        def outputs(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
            vectors = vectors_of(network, batch["text_ids"], batch["text_mask"])
            wanted = unit_prefix((self.teacher(batch) if self.teacher else batch)["teacher"], dims[0])
            return {"vector": vectors, COSINE: cosine(unit_prefix(vectors, dims[0]), wanted)}

        def metrics(rows: dict[str, Tensor]) -> dict[str, float]:
            vectors = rows["vector"][places]
            self.bench.log_samples("hits", *self._hits(vectors, held_out))
            found = retrieval_by_dim(vectors, held_out, dims)
            found[COSINE] = float(rows[COSINE].double().mean())
            return {name: found[name] for name in SHOWN} | found

        rows = self.text_rows([numbers[number] for number in longest_first])
        return self.bench.evaluation_feed(rows, collate=self.collate), WholeSet(outputs, metrics)

    def _hits(self, vectors: Tensor, held_out: RetrievalSet) -> list[samples.Hits]:
        """What the student finds for the first queries, and where the teacher has it; on rank 0."""
        count = min(self.bench.sample_count, len(held_out.queries))
        if not count:
            return []
        unit, first = unit_prefix(vectors, self.models.dims[0]), len(held_out.queries)
        queries, passages = unit[:count], unit[first:]
        by_teacher = self._teacher_scores(count)
        found = []
        for query, ranked in enumerate(rank_by_vectors(queries, passages, HITS)):
            hits = []
            for passage in (passage for passage in ranked if passage != held_out.itself.get(query)):
                score = float(queries[query] @ passages[passage])
                ranks = {}
                if by_teacher is not None:
                    ranks["teacher"] = int((by_teacher[query] > by_teacher[query, passage]).sum()) + 1
                relevant = passage in held_out.relevant[query]
                hits.append(samples.Hit(held_out.passages[passage], score, relevant, ranks))
            found.append(samples.Hits(held_out.queries[query], hits))
        return found

    def _teacher_scores(self, count: int) -> Tensor | None:
        """The teacher's scores of all passages for the first queries, computed once; None where its vectors are not
        cached, or are too many to read for this."""
        numbers, first = self.data.held_out_texts, len(self.data.held_out.queries)
        if self.vectors is None or len(numbers) > MOST_COMPARED:
            return None
        if self._by_teacher is None or len(self._by_teacher) < count:
            own = self.vectors.of(numbers)
            self._by_teacher = own[:count] @ own[first:].T
        return self._by_teacher


class Align(PhaseTask):
    """The student is fitted to the teacher's vectors."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        config: DistillConfig = bench.config
        parts, weights = self.data.texts_of_phase(config.max_samples_phase1, config.phase1_samples)
        parts = self.fitting(parts)
        rows, order = mixed([self.text_rows(numbers) for numbers in parts], weights, config.bucketed)
        self.train_on(bench.feed(rows, order=order, collate=self.collate))
        self._objective = config.align
        bench.screen.print(f"{len(rows):,} texts, {len(self.data.held_out.queries):,} queries for validation")

    def step(self, tick: Tick) -> Metrics:
        return self.learner.update(self.batches(tick.step), self._terms, self._objective.mix)

    def _terms(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        student = vectors_of(network, batch["text_ids"], batch["text_mask"])
        with torch.autocast(student.device.type, enabled=False):
            return align_terms(student, batch["teacher"], self.models.dims)


class Rank(PhaseTask):
    """The student is trained with a loss that couples all rows of the global batch."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        config: DistillConfig = bench.config
        data = self.data
        own: Sequence[Sequence[int]] = [row.negatives for row in data.table.rows]
        negatives = read_mined(bench, data, self.models) if config.mining.negatives else own
        scores: Sequence[Sequence[float]] | None = None
        if config.rank.scores == RECORDS:
            scores = [row.scores for row in data.table.rows]
        parts, negatives, scores = self._fitting_records(
            data.rows_of_phase(config.max_samples_phase2), negatives, scores
        )
        width = min(config.negatives, max(map(len, negatives)))
        sources = [RecordRows(data, rows, negatives, width, self.readings, self.vectors, scores) for rows in parts]
        rows, order = mixed(sources, data.weights, config.bucketed)
        known = KnownPositives([(row.query, row.positive) for row in data.table.rows], len(data.table.passages))
        self._terms = RankTerms(config.rank, self.models.dims, known)
        count = partial(count_negatives, config.rank)
        self.train_on(bench.feed(rows, order=order, collate=self.collate, count=count))
        bench.screen.print(
            f"{len(rows):,} records with up to {width} negatives, {len(data.held_out.queries):,} queries for validation"
        )

    def step(self, tick: Tick) -> Metrics:
        batches, objective = self.batches(tick.step), self._terms.objective
        if objective.pool == "local":
            return self.learner.update(batches, self._alone, objective.mix)
        return self.learner.update_coupled(batches, self._embed, self._terms.coupled, objective.mix)

    def _fitting_records(
        self,
        parts: Sequence[Sequence[int]],
        negatives: Sequence[Sequence[int]],
        scores: Sequence[Sequence[float]] | None,
    ) -> tuple[list[list[int]], Sequence[Sequence[int]], Sequence[Sequence[float]] | None]:
        """The records of each part whose query and positive the student can read, and the negatives that it can with
        their scores."""
        rows, first = self.data.table.rows, self.data.first_passage
        texts = [
            [
                number
                for row in part
                for number in (rows[row].query, *(first + p for p in (rows[row].positive, *negatives[row])))
            ]
            for part in parts
        ]
        known = {number for part in self.fitting(texts) for number in part}
        found = [[row for row in part if {rows[row].query, first + rows[row].positive} <= known] for part in parts]
        if not all(found):
            raise UserError(f"Raise student.max_length: all records of a part of {self.data.name} are too long.")
        kept = [[place for place, number in enumerate(some) if first + number in known] for some in negatives]
        if scores is not None:
            scores = [[*own[:1], *(own[1 + place] for place in places)] for own, places in zip(scores, kept)]
        return found, [[some[place] for place in places] for some, places in zip(negatives, kept)], scores

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
