"""What a student learns from its teacher: the teacher's vectors, and which passage answers which query.

    mse              squared distance of the student's vector from the teacher's, both of length 1. That is the mean of
                     the squared differences times their number, so its weight means the same for vectors of any size
    cosine_distance  1 - cosine of the two
    info_nce         - log softmax of the positive among all passages of the global batch, at a temperature
    margin_mse       (student's margin of the positive over a negative - teacher's margin)^2, for each negative
    kl               divergence of the student's distribution over a query's own passages from the teacher's, times the
                     square of the temperature, so that the temperature does not change how large gradients are
    cosent           log(1 + sum of exp((score of b - score of a) / temperature)) over all pairs (a, b) of the global
                     batch of which the teacher scores a higher

A student with Matryoshka dimensions has each of them as the mean over its dimensions d, where the first d numbers of a
vector, scaled to length 1, stand for the vector. All functions give a value a row, as a learner takes them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

from samestep import Batch, UserError, policy
from samestep.core.config.bounds import NotNegative, Positive
from samestep.core.config.checked import CheckedConfig

MSE, COSINE_DISTANCE, INFO_NCE = "mse", "cosine_distance", "info_nce"
MARGIN_MSE, KL, COSENT = "margin_mse", "kl", "cosent"
RECORDS = "records"
"""Where scores come from that records have."""
COSINE = "cosine"
"""Only logged: how close the student's vectors are to the teacher's."""
_TIE = 1e-5
"""Teacher scores that are closer count as equal: of the same texts, they differ by rounding."""
_ALONE = (MSE, COSINE, MARGIN_MSE, KL)
"""Terms of a record alone, which are computed with its vectors."""


def _trained(weights: dict[str, float], section: str) -> dict[str, float]:
    """The terms that count, if any does."""
    if not any(weights.values()):
        raise UserError(f"Set at least one of the weights of {section} above 0.")
    return {name: weight for name, weight in weights.items() if weight}


@dataclass(frozen=True)
class AlignObjective(CheckedConfig):
    """Phase 1: the teacher's vectors of queries and passages."""

    mse: NotNegative = 0.4
    """Weight of the squared distance from the teacher's vector."""
    cosine: NotNegative = 0.6
    """Weight of 1 - cosine."""

    def __post_init__(self) -> None:
        _ = self.mix

    @property
    def mix(self) -> dict[str, float]:
        """What each trained term counts; all others are only logged."""
        return _trained({MSE: self.mse, COSINE_DISTANCE: self.cosine}, "align")


@dataclass(frozen=True)
class RankObjective(CheckedConfig):
    """Phase 2: which passage answers which query."""

    info_nce: NotNegative = 0.8
    """Weight of the contrastive loss."""
    mse: NotNegative = 0.2
    """Weight of the squared distance from the teacher's vectors."""
    margin_mse: NotNegative = 0.0
    """Weight of the squared difference between the margins of student and teacher, for each of a record's negatives."""
    kl: NotNegative = 0.0
    """Weight of the divergence from the teacher's distribution over a record's passages, times kl_temperature^2."""
    cosent: NotNegative = 0.0
    """Weight of the order in which the teacher puts all pairs of query and passage of the global batch."""
    scores: Literal["teacher", "records"] = "teacher"
    """Where the scores of margin_mse and kl come from: the teacher's vectors; or the records, which then have scores of
    every passage, or margins."""
    score_scale: Positive = 1.0
    """What scores of records are multiplied by; the student's are from -1 to 1."""
    temperature: Positive = 0.02
    """What scores are divided by in info_nce."""
    kl_temperature: Positive = 0.05
    """What scores of student and teacher are divided by in kl."""
    cosent_temperature: Positive = 0.05
    """What differences of scores are divided by in cosent."""
    pool: Literal["global", "local"] = "global"
    """The passages that info_nce and cosent compare: those of the global batch; or of a micro-batch (local), which
    is another loss for every number of devices and every batch_size."""
    teacher_margin: float | None = None
    """Leave out passages that the teacher scores higher than the positive by more than this: they may be answers
    too. null: only leave out passages that are known to answer the query."""

    def __post_init__(self) -> None:
        _ = self.mix

    @property
    def mix(self) -> dict[str, float]:
        """What each trained term counts; all others are only logged."""
        names = (INFO_NCE, MSE, MARGIN_MSE, KL, COSENT)
        return _trained({name: getattr(self, name) for name in names}, "rank")


def unit_prefix(vectors: Tensor, dim: int) -> Tensor:
    """The first `dim` numbers of vectors [..., more], scaled to length 1."""
    return normalize(vectors[..., :dim], dim=-1)


def mean_over_dims(dims: Sequence[int], value: Callable[[int], Tensor]) -> Tensor:
    """The mean of a value over Matryoshka dimensions."""
    return torch.stack([value(dim) for dim in dims]).mean(0)


def squared_distance(student: Tensor, teacher: Tensor) -> Tensor:
    """Of vectors [..., dim], each from its own teacher: the mean squared difference times the dimension."""
    return (student - teacher).square().sum(-1)


def cosine(first: Tensor, second: Tensor) -> Tensor:
    """Of vectors [..., dim] of length 1."""
    return (first * second).sum(-1)


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


