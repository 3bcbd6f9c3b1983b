"""Preparing running text: counted, given to learn a vocabulary from, written as tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samestep.core.errors import UserError
from samestep.data.prepared.sources import Piece, TextSource, read_pieces
from samestep.data.prepared.split import REGIONS, Region, Split, choose_split
from samestep.data.prepared.writing import Count, Done, Shards, Writing

_BATCH = 1 << 20


@dataclass(frozen=True)
class Texts:
    """Running text: documents one behind the other, each closed by the end token, cut into rows when it is read."""

    sources: Sequence[TextSource]
    field: str
    kind: ClassVar[str] = "text"
    usual_length: ClassVar[int] = 256

    def count(self, spell: bool, done: Done) -> Count:
        """Read all text once."""
        count = Count(spell)
        for piece in read_pieces(self.sources, self.field):
            count.see(piece.text)
            count.documents += piece.last
            if piece.text:
                done(count.bytes)
        if not count.bytes:
            raise UserError("Give files with text in them; there is none in those that were named.")
        return count

    def split(self, count: Count, fraction: float, seed: int) -> Split:
        """Whole documents where there are enough, else by position."""
        return choose_split(count.documents, count.bytes, fraction, seed)

    def training_texts(self, split: Split) -> Iterator[str]:
        """The text of the training region."""
        return (part.text for region, part in self._parts(split) if region == "train")

    def write(self, writing: Writing, split: Split, done: Done) -> dict[str, Any]:
        """Tokenize and write all text."""
        shards, sizes, ends = writing.shards(), dict.fromkeys(REGIONS, 0), dict.fromkeys(REGIONS, 0)
        eos = np.array([writing.tokenizer.vocabulary.eos], dtype=writing.dtype)
        for batch in _batches(self._parts(split)):
            encoded = writing.tokenizer.encode_all([part.text for _, part in batch])
            for (region, part), tokens in zip(batch, encoded):
                writing.check(tokens)
                shards[region].append(tokens)
                sizes[region] += len(part.text.encode("utf-8"))
                if part.last:
                    shards[region].append(eos)
                    ends[region] += 1
            done(sum(sizes.values()))
        return {**writing.facts(shards), **_text_facts(writing, shards, sizes, ends)}

    def _parts(self, split: Split) -> Iterator[tuple[Region, Piece]]:
        for piece in read_pieces(self.sources, self.field):
            yield from split.parts(piece)


def _text_facts(
    writing: Writing, shards: dict[Region, Shards], sizes: dict[Region, int], ends: dict[Region, int]
) -> dict[str, Any]:
    length = writing.row_length
    if shards["train"].tokens < length or not sizes["validation"]:
        raise UserError(
            f"Give more text, or a smaller sequence_length than {length}; there are {shards['train'].tokens} tokens "
            f"for training and {sizes['validation']} bytes for validation."
        )
    return {
        "train_samples": -(-shards["train"].tokens // length),
        "val_samples": -(-shards["validation"].tokens // length),
        "documents": sum(ends.values()),
        "val_documents": ends["validation"],
        "bytes": sum(sizes.values()),
        "val_bytes": sizes["validation"],
    }


def _batches(parts: Iterable[tuple[Region, Piece]]) -> Iterator[list[tuple[Region, Piece]]]:
    """Enough parts at a time to keep all cores busy, and few enough to hold."""
    batch: list[tuple[Region, Piece]] = []
    size = 0
    for region, part in parts:
        batch.append((region, part))
        size += len(part.text)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
