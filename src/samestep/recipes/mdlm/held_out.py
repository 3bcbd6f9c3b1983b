"""`samestep evaluate RUN`: the metrics of validation, on the part of its data that a run held back.

This is its test part (`data.test_fraction`), by which nothing was chosen; a run without one has its validation part.
Times, masks and widths of rows are those of validation, so on that part the figures are those of training.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Trained, UserError, World
from samestep.core.json_files import read_object
from samestep.data.order import VALIDATION_EPOCH
from samestep.data.split import PART_NOTES
from samestep.data.token_rows import TokenRows
from samestep.recipes.mdlm.corpus import Corpus, load
from samestep.recipes.mdlm.generating import open_network
from samestep.recipes.mdlm.objective import Objective, nll_metrics
from samestep.train.record.run_record import RunRecord
from samestep.train.trained.batch_inference import compute_rows
from samestep.train.trained.held_out import TEST, VALIDATION, run_with_its_data

CORPUS = "corpus.json"
"""The artifact that describes the data of a run."""


def measure_held_out(trained: Trained, dtype: str | None, world: World) -> dict[str, Any]:
    """The metrics of the test part, or of that for validation, on every rank."""
    run, config = run_with_its_data(trained), trained.config
    corpus = load(config.data)
    if read_object(run.artifacts(trained.stage) / CORPUS).get("sha256") != corpus.describe()["sha256"]:
        raise UserError(f"Bring back the data that {trained.source} was trained with: {corpus.name} has changed.")
    part, rows, size = VALIDATION, corpus.validation, corpus.validation_bytes_per_token
    if corpus.test is not None:
        part, rows, size = TEST, corpus.test, corpus.test_bytes_per_token
    record = RunRecord.read(run)
    batch = (record and record.global_batch) or config.rows_at_once
    with open_network(trained, world.device, dtype) as module:
        total, tokens = _measure(rows, batch, config.rows_at_once, world, _measuring(module, corpus, trained, world))
    metrics = nll_metrics(total / tokens, size)
    return {
        "part": part,
        "set": corpus.name,
        "rows": len(rows),
        "tokens": tokens,
        **metrics,
        "notes": [PART_NOTES[part]],
    }


def _measuring(
    module: nn.Module, corpus: Corpus, trained: Trained, world: World
) -> Callable[[TokenRows, np.ndarray, list[int]], dict[str, Tensor]]:
    """Gives the sum and the weight of each of some rows: those at some places of a list of numbers."""
    config = trained.config
    objective = Objective(config.objective, corpus.tokenizer.vocabulary, config.seed, corpus.sft)

    def measure(rows: TokenRows, numbers: np.ndarray, places: list[int]) -> dict[str, Tensor]:
        mine = numbers[places]
        batch = {name: value.to(world.device) for name, value in rows.rows(mine).items()}
        batch["ids"] = torch.tensor([[VALIDATION_EPOCH, number] for number in mine.tolist()], device=world.device)
        return {"sum": objective.measure(module, batch)["nll"], "weight": objective.measure_count(batch)["nll"]}

    return measure


def _measure(
    rows: TokenRows,
    global_batch: int,
    at_once: int,
    world: World,
    measure: Callable[[TokenRows, np.ndarray, list[int]], dict[str, Tensor]],
) -> tuple[float, int]:
    """The sums over all rows. A row is as wide as the longest of its global batch in validation; rows of one width are
    computed together."""
    every = np.arange(len(rows))
    parts = [every[start : start + global_batch] for start in range(0, len(rows), global_batch)]
    widths = np.concatenate([np.full(len(part), rows.of_step(0, part).width) for part in parts])
    total, weight = 0.0, 0
    for width in np.unique(widths).tolist():
        numbers = every[widths == width]
        compute = partial(measure, rows.of_width(width), numbers)
        found = compute_rows([width] * len(numbers), at_once, world, compute)
        total += float(found["sum"].double().sum())
        weight += int(found["weight"].sum())
    return total, weight
