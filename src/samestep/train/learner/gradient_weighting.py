"""The terms of a loss: which are trained, how much each weighs in the gradient, and what is logged.

A loss returns, per term, each row's sum. Only the terms that a mix names are trained, each times its coefficient; all
others are logged. A loss of one term needs no mix.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn

from samestep.core.errors import RunFailed, UserError
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.models.wide import wide_type
from samestep.train.logging.metrics import Metric, Metrics, part_of

Loss = Callable[[nn.Module, Batch], Mapping[str, Tensor]]
"""From a module and a micro-batch to each term's value by row."""
Mix = Mapping[str, float]
"""Coefficients of the terms that are trained."""


def trained_terms(learner: str, terms: Mapping[str, Tensor], mix: Mix | None) -> Mix:
    check_terms(f"the loss of learner {learner!r}", terms)
    if not terms:
        raise UserError(f"the loss of learner {learner!r} returned no term; return each row's value by name")
    if mix is None and len(terms) == 1:
        return dict.fromkeys(terms, 1.0)
    listed = ", ".join(map(repr, terms))
    if mix is not None and not _are_numbers(mix):
        raise UserError(
            f"the mix of learner {learner!r} is {mix!r}; give each trained term a number, such as "
            f"{{{next(iter(terms))!r}: 1.0}}"
        )
    if mix is not None and not mix:
        raise UserError(f"the mix of learner {learner!r} names no term; give a coefficient to one of {listed}")
    if mix is None:
        raise UserError(
            f"the loss of learner {learner!r} returned several terms ({listed}); say which of them are trained, for "
            f"example mix={{{next(iter(terms))!r}: 1.0}}, and the others are only logged"
        )
    unknown = [term for term in mix if term not in terms]
    if unknown:
        raise UserError(
            f"the mix of learner {learner!r} names {unknown[0]!r}, but its loss returned {listed}; name one of those"
        )
    return mix


def check_terms(what: str, terms: object) -> None:
    """Refuse a loss that returns no dict."""
    if not isinstance(terms, Mapping):
        raise UserError(
            f"{what} returned a {type(terms).__name__}; return a dict with one value a row by name, such as "
            '{"error": values}'
        )


def check_rows(what: str, values: object, count: int) -> None:
    """Refuse a term without one value a row: a mean over rows would depend on how a batch is cut."""
    if not isinstance(values, Tensor):
        raise UserError(f"{what} is a {type(values).__name__}, but must be a tensor with one value a row")
    if values.dim() == 0:
        raise UserError(
            f"{what} is one number for the whole micro-batch, but must have one value a row; take no mean or "
            'sum over rows (torch\'s losses: reduction="none"), the runtime does that for the global batch'
        )
    if values.shape != (count,):
        raise UserError(
            f"{what} has the shape {tuple(values.shape)} for {count} rows, but must have one value a row, "
            f"{(count,)}; sum over the other dimensions, as in values.flatten(1).sum(1)"
        )


def _refuse_untrainable(learner: str, rows: Mapping[str, Tensor], trained: Mix) -> None:
    """Refuse terms of which none has a gradient to train by."""
    values = [(term, rows[term]) for term in trained if isinstance(rows[term], Tensor)]
    if not values or any(value.requires_grad for _, value in values):
        return
    term, value = values[0]
    if not value.is_floating_point():
        kind = str(value.dtype).removeprefix("torch.")
        raise UserError(
            f"term {term!r} of learner {learner!r} is of the type {kind}, which has no gradient; give floats, and none "
            "that were rounded or compared"
        )
    raise UserError(
        f"term {term!r} of learner {learner!r} has no gradient in the network's parameters, so nothing would be "
        "trained; compute it from what the network returns, without detach(), .item(), argmax or torch.no_grad()"
    )


def _are_numbers(mix: object) -> bool:
    return isinstance(mix, Mapping) and all(isinstance(coefficient, int | float) for coefficient in mix.values())


def weigh(
    learner: str,
    rows: Mapping[str, Tensor],
    count: int,
    micro_batches: MicroBatches,
    trained: Mix,
    filler: bool = False,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The scalar to differentiate, the sum over terms of coefficient * live rows / global weight; and the sums."""
    sums = {}
    if torch.is_grad_enabled():
        _refuse_untrainable(learner, rows, trained)
    for term, values in rows.items():
        check_rows(f"term {term!r} of learner {learner!r}", values, count)
        if filler or not micro_batches.weight(term):  # selected, not multiplied by zero: a row may be NaN
            values = torch.where(torch.zeros_like(values, dtype=torch.bool), values, 0.0)
        sums[term] = values.sum(dtype=wide_type(values.dtype))
    total = reduce(
        add, [sums[term] * (coefficient / (micro_batches.weight(term) or 1.0)) for term, coefficient in trained.items()]
    )
    return total, {term: value.detach() for term, value in sums.items()}


def gradients_of(learner: str, trained: Sequence[tuple[str, nn.Parameter]], needs_all: bool) -> list[Tensor]:
    """The gradients of these parameters, by name; `needs_all`: refuse an update in which some have none."""
    gradients = [parameter.grad for _, parameter in trained if parameter.grad is not None]
    if needs_all and len(gradients) < len(trained):
        lacking = [name for name, parameter in trained if parameter.grad is None]
        raise RunFailed(
            f"{len(lacking)} parameters of learner {learner!r} got no gradient in this step, the first of them "
            f"{lacking[0]!r}; use them in every loss (a term of a mix may have the coefficient 0), or name them in the "
            "recipe's `unused`"
        )
    return gradients


def update_metrics(
    learner: str,
    micro_batches: MicroBatches,
    sums: Mapping[str, Tensor],
    trained: Mix,
    *,
    norm: Tensor,
    bad: Tensor,
    rate: float,
) -> Metrics:
    metrics = {term: Metric(value, micro_batches.weight(term), skipped=bad) for term, value in sums.items()}
    for term, value in sums.items():  # also those not trained in this step, or a mean over steps leaves it out
        coefficient = trained.get(term, 0.0)
        mixed = value if coefficient == 1 else value * coefficient if coefficient else 0.0
        metrics[part_of("loss", term)] = Metric(mixed, micro_batches.weight(term), skipped=bad)
    metrics["grad_norm"] = Metric(norm, 1.0, same=True, skipped=bad)
    metrics["lr"] = Metric(rate, same=True)
    metrics["skipped"] = Metric(bad, same=True)
    prefix = "" if learner == "model" else f"{learner}/"
    counts = {f"count/{name}": Metric(weight, same=True) for name, weight in micro_batches.weights.items()}
    return {**{prefix + name: metric for name, metric in metrics.items()}, **counts}
