"""Which activations there are, the stage that computes all of them (`dump`), and who may train with them.

Sample i is one token of one text, and has another sample beside it. All of it is a function of the seed and of the
sample's number, so that activations that are dumped and activations that are computed with every batch are the same
ones.

What the stage leaves has a key: all that it follows from. Whoever trains with it compares the model with that first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import ArtifactKey, Batch, Bench, Dump, LanguageModel, Mixed, Trained, UserError, World, noise
from samestep.core.json_files import Json
from samestep.core.paths import expand_home
from samestep.core.rundir import RunDir
from samestep.models.residual_stream import ResidualStream
from samestep.recipes.lens.config import ActivationDumper, LensConfig
from samestep.recipes.lens.language_model import open_model
from samestep.recipes.lens.pretraining import PRETRAIN, WEIGHTS
from samestep.recipes.lens.texts import PARTS, TEST, TRAIN, VALIDATION
from samestep.recipes.lens.token_rows import CUT, PRETOKENIZE, ROWS, TOKENS, PartRows, open_tokens, tokens_key
from samestep.recipes.lens.token_rows import WEIGHTS as MIXED
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows
from samestep.train.record.run_record import run_path

_POSITION = noise.purpose("lens/position")
_OTHER = noise.purpose("lens/other")
DUMP = "dump"
"""The stage."""
ACTIVATIONS = "activations"
"""What it leaves."""


@dataclass(frozen=True)
class Region:
    """The samples of one part of the texts."""

    number: int
    """0 for training, 1 for validation, 2 for the test."""
    first_row: int
    rows: int
    """Rows of tokens."""
    samples: int
    weights: tuple[float, ...] = ()
    """Of the paths that the rows are from, in their order; none: every row has as many samples."""
    rows_of_paths: tuple[int, ...] = ()


def regions_of(config: ActivationDumper, tokens: Mapping[str, Json]) -> dict[str, Region]:
    """Every part; `tokens` says how many rows each has."""
    wanted = {TRAIN: config.num_samples, VALIDATION: config.validation_samples, TEST: config.test_samples}
    found, first = {}, 0
    for number, part in enumerate(PARTS):
        rows = int(tokens[part])
        mixture = tuple(tuple(tokens.get(name, ())) if part == TRAIN else () for name in (MIXED, ROWS))
        found[part] = Region(number, first, rows, (wanted[part] or rows) if rows else 0, *mixture)
        if found[part].weights and 0 in samples_of_paths(found[part]):
            raise UserError(
                f"Set activation_dumper.num_samples above {found[part].samples}, or weights that are closer together: "
                "one path of data.path has no activation."
            )
        first += rows
    return found


class SampleRows:
    """Samples of a region as rows: the tokens of a text, the position in it, and the same of another sample."""

    def __init__(self, tokens: ArrayRows, region: Region, config: ActivationDumper, seed: int) -> None:
        self._tokens, self._region, self._config, self._seed = tokens, region, config, seed

    def __len__(self) -> int:
        return self._region.samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """`tokens` [rows, columns] and `position`, and `other_tokens` and `other_position`."""
        own = self._texts(indices)
        others = self._texts(other_samples(indices, self._region, self._seed))
        return {**own, **{f"other_{name}": value for name, value in others.items()}}

    def origins(self) -> list[Path]:
        return self._tokens.origins()

    def _texts(self, samples: np.ndarray) -> dict[str, Tensor]:
        found = self._tokens.rows(rows_of_samples(samples, self._region))
        lengths = found["length"].numpy().astype(np.int64)
        positions = positions_of(samples, lengths, self._region, self._config, self._seed)
        return {"tokens": found["tokens"].long(), "position": torch.from_numpy(positions)}


def rows_of_samples(samples: np.ndarray, region: Region) -> np.ndarray:
    """The row of tokens of each sample: one after the other if there are as many samples, else evenly spread. With
    weights the samples are shared out by them, and each path's are its rows likewise."""
    rows, counts = np.array(region.rows_of_paths or (region.rows,)), samples_of_paths(region)
    ends = np.cumsum(counts)
    path = np.searchsorted(ends, samples, side="right")
    inside, count, own = samples - (ends - counts)[path], counts[path], rows[path]
    first = region.first_row + (np.cumsum(rows) - rows)[path]
    return first + np.where(count < own, inside * own // count, inside % own)


def samples_of_paths(region: Region) -> np.ndarray:
    """How many samples each path has."""
    weights = region.weights or (1.0,)
    ends = np.rint(np.cumsum(weights) / sum(weights) * region.samples).astype(np.int64)
    return np.diff(ends, prepend=0)


def positions_of(
    samples: np.ndarray, lengths: np.ndarray, region: Region, config: ActivationDumper, seed: int
) -> np.ndarray:
    """The position of each sample in its text, which has so many tokens."""
    if config.position == "midpoint":
        return lengths // 2
    first = np.minimum(config.min_position, lengths - 1)
    return first + noise.scale(noise.words(seed, _POSITION, region.number, samples), lengths - first)


def other_samples(samples: np.ndarray, region: Region, seed: int) -> np.ndarray:
    """For each sample another one of its region, drawn by the seed."""
    away = 1 + noise.scale(noise.words(seed, _OTHER, region.number, samples), region.samples - 1)
    return (samples + away) % region.samples


@dataclass(frozen=True)
class ActivationRows:
    """Rows for the feeds of a stage, by part."""

    train: Any
    validation: Any
    test: Any
    """May be empty."""

    @property
    def last(self) -> tuple[str, Any]:
        """The part that lenses are evaluated on: the test, or validation if there is no test."""
        return (TEST, self.test) if len(self.test) else (VALIDATION, self.validation)


def live_rows(tokens: ArrayRows, config: LensConfig) -> ActivationRows:
    """Texts, from which activations are computed with every batch."""
    dumper = config.activation_dumper
    regions = regions_of(dumper, tokens.inputs)
    return ActivationRows(*(SampleRows(tokens, regions[part], dumper, config.seed) for part in PARTS))


def frozen_model(bench: Bench) -> LanguageModel:
    """The language model, with the weights that the first stage trained if it is the built-in one. Collective."""
    source = dump_folder(bench.config)
    weights = trained_beside(source) if source else bench.artifact(WEIGHTS, stage=PRETRAIN)
    return open_model(bench.config, bench.world, weights)


def model_of(trained: Trained, world: World) -> LanguageModel:
    """The language model of a trained network. Collective."""
    config: LensConfig = trained.config
    if config.model_name is not None or trained.run is None:  # an exported network has the weights itself
        return open_model(config, world)
    source = dump_folder(config)
    weights = trained_beside(source) if source else trained.run.artifacts(PRETRAIN) / WEIGHTS
    return open_model(config, world, weights)


def dump_folder(config: LensConfig) -> Path | None:
    """The folder of the dump that a configuration names: that of a run, or a folder that holds one."""
    named = config.activation_dumper.source
    if named is None:
        return None
    path = expand_home(run_path(named, config.out))
    inside = RunDir(path).artifacts(DUMP)
    return (inside if inside.is_dir() else path).absolute()


def trained_beside(dump: Path) -> Path:
    """Where the run that wrote a dump has the weights of its built-in model."""
    return dump.parent / PRETRAIN / WEIGHTS


class ActivationReader(nn.Module):
    """The frozen model up to a layer: what leaves that block at one position of each row."""

    def __init__(self, model: nn.Module, layer: int) -> None:
        super().__init__()
        self.model, self._layer = model, layer
        self._stream = ResidualStream(model)
        self._stream.check_layer(layer)
        self.width = self._stream.width

    def forward(self, tokens: Tensor, position: Tensor) -> Tensor:
        """[rows, width]."""
        found = self._stream.leaving(tokens, self._layer)
        return found[torch.arange(len(found), device=found.device), position]


def build_dump(bench: Bench) -> Dump:
    """A and A' of all samples: those for training first."""
    config: LensConfig = bench.config
    language_model, dumper = frozen_model(bench), config.activation_dumper
    tokens = open_tokens(bench, language_model)
    parts = live_rows(tokens, config)
    sources = [part for part in (parts.train, parts.validation, parts.test) if len(part)]
    rows = Mixed(sources, [1.0] * len(sources))  # one after the other: nothing is drawn
    reader = ActivationReader(language_model.network(), config.layer_l)
    chosen = {"seed": config.seed, "positions": [dumper.position, dumper.min_position], "texts": tokens.inputs["texts"]}
    stored = {"model": language_model.name, "seq_len": dumper.seq_len, "dtype": dumper.dtype}
    counts = {TRAIN: len(parts.train), VALIDATION: len(parts.validation), TEST: len(parts.test)}
    key = activations_key(bench.world, config, language_model, {**chosen, **stored, **counts})
    model = bench.frozen(reader, name="model", shard=config.distributed.strategy == "fsdp")
    bench.screen.print(f"{len(rows):,} activations of {reader.width} numbers, of layer {config.layer_l}")

    def compute(batch: Batch) -> dict[str, Tensor]:
        texts = torch.cat([batch["tokens"], batch["other_tokens"]])
        found = model(texts, torch.cat([batch["position"], batch["other_position"]])).chunk(2)
        layer = torch.full_like(batch["position"], config.layer_l)
        own = {"tokens": batch["tokens"].int(), "position": batch["position"].int(), "layer": layer.short()}
        return {"A": found[0], "A_prime": found[1], **own}

    vector: tuple[Sequence[int], str] = ((reader.width,), dumper.dtype)
    fields: dict[str, tuple[Sequence[int], str]] = {
        "A": vector,
        "A_prime": vector,
        "tokens": ((dumper.seq_len,), "int32"),
        "position": ((), "int32"),
        "layer": ((), "int16"),
    }
    return Dump(bench.evaluation_feed(rows), compute, bench.array_artifact(ACTIVATIONS, len(rows), fields, key))


def activations_key(
    world: World, config: LensConfig, model: LanguageModel, more: Mapping[str, Any] | None = None
) -> ArtifactKey:
    """What whoever trains with activations must have too; `more` is what they follow from beside. Collective."""
    return ArtifactKey.make(
        world,
        "the activations",
        values={"layer": config.layer_l, "weight type": model.dtype, **CUT, **(more or {})},
        files=model.files,
        otherwise="dump them again in a new run, or name another dump",
    )


class DumpedRows(PartRows):
    """Activations of a part of a dump."""

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """A batch, as `Lens` takes it."""
        found = super().rows(indices)
        own = {"tokens": found["tokens"].long(), "position": found["position"].long()}
        return {"activation": found["A"], "other": found["A_prime"], **own}


def dumped_rows(rows: ArrayRows) -> ActivationRows:
    """Those of each part."""
    counts = [int(rows.inputs[part]) for part in PARTS]
    if sum(counts) != len(rows):
        raise UserError(
            f"Dump again: the key of the dump says {', '.join(map(str, counts))} activations for training, validation "
            f"and test, and it has {len(rows)}."
        )
    return ActivationRows(*(DumpedRows(rows, stop - count, stop) for count, stop in zip(counts, accumulate(counts))))


def dump_inputs(folder: Path) -> Mapping[str, Json]:
    """What a dump was computed with; refuses a folder without one, or with a part of one."""
    key = ArtifactKey.read(folder / ACTIVATIONS)
    if key is not None:
        return key.values
    if any(folder.glob(f"*{ACTIVATIONS}*")):
        raise UserError(
            f"Finish the dump in {folder} first, by resuming the run that writes it: it is only a part of one."
        )
    raise UserError(f"Set activation_dumper.source to a run that dumped activations; {folder} holds no dump.")


def open_activations(bench: Bench, model: LanguageModel) -> ActivationRows:
    """Computed with every batch, or of the dump of this run or the one that the configuration names, which is refused
    if it is of another model. Collective."""
    config: LensConfig = bench.config
    if config.activation_dumper.mode == "live":
        return live_rows(open_tokens(bench, model), config)
    folder, key = dump_folder(config), activations_key(bench.world, config, model)
    if folder is None:
        return dumped_rows(bench.read_array_artifact(ACTIVATIONS, DUMP, key))
    return dumped_rows(open_array_rows(folder / ACTIVATIONS, bench.world, bench.shared, key))


def rows_of(trained: Trained, model: LanguageModel, world: World) -> ActivationRows:
    """The activations of the run that a network was trained in. Collective."""
    config: LensConfig = trained.config
    if config.activation_dumper.mode == "live":
        key = tokens_key(world, config, model)
        return live_rows(trained.read_array_artifact(TOKENS, PRETOKENIZE, world, key), config)
    folder, key = dump_folder(config), activations_key(world, config, model)
    if folder is None:
        return dumped_rows(trained.read_array_artifact(ACTIVATIONS, DUMP, world, key))
    return dumped_rows(open_array_rows(folder / ACTIVATIONS, world, shared=True, key=key))


def training_samples(bench: Bench) -> int:
    """How many there are to train with, before any of them is read. Collective."""
    config: LensConfig = bench.config

    def count() -> int:
        if not bench.world.is_main:
            return 0
        if config.activation_dumper.mode == "live":
            tokens = ArrayRows(bench.artifact(TOKENS, stage=PRETOKENIZE))
            return regions_of(config.activation_dumper, tokens.inputs)[TRAIN].samples
        return int(dump_inputs(dump_folder(config) or bench.rundir.artifacts(DUMP))[TRAIN])

    return int(bench.world.run_on_all_ranks("counting the activations", count)[0])
