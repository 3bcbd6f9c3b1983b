"""How well activations survive: what a lens and the baselines rebuild of each, and what the model makes of that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samestep import Batch
from samestep.recipes.lens.baselines import Ask, Baselines, activation_of
from samestep.recipes.lens.distributions import wide
from samestep.recipes.lens.language_model import LanguageModel

LENS = ("sampled", "greedy", "best_of_n", "round_trip")
BASELINES = ("zero", "mean", "shuffled", "linear_lens")
METHODS = (*LENS, *BASELINES)
_LONGEST = 4
"""A text that is tokenized again may have so many times as many tokens; what is beyond is cut off."""


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
        sampled, greedy = self.ask(batch, "explain"), self.ask(batch, "greedy")
        best = self._best(batch, sampled)
        again, same = self._round_trip(sampled["tokens"])
        vectors = {
            "sampled": sampled["rebuilt"],
            "greedy": greedy["rebuilt"],
            "best_of_n": best["rebuilt"],
            "round_trip": again,
            "zero": torch.zeros_like(activation),
            "mean": self.baselines.mean.expand_as(activation),
            "shuffled": self.ask({**batch, **self._other(batch)}, "explain")["rebuilt"],
            "linear_lens": self.baselines.linear(self.ask(batch, "logit_lens")["features"]),
        }
        values = torch.stack([vectors[name].to(activation.dtype) for name in METHODS], 1)
        texts = {"sampled": sampled["tokens"], "greedy": greedy["tokens"], "best": best["tokens"]}
        return {
            "error": (activation[:, None] - values).square().sum(2),
            "kl": self.ask({**batch, "values": values}, "behaviour")["kl"],
            **{name: tokens.int() for name, tokens in texts.items()},
            "same": same,
        }

    def _best(self, batch: Batch, first: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of several texts the one from which the activation is rebuilt best; `first` is one of them."""
        activation, found = batch["activation"], dict(first)
        for draw in range(1, self.best_of):
            other = self.ask({**batch, "ids": _ids(batch, draw)}, "explain")
            is_better = _error(activation, other["rebuilt"]) < _error(activation, found["rebuilt"])
            for name in ("tokens", "rebuilt"):
                found[name] = torch.where(is_better[:, None], other[name], found[name])
        return found

    def _round_trip(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """What is rebuilt from texts that were decoded and tokenized again, and which of them stayed the same."""
        given, longest = tokens.tolist(), _LONGEST * tokens.shape[1]
        if self.model.most_tokens is not None:
            longest = min(longest, self.model.most_tokens - int(self.model.bos is not None))
        read = [self.model.encode(self.model.decode(row))[:longest] for row in given]
        same = torch.tensor([row == other for row, other in zip(given, read, strict=True)], device=tokens.device)
        filled = [row or [self.model.pad] for row in read]
        text = torch.full((len(filled), max(map(len, filled))), self.model.pad, device=tokens.device)
        for number, row in enumerate(filled):
            text[number, : len(row)] = torch.tensor(row)
        lengths = torch.tensor(list(map(len, filled)), device=tokens.device)
        return self.ask({"text": text, "length": lengths}, "read")["rebuilt"], same

    def _other(self, batch: Batch) -> dict[str, Tensor]:
        """The activation of another row, to be explained with noise of its own."""
        ids = _ids(batch, self.best_of)
        if "other" in batch:
            return {"activation": wide(batch["other"]), "ids": ids}
        texts = {"tokens": batch["other_tokens"], "position": batch["other_position"]}
        return {"activation": wide(self.ask(texts, "activation")["activation"]), "ids": ids}


def _ids(batch: Batch, draw: int) -> Tensor:
    """What keys the noise of a draw: draw 0 has that of validation, and none has that of an epoch of training."""
    return torch.stack([batch["ids"][:, 0] - draw, batch["ids"][:, 1]], 1)


def _error(activation: Tensor, rebuilt: Tensor) -> Tensor:
    return (activation - rebuilt.to(activation.dtype)).square().sum(1)


def results_of(values: Mapping[str, Tensor]) -> dict[str, Any]:
    """The metrics of all methods, from the values of all rows.

    `fve` is the fraction of variance explained, around the mean of training; `kl_recovered` likewise: 1 where the
    model's output is its own, 0 where it is that with the mean.
    """
    error, kl = (dict(zip(METHODS, values[name].double().unbind(1), strict=True)) for name in ("error", "kl"))
    methods = {
        name: {
            "fve": 1 - float(error[name].sum() / error["mean"].sum()),
            "kl_recovered": 1 - float(kl[name].sum() / kl["mean"].sum()),
            "kl": float(kl[name].mean()),
            "relative_error": float((error[name] / error["zero"]).mean()),
        }
        for name in METHODS
    }
    return {"rows": len(values["same"]), "methods": methods, "same_tokens": float(values["same"].double().mean())}
