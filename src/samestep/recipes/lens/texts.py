"""The texts, and which part each is of: training, validation or the test.

Documents of a file, a folder or Python's own help are split by their content. They are read again each time that they
are needed, piece by piece, so that memory does not grow with them.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, pairwise

import numpy as np

from samestep import UserError
from samestep.data.data_file import DataFile
from samestep.data.prepared.sources import Piece, TextSource, edge_of, read_pieces
from samestep.data.prepared.writing import TextCounts
from samestep.data.pydoc_topics import distinct, passages, pydoc_topics
from samestep.data.split import choose_parts
from samestep.data.text import plain_file
from samestep.recipes.lens.config import DataConfig

PARTS = TRAIN, VALIDATION, TEST = "train", "validation", "test"
LONGEST = 1 << 17
"""Characters that are made tokens at once."""
_COMES_AGAIN = -1
Origin = DataFile | np.ndarray


@dataclass(frozen=True)
class Texts:
    """All documents, each once."""

    config: DataConfig
    digests: np.ndarray
    """Of each document, the same for equal ones."""
    part_of: np.ndarray | None
    """The part of each document, by its number in `PARTS`, or `_COMES_AGAIN`; None: they are split by place."""
    edges: Sequence[int]
    """How many characters come before validation, and before the test, where documents are split by place."""

    def pieces(self) -> Iterator[tuple[int, int, str]]:
        """The numbers of the part and of the path, and a text; a long document is several texts."""
        seen = 0
        for piece in _read(self.config):
            size = len(piece.text)
            if self.part_of is None:
                part, cuts = 0, [0, *(min(max(edge - seen, 0), size) for edge in self.edges), size]
                seen += size
            else:
                part, cuts = self._part(piece), [0, size]
            for number, (start, stop) in enumerate(pairwise(cuts), part):
                if number != _COMES_AGAIN:
                    yield from ((number, piece.path, text) for text in _short(piece.text[start:stop]))

    def _part(self, piece: Piece) -> int:
        assert self.part_of is not None
        if piece.document >= len(self.part_of):
            raise UserError(f"Start again once nothing changes {self.config.name}; it changed while it was read.")
        return int(self.part_of[piece.document])

    def origins(self) -> list[Origin]:
        """Where they come from, for the comparison of a resumed run."""
        if self.config.path is None:
            return [np.frombuffer("\0".join(piece.text for piece in _read(self.config)).encode(), dtype=np.uint8)]
        source = _source(self.config, self.config.path)
        return list(source.records.origins()) if source.records else [DataFile(source.path)]

    def digest(self) -> str:
        """A hash of all texts and of how they are split."""
        split = np.array(self.edges) if self.part_of is None else self.part_of
        return hashlib.sha256(self.digests.tobytes() + split.tobytes()).hexdigest()


@lru_cache(maxsize=2)
def load_texts(config: DataConfig, seed: int) -> Texts:
    """The texts that a configuration names. They are read once, to split them."""
    counts, size = TextCounts(collect_characters=False), 0
    for piece in _read(config):
        size += len(piece.text)
        counts.add(piece.text)
        if piece.last:
            counts.end_document()
    if not size:
        raise UserError(f"Give texts with something in them; {config.name} has none.")
    digests = np.array(counts.digests, dtype=np.uint64)
    _, kept = np.unique(digests, return_index=True)
    shares = (config.validation_fraction, config.test_fraction)
    if len(kept) * min(share for share in shares if share) < 1:  # too few to keep whole ones: the end of the text
        edges = [round(size * (1 - sum(shares))), round(size * (1 - shares[1]))]
        return Texts(config, digests, None, edges)
    part_of = np.full(len(digests), _COMES_AGAIN)
    kept.sort()
    part_of[kept] = choose_parts(digests[kept].tolist(), *shares, seed)
    return Texts(config, digests, part_of, ())


def _read(config: DataConfig) -> Iterator[Piece]:
    if config.path is None:
        found = distinct(passage for _, topic in pydoc_topics() for passage in passages(topic))
        return (Piece(number, text, last=True) for number, text in enumerate(islice(found, config.limit)))
    return _joined(read_pieces([_source(config, config.path)], config.skip_invalid))


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Pieces of a document put together where they are short: the last line of a file is one of its own."""
    held: Piece | None = None
    for piece in pieces:
        if held and not held.last and len(held.text) + len(piece.text) <= LONGEST:
            piece = Piece(piece.document, held.text + piece.text, piece.last)
        elif held:
            yield held
        held = piece
    if held:
        yield held


def _source(config: DataConfig, path: str | Sequence[str]) -> TextSource:
    if isinstance(path, str) and config.is_text:
        return TextSource(plain_file(path).resolve(), path)
    records = config.records(path, config.limit)
    return TextSource(records.files[0], records.path, records)


def _short(text: str) -> Iterator[str]:
    """A text in pieces that fit into memory when they are tokens."""
    start = 0
    while start < len(text):
        piece = text[start : start + LONGEST]
        stop = len(piece) if start + len(piece) == len(text) else edge_of(piece)
        yield piece[:stop]
        start += stop
