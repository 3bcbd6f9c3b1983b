"""How well activations survive: what a lens and the baselines rebuild of each, and what the model makes of that.

There is one definition of the fraction of variance explained (FVE), in validation as in evaluation: see
`explained_variance`.

A lens is compared with the mean of the training activations, and with the linear lens. That is the logit lens turned
around without a trained decoder or encoder: the model's own last norm and head name the T likeliest tokens of an
activation, and a ridge regression, fitted on training activations, rebuilds it from the mean embedding of those.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import Batch, LanguageModel, World
from samestep.data.order import VALIDATION_EPOCH
from samestep.models.wide import wide
from samestep.recipes.lens.network import Computation, Lens
from samestep.train.trained.batch_inference import compute_rows

Compute = Callable[[Batch], Mapping[str, Tensor]]
"""A batch to values by name, one entry a row."""
Ask = Callable[[Batch, Computation], dict[str, Tensor]]
"""Calls a lens without gradients."""
LENS = ("sampled", "greedy", "best_of_n", "round_trip")
BASELINES = ("zero", "mean", "shuffled", "linear_lens")
METHODS = (*LENS, *BASELINES)
_RIDGE = 1e-3
"""The penalty of the regression, as a share of the features' mean variance."""
_LONGEST = 4
"""A text that is tokenized again may have so many times as many tokens; what is beyond is cut off."""


def explained_variance(error: float, variance: float) -> float:
    """FVE = 1 - mean |A - A_hat|^2 / mean |A - M|^2, where M is the mean of A over the same activations as both means
    are: those that are measured, not those of training. So it is R squared, with all dimensions added up."""
    return 1 - error / variance


def variance_of(activations: Tensor) -> float:
    """The mean squared distance of activations [rows, width] to their mean."""
    wide = activations.double()
    return float((wide - wide.mean(0)).square().sum(1).mean())


