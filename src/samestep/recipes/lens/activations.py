"""The activations that a stage trains with: rows of a dump, or texts from which they are computed with every batch."""

from dataclasses import dataclass
from typing import Any

from samestep import Bench
from samestep.core.records import expected_content, read_object
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.dump import KEY as DUMP_KEY
from samestep.recipes.lens.dump import STAGE as DUMP
from samestep.recipes.lens.dump import dump_folder, read_dump
from samestep.recipes.lens.language_model import LanguageModel
from samestep.recipes.lens.pretokenize import KEY as TEXTS_KEY
from samestep.recipes.lens.pretokenize import STAGE as PRETOKENIZE
from samestep.recipes.lens.pretokenize import TokenRows
from samestep.recipes.lens.samples import TRAIN, VALIDATION, regions_of, sample_rows


@dataclass(frozen=True)
class ActivationRows:
    """Rows for the feeds of a stage."""

    train: Any
    validation: Any


def open_activations(bench: Bench, model: LanguageModel, weights: str) -> ActivationRows:
    """Of a dump, which must be of this model with weights of this hash, or computed with every batch. Collective."""
    config: LensConfig = bench.config
    parts: dict[str, Any]
    if config.activation_dumper.mode == "live":
        parts = dict(sample_rows(TokenRows.open(bench), config.activation_dumper, config.seed))
    else:
        parts = dict(read_dump(bench, model, weights).parts())
    return ActivationRows(parts[TRAIN], parts[VALIDATION])


def training_samples(bench: Bench) -> int:
    """How many there are to train with, before any of them is read. Collective."""
    config: LensConfig = bench.config

    def count() -> int:
        if not bench.world.is_main:
            return 0
        if config.activation_dumper.mode == "live":
            path = bench.artifact(TEXTS_KEY, stage=PRETOKENIZE)
            with expected_content(path):
                return regions_of(config.activation_dumper, read_object(path))[TRAIN].samples
        folder = dump_folder(config)
        path = folder / DUMP_KEY if folder else bench.artifact(DUMP_KEY, stage=DUMP)
        with expected_content(path):
            return int(read_object(path)[TRAIN])

    return int(bench.world.run_on_all_ranks("counting the activations", count)[0])
