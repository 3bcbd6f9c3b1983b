"""The stage that computes the activations of all samples, with all ranks, and who may train with them.

What it leaves is named by all that it depends on: the model and its weights, the layer, the tokenizer, the texts and
the positions. Whoever trains with it compares that first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Dump, UserError
from samestep.core.paths import expand_home
from samestep.core.records import read_object, write_atomically, write_json
from samestep.core.rundir import RunDir
from samestep.models.residual_stream import ResidualStream
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.language_model import LanguageModel, open_language_model
from samestep.recipes.lens.pretokenize import TokenRows
from samestep.recipes.lens.pretrain import STAGE as PRETRAIN
from samestep.recipes.lens.pretrain import WEIGHTS
from samestep.recipes.lens.samples import TRAIN, VALIDATION, JoinedRows, sample_rows
from samestep.train.artifacts.array_format import LAYOUT
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows
from samestep.train.learner.content_hash import content_hash
from samestep.train.record.run_record import run_path

STAGE = "dump"
ARTIFACT, KEY, HASH = "activations", "key.json", "model.hash"
"""The hash of the weights is a file of its own: `samestep verify` compares JSON files at several numbers of ranks, and
the weights of a model that was trained at another number differ in their last bits."""
_SAID = {"model": "another model", "layer": "another layer", "tokenizer": "another tokenizer"}


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


def frozen_model(bench: Bench) -> LanguageModel:
    """The language model, with the weights that the first stage trained if it is the built-in one. Collective."""
    return open_language_model(bench.config, bench.world, _weights(bench))


def _weights(bench: Bench) -> Path:
    """Where the built-in model's weights are: in this run, or beside the dump of another."""
    source = dump_folder(bench.config)
    return trained_beside(source) if source else bench.artifact(WEIGHTS, stage=PRETRAIN)


def trained_beside(dump: Path) -> Path:
    """Where the run that wrote a dump has the weights of its built-in model."""
    return dump.parent / PRETRAIN / WEIGHTS


def build_dump(bench: Bench) -> Dump:
    """A and A' of all samples: those for training first."""
    config: LensConfig = bench.config
    language_model, dumper = frozen_model(bench), config.activation_dumper
    tokens = TokenRows.open(bench)
    parts = sample_rows(tokens, dumper, config.seed)
    rows = JoinedRows(list(parts.values()))
    reader = ActivationReader(language_model.network(), config.layer_l)
    if bench.world.is_main:
        counts = {name: len(part) for name, part in parts.items()}
        write_json(bench.artifact(KEY), {**key_of(config, language_model), **_details(config, tokens), **counts})
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
    return Dump(bench.evaluation_feed(rows), compute, bench.array_artifact(ARTIFACT, len(rows), fields))


def key_of(config: LensConfig, model: LanguageModel) -> dict[str, Any]:
    """What whoever trains with a dump must have too, beside the weights."""
    return {"model": model.name, "layer": config.layer_l, "tokenizer": model.tokenizer_digest}


def _details(config: LensConfig, tokens: TokenRows) -> dict[str, Any]:
    """How the samples were chosen."""
    dumper = config.activation_dumper
    chosen = {"seed": config.seed, "positions": dumper.position, "min_position": dumper.min_position}
    return {**chosen, "texts": tokens.key["texts"], "seq_len": dumper.seq_len, "dtype": dumper.dtype}


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
        """What a resume compares."""
        return self._rows.origins()


def dump_folder(config: LensConfig) -> Path | None:
    """The folder of the dump that a configuration names: that of a run, or a folder that holds one."""
    named = config.activation_dumper.source
    if named is None:
        return None
    path = expand_home(run_path(named, config.out))
    inside = RunDir(path).artifacts(STAGE)
    return (inside if inside.is_dir() else path).absolute()


@dataclass(frozen=True)
class Activations:
    """A dump that fits the model, the layer and the tokenizer."""

    rows: ArrayRows
    key: dict[str, Any]

    def parts(self) -> dict[str, DumpedRows]:
        """Those for training and those for validation."""
        edge, validation = int(self.key[TRAIN]), int(self.key[VALIDATION])
        if edge + validation != len(self.rows):
            raise UserError(
                f"Dump again: the {KEY} of the dump says {edge} and {validation} activations for training and "
                f"validation, and it has {len(self.rows)}."
            )
        return {TRAIN: DumpedRows(self.rows, 0, edge), VALIDATION: DumpedRows(self.rows, edge, len(self.rows))}


def read_dump(bench: Bench, model: LanguageModel, weights: str) -> Activations:
    """The dump of this run, or the one that the configuration names; refused if it is of another model. `weights` is
    the hash of those of this model, on rank 0. Collective."""
    folder = dump_folder(bench.config) or bench.artifact(KEY, stage=STAGE).parent

    def check() -> Any:
        if not bench.world.is_main:
            return None
        key = read_key(folder)
        refuse_other(folder, key, key_of(bench.config, model), weights)
        return key

    key = bench.world.run_on_all_ranks(f"comparing the dump in {folder}", check)[0]
    return Activations(open_array_rows(folder / ARTIFACT, bench.world, bench.shared), key)


def read_key(folder: Path) -> dict[str, Any]:
    """What a dump depends on; refuses a folder without one, or with a part of one."""
    if not (folder / KEY).is_file():
        raise UserError(f"Set activation_dumper.source to a run that dumped activations; {folder} holds no dump.")
    if not (folder / ARTIFACT / LAYOUT).is_file() or not (folder / HASH).is_file():
        raise UserError(
            f"Finish the dump in {folder} first, by resuming the run that writes it: it is only a part of one."
        )
    return read_object(folder / KEY)


def refuse_other(folder: Path, key: dict[str, Any], wanted: dict[str, Any], weights: str | None) -> None:
    """Refuse a dump of another model, layer or tokenizer; without a hash of the weights, they are not compared."""
    for name, value in wanted.items():
        if key.get(name) != value and name != "model":
            shown = f" ({key.get(name)} instead of {value})" if name == "layer" else ""
            raise UserError(f"Dump again, or name another dump: that in {folder} is of {_SAID[name]}{shown}.")
    if weights is not None and (folder / HASH).read_text().strip() != weights:
        raise UserError(
            f"Dump again, or name another dump: that in {folder} is of another model ({key.get('model')} with other "
            f"weights than {wanted['model']} has now)."
        )
