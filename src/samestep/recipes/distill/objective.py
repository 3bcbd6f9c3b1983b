"""What a student learns from its teacher: the teacher's vectors, and which passage answers which query.

    mse              squared distance of the student's vector from the teacher's, both of length 1. That is the mean of
                     the squared differences times their number, so its weight means the same for vectors of any size
    cosine_distance  1 - cosine of the two
    info_nce         - log softmax of the positive among all passages of the global batch, at a temperature
    margin_mse       (student's margin of the positive over a negative - teacher's margin)^2, for each negative
    kl               divergence of the student's distribution over a query's own passages from the teacher's
    cosent           log(1 + sum of exp((score of b - score of a) / temperature)) over all pairs (a, b) of the global
                     batch of which the teacher scores a higher

A student with Matryoshka dimensions has each of them as the mean over its dimensions d, where the first d numbers of a
vector, scaled to length 1, stand for the vector. All functions give a value a row, as a learner takes them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax, normalize

from samestep import UserError
from samestep.core.config.bounds import NotNegative, Positive
from samestep.core.config.checked import CheckedConfig

MSE, COSINE_DISTANCE, INFO_NCE = "mse", "cosine_distance", "info_nce"
MARGIN_MSE, KL, COSENT = "margin_mse", "kl", "cosent"
COSINE = "cosine"
"""Only logged: how close the student's vectors are to the teacher's."""
_TIE = 1e-5
"""Teacher scores that are closer count as equal: of the same texts, they differ by rounding."""


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
        """Refuse what cannot be trained with."""
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
    """Weight of the divergence from the teacher's distribution over a record's passages."""
    cosent: NotNegative = 0.0
    """Weight of the order in which the teacher puts all pairs of query and passage of the global batch."""
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
        """Refuse what cannot be trained with."""
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
    + negatives]."""
    absent = torch.finfo(student.dtype).min
    mine, wanted = (log_softmax((s / temperature).masked_fill(~present, absent), 1) for s in (student, teacher))
    return torch.where(present, wanted.exp() * (wanted - mine), 0.0).sum(1)


def cosent(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """The loss of all pairs of query and passage together, a single number, from their scores [pairs].

    It is no sum over rows. A learner divides a term by the rows, so the value of every row is this number.
    """
    apart = (student[None, :] - student[:, None]) / temperature
    is_ordered = teacher[:, None] > teacher[None, :] + _TIE
    parts = apart.masked_fill(~is_ordered, -torch.inf).flatten()
    return torch.cat([parts.new_zeros(1), parts]).logsumexp(0)
