"""The stage that turns texts into rows of tokens, written by all ranks; what was written before a kill stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import Batch, Bench, Dump
from samestep.core.records import read_object, write_json
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.language_model import LanguageModel, open_language_model
from samestep.recipes.lens.texts import Texts, load_texts
from samestep.train.artifacts.array_rows import ArrayRows

STAGE = "pretokenize"
ARTIFACT, KEY = "tokens", "texts.json"


class PieceRows:
    """Pieces of text as rows of tokens: a BOS token if the model has one, the piece, and padding."""

    def __init__(self, texts: Texts, pieces: Sequence[str], model: LanguageModel, columns: int) -> None:
        self._texts, self._pieces, self._model, self._columns = texts, pieces, model, columns

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """`tokens` [rows, columns] and `length`."""
        first = [] if self._model.bos is None else [self._model.bos]
        tokens = torch.full((len(indices), self._columns), self._model.pad)
        length = torch.zeros(len(indices), dtype=torch.int64)
        for row, index in enumerate(indices):
            found = [*first, *self._model.encode(self._pieces[int(index)])][: self._columns]
            tokens[row, : len(found)] = torch.tensor(found)
            length[row] = len(found)
        return {"tokens": tokens, "length": length}

    def origins(self) -> list[Any]:
        """Where the texts come from, for the comparison of a resumed run."""
        return list(self._texts.origins)


def texts_of(config: LensConfig, model: LanguageModel) -> Texts:
    """The texts of a run, in pieces that fill a row."""
    characters = model.characters_per_token * (config.activation_dumper.seq_len - (model.bos is not None))
    return load_texts(config.data, config.seed, max(1, characters))


def build_pretokenize(bench: Bench) -> Dump:
    """Tokens of all texts: those for training first."""
    config: LensConfig = bench.config
    model = open_language_model(config, bench.world)
    texts, columns = texts_of(config, model), config.activation_dumper.seq_len
    if bench.world.is_main:
        write_json(bench.artifact(KEY), key_of(config, model, texts))
    rows = PieceRows(texts, texts.pieces, model, columns)
    bench.screen.print(f"{len(texts.train):,} texts for training, {len(texts.validation):,} for validation")

    def compute(batch: Batch) -> dict[str, Tensor]:
        return {name: batch[name].int() for name in ("tokens", "length")}

    fields: dict[str, tuple[Sequence[int], str]] = {"tokens": ((columns,), "int32"), "length": ((), "int32")}
    return Dump(bench.evaluation_feed(rows), compute, bench.array_artifact(ARTIFACT, len(rows), fields))


def key_of(config: LensConfig, model: LanguageModel, texts: Texts) -> dict[str, Any]:
    """What the tokens depend on, and how many rows are for what."""
    return {
        "texts": texts.digest(),
        "tokenizer": model.tokenizer_digest,
        "seq_len": config.activation_dumper.seq_len,
        "train": len(texts.train),
        "validation": len(texts.validation),
    }


@dataclass(frozen=True)
class TokenRows:
    """What the stage left: rows of tokens, those for training first."""

    rows: ArrayRows
    key: dict[str, Any]

    @classmethod
    def open(cls, bench: Bench) -> "TokenRows":
        """Collective."""
        rows = bench.read_array_artifact(ARTIFACT, stage=STAGE)
        return cls(rows, bench.world.share(_read_key(bench.artifact(KEY, stage=STAGE), bench.world.is_main)))


def _read_key(path: Path, is_main: bool) -> Any:
    return read_object(path) if is_main else None
