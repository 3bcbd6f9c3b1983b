"""Which activations there are, the stage that computes all of them (`dump`), and who may train with them.

Sample i is one token of one text, and has another sample beside it. All of it is a function of the seed and of the
sample's number, so that activations that are dumped and activations that are computed with every batch are the same
ones.

What the stage leaves is named by all that it depends on: the model and its weights, the layer, the tokenizer, the texts
and the positions. Whoever trains with it compares that first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Dump, LanguageModel, Mixed, Trained, UserError, World, noise
from samestep.core.paths import expand_home
from samestep.core.records import expected_content, read_object, write_atomically, write_json
from samestep.core.rundir import RunDir
from samestep.models.residual_stream import ResidualStream
from samestep.recipes.lens.config import ActivationDumper, LensConfig
from samestep.recipes.lens.language_model import open_model
from samestep.recipes.lens.texts import PRETOKENIZE, PRETRAIN, TEXTS_KEY, TOKENS, TRAIN, VALIDATION, WEIGHTS, TokenRows
from samestep.train.artifacts.array_format import LAYOUT
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows
from samestep.train.learner.content_hash import content_hash
from samestep.train.record.run_record import run_path

_POSITION = noise.purpose("lens/position")
_OTHER = noise.purpose("lens/other")
DUMP = "dump"
"""The stage."""
ACTIVATIONS, DUMP_KEY, HASH = "activations", "key.json", "model.hash"
"""What it leaves. The hash of the weights is a file of its own: `samestep verify` compares JSON files at several
numbers of ranks, and the weights of a model that was trained at another number differ in their last bits."""


@dataclass(frozen=True)
class Region:
    """The samples of one part of the texts."""

    number: int
    """0 for training, 1 for validation."""
    first_text: int
    texts: int
    samples: int


def regions_of(config: ActivationDumper, key: dict[str, Any]) -> dict[str, Region]:
    """Both parts; `key` says how many texts each has."""
    train, validation = int(key[TRAIN]), int(key[VALIDATION])
    return {
        TRAIN: Region(0, 0, train, config.num_samples or train),
        VALIDATION: Region(1, train, validation, config.validation_samples or validation),
    }


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
        found = self._tokens.rows(self._region.first_text + samples % self._region.texts)
        lengths = found["length"].numpy().astype(np.int64)
        positions = positions_of(samples, lengths, self._region, self._config, self._seed)
        return {"tokens": found["tokens"].long(), "position": torch.from_numpy(positions)}


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
    """Rows for the feeds of a stage."""

    train: Any
    validation: Any


def live_rows(tokens: TokenRows, config: LensConfig) -> ActivationRows:
    """Texts, from which activations are computed with every batch."""
    dumper = config.activation_dumper
    regions = regions_of(dumper, tokens.key)
    return ActivationRows(
        *(SampleRows(tokens.rows, regions[name], dumper, config.seed) for name in (TRAIN, VALIDATION))
    )


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
    weights = trained_beside(source) if source else _artifacts(trained, PRETRAIN) / WEIGHTS
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


def _artifacts(trained: Trained, stage: str) -> Path:
    if trained.run is None:
        raise UserError(f"Name the run, or a checkpoint in it, instead of {trained.source}: what it read is there.")
    return trained.run.artifacts(stage)


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
    tokens = TokenRows.open(bench)
    parts = live_rows(tokens, config)
    rows = Mixed([parts.train, parts.validation], [1.0, 1.0])  # one after the other: nothing is drawn
    reader = ActivationReader(language_model.network(), config.layer_l)
    if bench.world.is_main:
        chosen = {"seed": config.seed, "positions": dumper.position, "min_position": dumper.min_position}
        stored = {"texts": tokens.key["texts"], "seq_len": dumper.seq_len, "dtype": dumper.dtype}
        counts = {TRAIN: len(parts.train), VALIDATION: len(parts.validation)}
        write_json(bench.artifact(DUMP_KEY), {**key_of(config, language_model), **chosen, **stored, **counts})
        write_atomically(bench.artifact(HASH), weights_hash(reader.model))
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
    return Dump(bench.evaluation_feed(rows), compute, bench.array_artifact(ACTIVATIONS, len(rows), fields))


def key_of(config: LensConfig, model: LanguageModel) -> dict[str, Any]:
    """What whoever trains with a dump must have too, beside the weights."""
    return {"model": model.name, "layer": config.layer_l, "tokenizer": model.tokenizer_digest}


def weights_hash(model: nn.Module) -> str:
    """A hash of a model's weights, before they are put on a device."""
    return content_hash(model.state_dict())


