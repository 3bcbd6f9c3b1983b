"""The activations that a trained lens is evaluated on, and values of all rows, shared out over the ranks."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import Batch, Trained, UserError, World
from samestep.core.records import read_object
from samestep.data.order import VALIDATION_EPOCH
from samestep.recipes.lens.activations import ActivationRows
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.dump import ARTIFACT as ACTIVATIONS
from samestep.recipes.lens.dump import STAGE as DUMP
from samestep.recipes.lens.dump import Activations, dump_folder, key_of, read_key, refuse_other, trained_beside
from samestep.recipes.lens.language_model import LanguageModel, open_language_model
from samestep.recipes.lens.pretokenize import ARTIFACT as TOKENS
from samestep.recipes.lens.pretokenize import KEY, TokenRows
from samestep.recipes.lens.pretokenize import STAGE as PRETOKENIZE
from samestep.recipes.lens.pretrain import STAGE as PRETRAIN
from samestep.recipes.lens.pretrain import WEIGHTS
from samestep.recipes.lens.samples import TRAIN, VALIDATION, sample_rows
from samestep.train.api.whole_set import gather_tensors
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows
from samestep.train.trained.batch_inference import my_batches

Compute = Callable[[Batch], Mapping[str, Tensor]]
"""A batch to values by name, one entry a row."""


class SpreadRows:
    """So many rows of a table, evenly spread over it; all of them if it has no more."""

    def __init__(self, table: Any, count: int) -> None:
        self._table, self._count = table, min(count, len(table))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """A batch, as the table has it."""
        found: dict[str, Tensor] = self._table.rows(np.asarray(indices) * len(self._table) // self._count)
        return found

    def origins(self) -> list[Path]:
        """What a resume compares."""
        found: list[Path] = self._table.origins()
        return found


def compute_rows(rows: SpreadRows, compute: Compute, batch_size: int, world: World) -> dict[str, Tensor]:
    """What `compute` gives for every row, on the CPU of every rank, in the order of the rows. Collective.

    Batches are the same at any number of ranks. A rank without one computes a row all the same: a sharded network must
    be called by all.
    """
    parts: list[dict[str, Tensor]] = []
    for batch in my_batches([1] * len(rows), batch_size, world):
        numbers = np.array(batch or [0])
        given = {name: value.to(world.device) for name, value in rows.rows(numbers).items()}
        given["ids"] = torch.tensor([(VALIDATION_EPOCH, number) for number in numbers], device=world.device)
        with torch.no_grad():
            found = compute(given)
        values = {**found, "number": torch.from_numpy(numbers)}
        parts.append({name: value[: len(batch)].cpu() for name, value in values.items()})
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    gathered = gather_tensors(world, joined)
    in_order = gathered.pop("number").argsort()
    return {name: value[in_order] for name, value in gathered.items()}


def rows_of(trained: Trained, model: LanguageModel, world: World) -> ActivationRows:
    """The activations of the run that a network was trained in. Collective."""
    config: LensConfig = trained.config
    folder = dump_folder(config)
    if config.activation_dumper.mode == "live":
        texts = _artifacts(trained, PRETOKENIZE)
        tokens = TokenRows(open_array_rows(texts / TOKENS, world, shared=True), read_object(texts / KEY))
        parts: dict[str, Any] = dict(sample_rows(tokens, config.activation_dumper, config.seed))
    else:
        folder = folder or _artifacts(trained, DUMP)
        rows: ArrayRows = open_array_rows(folder / ACTIVATIONS, world, shared=True)
        key = read_key(folder)
        refuse_other(folder, key, key_of(config, model), weights=None)  # those of the network are compared elsewhere
        parts = dict(Activations(rows, key).parts())
    return ActivationRows(parts[TRAIN], parts[VALIDATION])


def model_of(trained: Trained, world: World) -> LanguageModel:
    """The language model of a trained network. Collective."""
    config: LensConfig = trained.config
    if config.model_name is not None or trained.run is None:  # an exported network has the weights itself
        return open_language_model(config, world)
    source = dump_folder(config)
    weights = trained_beside(source) if source else _artifacts(trained, PRETRAIN) / WEIGHTS
    return open_language_model(config, world, weights)


def _artifacts(trained: Trained, stage: str) -> Path:
    if trained.run is None:
        raise UserError(f"Name the run, or a checkpoint in it, instead of {trained.source}: what it read is there.")
    return trained.run.artifacts(stage)
