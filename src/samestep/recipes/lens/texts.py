"""The texts, the stage that turns them into rows of tokens, and the stage that trains the built-in model on them.

Documents of a file, a folder or Python's own help are split for validation, then cut into pieces. A piece becomes one
row of tokens. How many there are follows from the characters alone, so that every rank knows it before a single token
is made.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from samestep import ArtifactKey, Batch, Bench, CausalTransformer, Dump, Fit, LanguageModel, UserError, World
from samestep.data.data_file import DataFile
from samestep.data.pydoc_topics import BUILT_IN_TEXT, distinct, passages, pydoc_topics
from samestep.data.split import split_records
from samestep.data.text import documents, plain_file
from samestep.kit.language_model import first_tokens
from samestep.recipes.lens.config import DataConfig, LensConfig
from samestep.recipes.lens.language_model import LANGUAGE_MODEL, open_model
from samestep.train.learner.frozen import write_copy

PRETOKENIZE, PRETRAIN = "pretokenize", "pretrain"
"""The stages."""
TOKENS, WEIGHTS = "tokens", "model.safetensors"
"""What they leave."""
TRAIN, VALIDATION = "train", "validation"
SHORTEST = 8
"""Characters of a piece at least; what is left over at the end of a document may have fewer, and is left out."""
Origin = DataFile | np.ndarray


@dataclass(frozen=True)
class Texts:
    """Pieces of text, each once, in two parts that have no document and no piece in common."""

    train: Sequence[str]
    validation: Sequence[str]
    origins: Sequence[Origin]
    """Where they come from, for the comparison of a resumed run."""

    @property
    def pieces(self) -> list[str]:
        """All of them, those for training first."""
        return [*self.train, *self.validation]

    def digest(self) -> str:
        """A hash of all pieces."""
        found = hashlib.sha256()
        for piece in self.pieces:
            found.update(piece.encode() + b"\0")
        return found.hexdigest()


@lru_cache(maxsize=2)
def load_texts(config: DataConfig, seed: int, characters: int) -> Texts:
    """The texts that a configuration names, in pieces of at most so many characters."""
    read, origins = _read(config)
    texts = list(dict.fromkeys(read))[: config.limit]
    if len(texts) * config.validation_fraction < 1:  # too few to keep a whole one: the end of the text
        pieces = [piece for text in texts for piece in cut(text, characters)]
        edge = max(0, len(pieces) - max(1, round(len(pieces) * config.validation_fraction)))
        train, validation = pieces[:edge], pieces[edge:]
    else:
        parts = split_records(texts, texts, validation=config.validation_fraction, seed=seed)
        train, validation = ([piece for text in part for piece in cut(text, characters)] for part in parts[:2])
    train = list(dict.fromkeys(train))
    known = set(train)
    validation = [piece for piece in dict.fromkeys(validation) if piece not in known]
    if min(len(train), len(validation)) < 2:
        raise UserError(
            f"Give more text, or set activation_dumper.seq_len lower; {config.path or BUILT_IN_TEXT} gives "
            f"{len(train)} rows for training and {len(validation)} for validation, and both need 2."
        )
    return Texts(train, validation, origins)


def cut(document: str, characters: int) -> Iterator[str]:
    """A document in pieces that end where a word does, if one does."""
    start = 0
    while start < len(document):
        stop = start + characters
        if stop < len(document):
            space = max(document.rfind(" ", start + 1, stop + 1), document.rfind("\n", start + 1, stop + 1))
            stop = space if space > start else stop
        if len(document[start:stop].strip()) >= SHORTEST:
            yield document[start:stop]
        start = stop


def _read(config: DataConfig) -> tuple[list[str], Sequence[Origin]]:
    if config.path is None:
        found = list(distinct(passage for _, topic in pydoc_topics() for passage in passages(topic)))
        content = np.frombuffer("\0".join(found).encode(), dtype=np.uint8)
        return found, [content]
    if config.path.lower().endswith(".txt"):
        file = plain_file(config.path)
        return [_plain_text(file)], [DataFile(file)]
    records = config.records(config.path, config.limit)
    return list(documents(records, config.skip_invalid)), records.origins()


def _plain_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"Save {file} as UTF-8; it is not.") from None


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
        first = first_tokens(self._model)
        tokens = torch.full((len(indices), self._columns), self._model.pad)
        length = torch.zeros(len(indices), dtype=torch.int64)
        for row, index in enumerate(indices):
            found = [*first, *self._model.encode(self._pieces[int(index)])][: self._columns]
            tokens[row, : len(found)] = torch.tensor(found)
            length[row] = len(found)
        return {"tokens": tokens, "length": length}

    def origins(self) -> list[Origin]:
        return list(self._texts.origins)


def texts_of(config: LensConfig, model: LanguageModel) -> Texts:
    """The texts of a run, in pieces that fill a row."""
    characters = model.characters_per_token * (config.activation_dumper.seq_len - (model.bos is not None))
    return load_texts(config.data, config.seed, max(1, characters))


def build_pretokenize(bench: Bench) -> Dump:
    """Tokens of all texts: those for training first."""
    config: LensConfig = bench.config
    model = open_model(config, bench.world)
    texts, columns = texts_of(config, model), config.activation_dumper.seq_len
    counts = {TRAIN: len(texts.train), VALIDATION: len(texts.validation)}
    key = tokens_key(bench.world, config, model, {"texts": texts.digest(), **counts})
    rows = PieceRows(texts, texts.pieces, model, columns)
    bench.screen.print(f"{len(texts.train):,} texts for training, {len(texts.validation):,} for validation")

    def compute(batch: Batch) -> dict[str, Tensor]:
        return {name: batch[name].int() for name in ("tokens", "length")}

    fields: dict[str, tuple[Sequence[int], str]] = {"tokens": ((columns,), "int32"), "length": ((), "int32")}
    return Dump(bench.evaluation_feed(rows), compute, bench.array_artifact(TOKENS, len(rows), fields, key))


def tokens_key(
    world: World, config: LensConfig, model: LanguageModel, more: Mapping[str, Any] | None = None
) -> ArtifactKey:
    """What tokens follow from beside the texts, which are `more`: later stages do not read them again. Collective."""
    return ArtifactKey.make(
        world,
        "the tokens of the texts",
        values={"seq_len": config.activation_dumper.seq_len, **(more or {})},
        files={"tokenizer": model.files.get("tokenizer", {})},
        otherwise="start a new run",
    )


def build_pretrain(bench: Bench) -> Fit:
    """The model, fitted to the next byte of each text."""
    config: LensConfig = bench.config
    learner = bench.learner(lambda: CausalTransformer(config.pretrain.network), name=LANGUAGE_MODEL)
    model = open_model(config, bench.world)
    texts, columns = texts_of(config, model), config.activation_dumper.seq_len
    train, validation = (PieceRows(texts, part, model, columns) for part in (texts.train, texts.validation))

    def count(batch: Batch) -> dict[str, Tensor]:
        return {"nats": batch["length"] - 1}

    held_out = bench.evaluation_feed(validation, count=count)
    return Fit(learner, bench.feed(train, count=count), next_token_nats, validation=held_out)


def next_token_nats(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """How unlikely the tokens of each row are, in nats, after the first."""
    tokens = batch["tokens"]
    logits = network(tokens[:, :-1])
    nats = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    is_real = torch.arange(1, tokens.shape[1], device=tokens.device) < batch["length"][:, None]
    return {"nats": torch.where(is_real, nats.view_as(is_real), 0.0).sum(1)}


def keep_weights(task: Fit, bench: Bench) -> None:
    """Write the trained model for later stages. Collective."""
    write_copy(bench.artifact(WEIGHTS), task.learner.weights(), bench.world)
