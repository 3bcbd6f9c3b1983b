"""Folders in the older layout: complete rows of int64 tokens in `train_data.npy` and `val_data.npy`, memory-mapped.

Beside them are `metadata.json` and `vocab.json` (or the tokenizer.json of a published model).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from samestep import UserError
from samestep.data.data_file import DataFile
from samestep.data.token_rows import TokenRows, token_batch
from samestep.data.tokenizer.subword import FILE
from samestep.data.tokenizer.vocabulary import TOKENIZER, Tokenizer, read_record
from samestep.recipes.mdlm.tokenizer import VOCAB, read_tokenizer

TRAIN, VALIDATION, METADATA = "train_data.npy", "val_data.npy", "metadata.json"
_CHUNK = 1 << 20
_DECODED = 1 << 20


class RowFile:
    """Rows of tokens in a .npy file, memory-mapped; pickled by name, so a worker process gets no copy."""

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            self._rows: np.ndarray = np.load(file, mmap_mode="r", allow_pickle=False)
        except FileNotFoundError:
            raise UserError(f"Make {file.parent} again; it has no {file.name}.") from None
        except (ValueError, OSError, EOFError) as problem:
            raise UserError(f"Make {file} again; it is not a complete .npy file: {str(problem).rstrip('.')}.") from None

    def __reduce__(self) -> tuple[type["RowFile"], tuple[Path]]:
        return RowFile, (self.file,)

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows, and tokens in each."""
        return self._rows.shape

    @property
    def dtype(self) -> np.dtype:
        return self._rows.dtype

    def __getitem__(self, where: slice | np.ndarray) -> np.ndarray:
        return np.array(self._rows[where])


class FixedRows(TokenRows):
    """Rows that the data already has, as in older folders; all their tokens count."""

    def __init__(self, tokens: RowFile, count: int) -> None:
        """The first `count` rows."""
        self.tokens, self._count = tokens, count
        self.length = self.width = tokens.shape[1]
        self.size = count * self.length

    def __len__(self) -> int:
        return self._count

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        tokens = self.tokens[np.asarray(indices, dtype=np.int64)][:, : self.width].astype(np.int64)
        return token_batch(tokens, np.full(len(tokens), self.width), np.zeros(len(tokens), dtype=np.int64))

    def origins(self) -> list[DataFile | np.ndarray]:
        return [DataFile(self.tokens.file)]


@dataclass(frozen=True)
class OlderFolder:
    """An older folder, opened and checked."""

    metadata: Mapping[str, Any]
    tokenizer: Tokenizer
    train: RowFile
    validation: RowFile

    def validation_bytes_per_token(self) -> float:
        """The mean bytes of text per token of the validation rows: of all rows, or of many evenly spread ones."""
        rows, length = self.validation.shape
        chosen = np.unique(np.linspace(0, rows - 1, max(1, min(rows, _DECODED // length))).round().astype(np.int64))
        eos = self.tokenizer.vocabulary.eos
        size = 0
        for row in self.validation[chosen]:
            documents = np.split(row, np.flatnonzero(row == eos))
            texts = (self.tokenizer.decode(part[part != eos].tolist()) for part in documents)
            size += sum(len(text.encode("utf-8")) for text in texts)
        return size / (len(chosen) * length)


def is_older(folder: Path) -> bool:
    """Whether a folder looks like the older layout."""
    return any((folder / name).is_file() for name in (TRAIN, VALIDATION))


def open_older(folder: Path) -> OlderFolder:
    """Open a folder; its rows are read once, a few at a time, to check that every token is in the vocabulary."""
    folder = folder.resolve()
    if not (folder / METADATA).is_file():
        raise UserError(f"Make {folder} again; it has no {METADATA}.")
    if not any((folder / name).is_file() for name in (VOCAB, FILE, TOKENIZER)):
        raise UserError(f"Put the vocabulary into {folder}; it has neither a {VOCAB} nor a {FILE}.")
    metadata = read_record(folder / METADATA)
    train, validation = RowFile(folder / TRAIN), RowFile(folder / VALIDATION)
    for rows in (train, validation):
        if rows.dtype.kind not in "iu" or len(rows.shape) != 2 or 0 in rows.shape:
            raise UserError(
                f"Make {rows.file} again as whole numbers of the shape [rows, tokens]; it holds {rows.dtype} of the "
                f"shape {list(rows.shape)}."
            )
    if train.shape[1] != validation.shape[1]:
        raise UserError(
            f"Make {folder} again; a row has {train.shape[1]} in {TRAIN} and {validation.shape[1]} in {VALIDATION}."
        )
    length = metadata.get("sequence_length", train.shape[1])
    if length != train.shape[1]:
        raise UserError(
            f"Make {folder} again; {METADATA} says sequence_length {length}, and rows have {train.shape[1]}."
        )
    tokenizer = read_tokenizer(folder)
    for rows in (train, validation):
        _check_tokens(rows, tokenizer)
    return OlderFolder(metadata, tokenizer, train, validation)


def _check_tokens(rows: RowFile, tokenizer: Tokenizer) -> None:
    size, mask = tokenizer.vocabulary.size, tokenizer.vocabulary.required_mask
    step = max(1, _CHUNK // rows.shape[1])
    for start in range(0, rows.shape[0], step):
        chunk = rows[slice(start, start + step)]
        least, most = int(chunk.min()), int(chunk.max())
        if least < 0 or most >= size:
            raise UserError(
                f"Make {rows.file} again, or the vocabulary beside it: tokens go from {least} to {most} near row "
                f"{start}, and the vocabulary has {size}."
            )
        if (chunk == mask).any():
            raise UserError(
                f"Make {rows.file} again without the token {mask}, or name another mask_token_id in {METADATA}: this "
                f"is the mask, which stands for masked tokens and is never learned."
            )