class DumpedRows:
    """Activations of a dump from `start` to `stop`, as rows for a feed."""

    def __init__(self, rows: ArrayRows, start: int, stop: int) -> None:
        self._rows, self._start, self._stop = rows, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """A batch, as `Lens` takes it."""
        found = self._rows.rows(np.asarray(indices) + self._start)
        own = {"tokens": found["tokens"].long(), "position": found["position"].long()}
        return {"activation": found["A"], "other": found["A_prime"], **own}

    def origins(self) -> list[Path]:
        return self._rows.origins()


def dumped_rows(rows: ArrayRows, key: dict[str, Any]) -> ActivationRows:
    """Those for training and those for validation."""
    edge, validation = int(key[TRAIN]), int(key[VALIDATION])
    if edge + validation != len(rows):
        raise UserError(
            f"Dump again: the {DUMP_KEY} of the dump says {edge} and {validation} activations for training and "
            f"validation, and it has {len(rows)}."
        )
    return ActivationRows(DumpedRows(rows, 0, edge), DumpedRows(rows, edge, len(rows)))


def read_key(folder: Path) -> dict[str, Any]:
    """What a dump depends on; refuses a folder without one, or with a part of one."""
    if not (folder / DUMP_KEY).is_file():
        raise UserError(f"Set activation_dumper.source to a run that dumped activations; {folder} holds no dump.")
    if not (folder / ACTIVATIONS / LAYOUT).is_file() or not (folder / HASH).is_file():
        raise UserError(
            f"Finish the dump in {folder} first, by resuming the run that writes it: it is only a part of one."
        )
    return read_object(folder / DUMP_KEY)


def refuse_other(folder: Path, key: dict[str, Any], wanted: dict[str, Any], weights: str | None) -> None:
    """Refuse a dump of another model, layer or tokenizer; without a hash of the weights, they are not compared."""
    for name, value in wanted.items():
        if key.get(name) != value and name != "model":
            shown = f" ({key.get(name)} instead of {value})" if name == "layer" else ""
            raise UserError(f"Dump again, or name another dump: that in {folder} is of another {name}{shown}.")
    if weights is not None and (folder / HASH).read_text().strip() != weights:
        raise UserError(
            f"Dump again, or name another dump: that in {folder} is of another model ({key.get('model')} with other "
            f"weights than {wanted['model']} has now)."
        )


def open_activations(bench: Bench, model: LanguageModel, weights: str) -> ActivationRows:
    """Computed with every batch, or of the dump of this run or the one that the configuration names, which is refused
    if it is of another model. `weights` is the hash of those of this model, on rank 0. Collective."""
    if bench.config.activation_dumper.mode == "live":
        return live_rows(TokenRows.open(bench), bench.config)
    folder = dump_folder(bench.config) or bench.artifact(DUMP_KEY, stage=DUMP).parent

    def check() -> Any:
        if not bench.world.is_main:
            return None
        key = read_key(folder)
        refuse_other(folder, key, key_of(bench.config, model), weights)
        return key

    key = bench.world.run_on_all_ranks(f"comparing the dump in {folder}", check)[0]
    return dumped_rows(open_array_rows(folder / ACTIVATIONS, bench.world, bench.shared), key)


def rows_of(trained: Trained, model: LanguageModel, world: World) -> ActivationRows:
    """The activations of the run that a network was trained in. Collective."""
    config: LensConfig = trained.config
    if config.activation_dumper.mode == "live":
        texts = _artifacts(trained, PRETOKENIZE)
        rows = open_array_rows(texts / TOKENS, world, shared=True)
        return live_rows(TokenRows(rows, read_object(texts / TEXTS_KEY)), config)
    folder = dump_folder(config) or _artifacts(trained, DUMP)
    rows = open_array_rows(folder / ACTIVATIONS, world, shared=True)
    key = read_key(folder)
    refuse_other(folder, key, key_of(config, model), weights=None)  # those of the network are compared elsewhere
    return dumped_rows(rows, key)


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
