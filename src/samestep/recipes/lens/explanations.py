"""Explanations beside the text that they are about, as records for files, tables and pages."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from samestep.core.records import Json
from samestep.recipes.lens.held_out import SpreadRows
from samestep.recipes.lens.language_model import LanguageModel
from samestep.recipes.lens.measuring import METHODS

_SIGNS = {"\n": "⏎", "\t": "⇥", "\r": "␍"}


def visible(text: str) -> str:
    """A text on one line, with a sign for what cannot be printed."""
    return "".join(_SIGNS.get(sign, sign if sign.isprintable() else "·") for sign in text)


def context_of(model: LanguageModel, tokens: Sequence[int], position: int) -> dict[str, str]:
    """The text `before` the token of an activation, the `token`, and the text `after` it, which the model had not
    read; without the token that begins a text, and without padding."""
    start = int(bool(tokens) and tokens[0] == model.bos and position > 0)
    stop = len(tokens)
    while stop > position + 1 and tokens[stop - 1] == model.pad:
        stop -= 1
    return {
        "before": model.decode(tokens[start:position]),
        "token": model.decode(tokens[position : position + 1]),
        "after": model.decode(tokens[position + 1 : stop]),
    }


def records_of(values: Mapping[str, Tensor], rows: SpreadRows, model: LanguageModel) -> list[dict[str, Json]]:
    """One record for each row: its context, its explanations, and how well they do."""
    given = rows.rows(np.arange(len(rows)))
    error, kl = (dict(zip(METHODS, values[name].double().unbind(1), strict=True)) for name in ("error", "kl"))
    square = error["zero"]
    found: list[dict[str, Json]] = []
    for row in range(len(rows)):
        tokens, position = given["tokens"][row].tolist(), int(given["position"][row])
        texts: dict[str, Any] = {
            name: model.decode(values[name][row].tolist()) for name in ("sampled", "greedy", "best")
        }
        metrics = {
            "error": float(error["sampled"][row] / square[row]),
            "greedy_error": float(error["greedy"][row] / square[row]),
            "best_error": float(error["best_of_n"][row] / square[row]),
            "kl": float(kl["sampled"][row]),
        }
        found.append({"row": row, "position": position, **context_of(model, tokens, position), **texts, **metrics})
    return found