def scores(queries: Tensor, passages: Tensor) -> Tensor:
    """Of queries [rows, dim] with their own passages [rows, each, dim]: [rows, each]."""
    return torch.einsum("rd,rpd->rp", queries, passages)


class KnownPositives:
    """Which passages are known to answer which query, for comparing many with many on the device."""

    def __init__(self, pairs: Sequence[tuple[int, int]], passages: int) -> None:
        """`pairs` are numbers of a query and of a passage, of which there are `passages`."""
        self._passages = passages
        self._keys = torch.tensor(sorted({query * passages + passage for query, passage in pairs}), dtype=torch.int64)

    def among(self, queries: Tensor, passages: Tensor) -> Tensor:
        """For queries [q] and passages [p], [q, p]: whether the passage answers the query. -1 is no passage."""
        self._keys = keys = self._keys.to(queries.device)
        wanted = queries[:, None] * self._passages + passages
        places = torch.searchsorted(keys, wanted.contiguous()).clamp(max=len(keys) - 1)
        return (keys[places] == wanted) & (passages >= 0)


def false_negatives(known: KnownPositives, queries: Tensor, positives: Tensor, pool: Tensor, targets: Tensor) -> Tensor:
    """[q, pool]: what does not count as a negative of a query: absent passages (-1), the same passage as the positive
    elsewhere in the pool, and passages that are known to answer the query. The target itself is never among them."""
    wrong = known.among(queries, pool) | (pool == positives[:, None]) | (pool < 0)
    return wrong.scatter(1, targets[:, None], False)


def info_nce(queries: Tensor, pool: Tensor, targets: Tensor, left_out: Tensor, temperature: float) -> Tensor:
    """The loss of queries [q, dim] whose positives are at `targets` in the pool [p, dim]; `left_out` [q, p] does not
    count."""
    logits = (queries @ pool.T / temperature).masked_fill(left_out, -torch.inf)
    return cross_entropy(logits, targets, reduction="none")


def margin_mse(student: Tensor, teacher: Tensor, present: Tensor) -> Tensor:
    """Of scores [rows, 1 + negatives], the positive first: the sum over those negatives that are `present`."""
    margins = [each[:, :1] - each[:, 1:] for each in (student, teacher)]
    return torch.where(present[:, 1:], (margins[0] - margins[1]).square(), 0.0).sum(1)


def score_divergence(student: Tensor, teacher: Tensor, present: Tensor, temperature: float) -> Tensor:
    """KL(teacher || student) of the distributions over a query's own passages that are `present`, from scores [rows, 1
    + negatives], times the squared temperature."""
    absent = torch.finfo(student.dtype).min
    mine, wanted = (log_softmax((s / temperature).masked_fill(~present, absent), 1) for s in (student, teacher))
    return policy.kl_divergence(wanted, mine) * temperature**2


def cosent(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The loss of all pairs of query and passage together, a single number, from their scores [pairs].

    It is no sum over rows. A learner divides a term by the rows, so the value of every row is this number.
    """
    apart = (student[None, :] - student[:, None]) / temperature
    is_ordered = teacher[:, None] > teacher[None, :] + _TIE
    parts = apart.masked_fill(~is_ordered, -torch.inf).flatten()
    return torch.cat([parts.new_zeros(1), parts]).logsumexp(0)


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

        mean = partial(mean_over_dims, self.dims)
        terms = {MSE: mean(lambda dim: mean_of_texts(MSE, dim))}
        terms[COSINE] = mean_of_texts(COSINE, self.dims[0]).detach()  # only logged
        if objective.margin_mse or objective.kl:
            is_given = objective.scores == RECORDS
            theirs = batch["scores"] * objective.score_scale if is_given else _teacher_scores(batch)
        if objective.margin_mse:
            terms[MARGIN_MSE] = mean(lambda dim: margin_mse(_scores(query, passages, dim), theirs, present))
        if objective.kl:
            temperature = objective.kl_temperature
            terms[KL] = mean(lambda dim: score_divergence(_scores(query, passages, dim), theirs, present, temperature))
        return terms

    def coupled(self, rows: Mapping[str, Tensor], own: slice) -> dict[str, Tensor]:
        """All terms of the records `own`, where `rows` has what all records of the global batch gave."""
        objective = self.objective
        with torch.autocast(rows["query"].device.type, enabled=False):
            terms = {name: rows[name][own] for name in _ALONE if name in rows}
            if objective.info_nce:
                targets, left_out = self._pool(rows, own)

                def contrast(dim: int) -> Tensor:
                    queries = unit_prefix(rows["query"][own], dim)
                    pool = unit_prefix(rows["passages"], dim).flatten(0, 1)
                    return info_nce(queries, pool, targets, left_out, objective.temperature)

                terms[INFO_NCE] = mean_over_dims(self.dims, contrast)
            if objective.cosent:
                present = rows["passage_numbers"] >= 0
                wanted = rows["teacher_scores"].detach()[present]

                def order(dim: int) -> Tensor:
                    found = _scores(rows["query"], rows["passages"], dim)[present]
                    return cosent(found, wanted, objective.cosent_temperature)

                terms[COSENT] = mean_over_dims(self.dims, order).expand(len(rows["query"][own]))
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
