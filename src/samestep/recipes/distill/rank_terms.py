"""The terms of phase 2: those of a record alone, and those that couple all records of the global batch."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from samestep import Batch
from samestep.recipes.distill.objective import (
    COSENT,
    COSINE,
    INFO_NCE,
    KL,
    MARGIN_MSE,
    MSE,
    KnownPositives,
    RankObjective,
    cosent,
    cosine,
    false_negatives,
    info_nce,
    margin_mse,
    mean_over_dims,
    score_divergence,
    scores,
    squared_distance,
    unit_prefix,
)

_ALONE = (MSE, COSINE, MARGIN_MSE, KL)
"""Terms of a record alone, which are computed with its vectors."""


@dataclass(frozen=True)
class RankTerms:
    """All terms, in two steps: what each record gives, and what is computed of all of them."""

    objective: RankObjective
    dims: tuple[int, ...]
    known: KnownPositives

    def of_records(self, query: Tensor, passages: Tensor, batch: Batch) -> dict[str, Tensor]:
        """What each record gives, a row of each: its vectors [rows, dim] and [rows, 1 + negatives, dim], the numbers of
        its texts, its own terms, and of the teacher only what terms of all records need."""
        with torch.autocast(query.device.type, enabled=False):
            found = {"query": query, "passages": passages}
            found |= {"query_number": batch["query"], "passage_numbers": batch["passages"]}
            found |= self._own_terms(query, passages, batch)
            if self.objective.cosent:
                found["teacher_scores"] = _teacher_scores(batch)
            if self.objective.teacher_margin is not None:
                found |= {name: batch[name] for name in ("teacher_query", "teacher_passages")}
            return found

    def _own_terms(self, query: Tensor, passages: Tensor, batch: Batch) -> dict[str, Tensor]:
        present, objective = batch["passages"] >= 0, self.objective
        student, teacher = _texts(query, passages), _texts(batch["teacher_query"], batch["teacher_passages"])
        is_text = torch.cat([present.new_ones(len(query), 1), present], 1)

        def mean_of_texts(measure: str, dim: int) -> Tensor:
            mine, wanted = unit_prefix(student, dim), unit_prefix(teacher, dim)
            values = squared_distance(mine, wanted) if measure == MSE else cosine(mine, wanted)
            return torch.where(is_text, values, 0.0).sum(1) / is_text.sum(1)

        terms = {MSE: mean_over_dims(self.dims, lambda dim: mean_of_texts(MSE, dim))}
        terms[COSINE] = mean_of_texts(COSINE, self.dims[0]).detach()  # only logged
        if objective.margin_mse or objective.kl:
            theirs = _teacher_scores(batch)
        if objective.margin_mse:
            terms[MARGIN_MSE] = mean_over_dims(
                self.dims, lambda dim: margin_mse(_scores(query, passages, dim), theirs, present)
            )
        if objective.kl:
            temperature = objective.kl_temperature
            terms[KL] = mean_over_dims(
                self.dims, lambda dim: score_divergence(_scores(query, passages, dim), theirs, present, temperature)
            )
        return terms

    def coupled(self, rows: Mapping[str, Tensor], own: slice) -> dict[str, Tensor]:
        """All terms of the records `own`, where `rows` has what all records of the global batch gave."""
        objective = self.objective
        with torch.autocast(rows["query"].device.type, enabled=False):
            terms = {name: rows[name][own] for name in _ALONE if name in rows}
            if objective.info_nce:
                targets, left_out = self._pool(rows, own)
                terms[INFO_NCE] = mean_over_dims(
                    self.dims,
                    lambda dim: info_nce(
                        unit_prefix(rows["query"][own], dim),
                        unit_prefix(rows["passages"], dim).flatten(0, 1),
                        targets,
                        left_out,
                        objective.temperature,
                    ),
                )
            if objective.cosent:
                present = rows["passage_numbers"] >= 0
                wanted = rows["teacher_scores"].detach()[present]
                value = mean_over_dims(
                    self.dims,
                    lambda dim: cosent(
                        _scores(rows["query"], rows["passages"], dim)[present], wanted, objective.cosent_temperature
                    ),
                )
                terms[COSENT] = value.expand(len(rows["query"][own]))
            return terms

    def _pool(self, rows: Mapping[str, Tensor], own: slice) -> tuple[Tensor, Tensor]:
        """Where the positives of the records `own` are among all passages, and what does not count as a negative."""
        numbers = rows["passage_numbers"]
        each = numbers.shape[1]
        targets = torch.arange(len(numbers), device=numbers.device)[own] * each
        pool = numbers.flatten()
        left_out = false_negatives(self.known, rows["query_number"][own], numbers[own, 0], pool, targets)
        margin = self.objective.teacher_margin
        if margin is not None:
            theirs = rows["teacher_query"][own].detach() @ rows["teacher_passages"].detach().flatten(0, 1).T
            too_close = theirs > theirs.gather(1, targets[:, None]) + margin
            left_out = left_out | too_close.scatter(1, targets[:, None], False)
        return targets, left_out


def _texts(query: Tensor, passages: Tensor) -> Tensor:
    """The query and its passages, [rows, 1 + each, dim]."""
    return torch.cat([query[:, None], passages], 1)


def _scores(query: Tensor, passages: Tensor, dim: int) -> Tensor:
    return scores(unit_prefix(query, dim), unit_prefix(passages, dim))


def _teacher_scores(batch: Batch) -> Tensor:
    return scores(batch["teacher_query"], batch["teacher_passages"])
