"""Preparing running text: count it, give it to learn a vocabulary from, write it as tokens."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from samestep.core.errors import UserError
from samestep.data.prepared.sources import Piece, TextSource, read_pieces
from samestep.data.prepared.split import Region, Split, choose_split
from samestep.data.prepared.writing import ReportBytes, Shards, TextCounts, Writing

_BATCH = 1 << 20


@dataclass(frozen=True)
class Texts:
    """Running text: documents one after the other, each followed by the end token; training cuts it into rows."""

    sources: Sequence[TextSource]
    skip_invalid: bool
    kind: ClassVar[str] = "text"
    default_length: ClassVar[int] = 256

    def count(self, collect_characters: bool, done: ReportBytes) -> TextCounts:
        """Read all text once."""
        counts = TextCounts(collect_characters)
        for piece in read_pieces(self.sources, self.skip_invalid):
            counts.add(piece.text)
            if piece.last:
                counts.end_document()
            if piece.text:
                done(counts.bytes)
        if not counts.bytes:
            raise UserError("Give files with text in them; the named files are empty.")
        return counts

    def split(self, counts: TextCounts, validation: float, test: float, seed: int) -> Split:
        """By document if there are enough, else by position."""
        return choose_split(counts.digests, counts.bytes, validation, test, seed)

    def training_texts(self, split: Split) -> Iterator[str]:
        """The text of the training region."""
        return (part.text for region, part in self._parts(split) if region == "train")

    def write(self, writing: Writing, split: Split, done: ReportBytes) -> dict[str, Any]:
        """Tokenize and write all text."""
        shards = writing.shards(split.regions)
        sizes, ends = dict.fromkeys(shards, 0), dict.fromkeys(shards, 0)
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
        return {**writing.metadata(shards), **_text_metadata(writing, shards, sizes, ends)}

    def _parts(self, split: Split) -> Iterator[tuple[Region, Piece]]:
        for piece in read_pieces(self.sources, self.skip_invalid):
            yield from split.parts(piece)


def _text_metadata(
    writing: Writing, shards: dict[Region, Shards], sizes: dict[Region, int], ends: dict[Region, int]
) -> dict[str, Any]:
    length = writing.row_length
    if shards["train"].tokens < length or not sizes["validation"]:
        raise UserError(
            f"Give more text, or a smaller sequence_length than {length}; there are {shards['train'].tokens} tokens "
            f"for training and {sizes['validation']} bytes for validation."
        )
    test: dict[str, int] = {}
    if "test" in shards:
        if not sizes["test"]:
            raise UserError("Give more text, or a larger test_fraction: nothing is left for a test.")
        samples = -(-shards["test"].tokens // length)
        test = {"test_samples": samples, "test_documents": ends["test"], "test_bytes": sizes["test"]}
    return {
        **test,
        "train_samples": -(-shards["train"].tokens // length),
        "val_samples": -(-shards["validation"].tokens // length),
        "documents": sum(ends.values()),
        "val_documents": ends["validation"],
        "bytes": sum(sizes.values()),
        "val_bytes": sizes["validation"],
    }


def _batches(parts: Iterable[tuple[Region, Piece]]) -> Iterator[list[tuple[Region, Piece]]]:
    """Enough parts at a time to keep all cores busy, and few enough to fit in memory."""
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