class SpreadRows:
    """So many rows of a table, evenly spread over it; all of them if it has no more."""

    def __init__(self, table: Any, count: int) -> None:
        self._table, self._count = table, min(count, len(table))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        found: dict[str, Tensor] = self._table.rows(np.asarray(indices) * len(self._table) // self._count)
        return found

    def origins(self) -> list[Path]:
        found: list[Path] = self._table.origins()
        return found


def compute_values(rows: SpreadRows, compute: Compute, batch_size: int, world: World) -> dict[str, Tensor]:
    """What `compute` gives for every row, on the CPU of every rank, in the order of the rows. Collective."""

    def of_batch(batch: Sequence[int]) -> Mapping[str, Tensor]:
        given = {name: value.to(world.device) for name, value in rows.rows(np.array(batch)).items()}
        given["ids"] = torch.tensor([(VALIDATION_EPOCH, number) for number in batch], device=world.device)
        return compute(given)

    return compute_rows([1] * len(rows), batch_size, world, of_batch)


@dataclass(frozen=True)
class Baselines:
    """What was learned from training activations."""

    mean: Tensor
    """Of the activations [width]."""
    weight: Tensor
    """[width, width]: from features of the logit lens to activations."""
    bias: Tensor

    def linear(self, features: Tensor) -> Tensor:
        """The activations [rows, width] that the linear lens rebuilds."""
        return features.to(self.weight.dtype) @ self.weight + self.bias


def activation_of(ask: Ask, batch: Batch) -> Tensor:
    """The activations [rows, width] of a batch, as they are in it or computed."""
    return wide(ask(batch, Lens.activation)["activation"])


def fit_baselines(ask: Ask, rows: Any, count: int, batch_size: int, world: World) -> Baselines:
    """From `count` rows, evenly spread over those for training. Collective; the same on every rank."""

    def compute(batch: Batch) -> dict[str, Tensor]:
        activation = activation_of(ask, batch)
        return {"activation": activation, **ask({**batch, "activation": activation}, Lens.logit_lens)}

    found = compute_values(SpreadRows(rows, count), compute, batch_size, world)
    return fit(found["features"], found["activation"], world.device)


def fit(features: Tensor, activations: Tensor, device: torch.device) -> Baselines:
    """The mean of activations [rows, width], and the ridge regression that gives them from features [rows, width]."""
    x, y = features.double(), activations.double()
    x_mean, mean = x.mean(0), y.mean(0)
    x = x - x_mean
    products = x.T @ x
    penalty = (_RIDGE * products.diagonal().mean()).clamp_min(1e-12)  # features may all be the same
    weight = torch.linalg.solve(products + penalty * torch.eye(len(products), dtype=x.dtype), x.T @ (y - mean))
    parts = (mean, weight, mean - x_mean @ weight)
    return Baselines(*(part.to(device, activations.dtype) for part in parts))


def value_fields(t_text: int) -> dict[str, tuple[Sequence[int], str]]:
    """What `Measuring` gives for a row, as fields of an array artifact."""
    text: tuple[Sequence[int], str] = ((t_text,), "int32")
    numbers: tuple[Sequence[int], str] = ((len(METHODS),), "float32")
    return {"error": numbers, "kl": numbers, "sampled": text, "greedy": text, "best": text, "same": ((), "bool")}


@dataclass(frozen=True)
class Measuring:
    """Measures rows of activations."""

    ask: Ask
    model: LanguageModel
    baselines: Baselines
    best_of: int

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """By row: `error` and `kl` of each method, the texts `sampled`, `greedy` and `best`, and whether the first is
        the `same` after it was text."""
        activation = activation_of(self.ask, batch)
        batch = {**batch, "activation": activation}
        sampled, greedy = self.ask(batch, Lens.explain), self.ask(batch, Lens.explain_greedily)
        best = self._best(batch, sampled)
        again, same = self._round_trip(sampled["tokens"])
        vectors = {
            "sampled": sampled["rebuilt"],
            "greedy": greedy["rebuilt"],
            "best_of_n": best["rebuilt"],
            "round_trip": again,
            "zero": torch.zeros_like(activation),
            "mean": self.baselines.mean.expand_as(activation),
            "shuffled": self.ask({**batch, **self._other(batch)}, Lens.explain)["rebuilt"],
            "linear_lens": self.baselines.linear(self.ask(batch, Lens.logit_lens)["features"]),
        }
        values = torch.stack([vectors[name].to(activation.dtype) for name in METHODS], 1)
        texts = {"sampled": sampled["tokens"], "greedy": greedy["tokens"], "best": best["tokens"]}
        return {
            "error": (activation[:, None] - values).square().sum(2),
            "kl": self.ask({**batch, "values": values}, Lens.behaviour)["kl"],
            **{name: tokens.int() for name, tokens in texts.items()},
            "same": same,
        }

    def _best(self, batch: Batch, first: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of several texts the one from which the activation is rebuilt best; `first` is one of them."""
        activation, found = batch["activation"], dict(first)
        for draw in range(1, self.best_of):
            other = self.ask({**batch, "ids": _ids(batch, draw)}, Lens.explain)
            is_better = _error(activation, other["rebuilt"]) < _error(activation, found["rebuilt"])
            for name in ("tokens", "rebuilt"):
                found[name] = torch.where(is_better[:, None], other[name], found[name])
        return found

    def _round_trip(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What is rebuilt from texts that were decoded and tokenized again, and which of them stayed the same."""
        given, longest = tokens.tolist(), _LONGEST * tokens.shape[1]
        if self.model.limit is not None:
            longest = min(longest, self.model.limit - int(self.model.bos is not None))
        read = [self.model.encode(self.model.spell(row))[:longest] for row in given]
        same = torch.tensor([row == other for row, other in zip(given, read, strict=True)], device=tokens.device)
        filled = [row or [self.model.pad] for row in read]
        text = torch.full((len(filled), max(map(len, filled))), self.model.pad, device=tokens.device)
        for number, row in enumerate(filled):
            text[number, : len(row)] = torch.tensor(row)
        lengths = torch.tensor(list(map(len, filled)), device=tokens.device)
        return self.ask({"text": text, "length": lengths}, Lens.read)["rebuilt"], same

    def _other(self, batch: Batch) -> dict[str, Tensor]:
        """The activation of another row, to be explained with noise of its own."""
        ids = _ids(batch, self.best_of)
        if "other" in batch:
            return {"activation": wide(batch["other"]), "ids": ids}
        texts = {"tokens": batch["other_tokens"], "position": batch["other_position"]}
        return {"activation": activation_of(self.ask, texts), "ids": ids}


def _ids(batch: Batch, draw: int) -> Tensor:
    """What keys the noise of a draw: draw 0 has that of validation, and none has that of an epoch of training."""
    return torch.stack([batch["ids"][:, 0] - draw, batch["ids"][:, 1]], 1)


def _error(activation: Tensor, rebuilt: Tensor) -> Tensor:
    return (activation - rebuilt.to(activation.dtype)).square().sum(1)


def results_of(values: Mapping[str, Tensor], variance: float) -> dict[str, Any]:
    """The metrics of all methods, from the values of all rows and the variance of their activations.

    `fve` is the fraction of variance explained; `kl_recovered` is 1 where the model's output is its own, 0 where it is
    that with the mean of training in the activation's place.
    """
    error, kl = (dict(zip(METHODS, values[name].double().unbind(1), strict=True)) for name in ("error", "kl"))
    methods = {
        name: {
            "fve": explained_variance(float(error[name].mean()), variance),
            "kl_recovered": 1 - float(kl[name].sum() / kl["mean"].sum()),
            "kl": float(kl[name].mean()),
            "relative_error": float((error[name] / error["zero"]).mean()),
        }
        for name in METHODS
    }
    return {"rows": len(values["same"]), "methods": methods, "same_tokens": float(values["same"].double().mean())}
