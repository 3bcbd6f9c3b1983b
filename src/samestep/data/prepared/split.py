"""Which part of the text is for validation, decided before anything is cut into rows."""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.permutation import permute
from samestep.data.prepared.sources import Piece

Region = Literal["train", "validation"]
REGIONS: tuple[Region, Region] = ("train", "validation")
CHOICE = noise.purpose("data.validation")
CHANGED = "Prepare again once nothing changes the text; it changed while it was read."
_BLOCK = 1 << 16


class ByDocument:
    """A random share of the documents; no document is cut."""

    name = "documents"

    def __init__(self, documents: int, fraction: float, seed: int) -> None:
        self.documents, self.seed = documents, seed
        self.chosen = max(1, round(documents * fraction))
        if self.chosen >= documents:
            raise UserError(
                f"Give more documents, or a smaller validation_fraction than {fraction}; there are {documents}, which "
                f"leaves none to train on."
            )
        self._block, self._flags = -1, np.zeros(0, dtype=bool)

    def region(self, document: int) -> Region:
        if document >= self.documents:
            raise UserError(CHANGED)
        block, place = divmod(document, _BLOCK)
        if block != self._block:  # computed for many at a time; only one block is kept
            numbers = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, self.documents))
            self._block, self._flags = block, permute(numbers, 0, self.documents, self.seed, CHOICE) < self.chosen
        return "validation" if self._flags[place] else "train"

    def parts(self, piece: Piece) -> Iterator[tuple[Region, Piece]]:
        yield self.region(piece.document), piece


class ByPosition:
    """The head of the text for training and its tail for validation, for text of one or of few documents."""

    name = "position"

    def __init__(self, size: int, fraction: float) -> None:
        self._edge = size - round(size * fraction)
        self._seen = 0

    def parts(self, piece: Piece) -> Iterator[tuple[Region, Piece]]:
        """A piece with its region, or its two halves if the edge is inside it; call once a piece, in order."""
        text = piece.text.encode("utf-8")
        left = self._edge - self._seen
        if not text:
            yield ("train" if left > 0 else "validation"), piece
            return
        self._seen += len(text)
        edge = min(max(left, 0), len(text))
        while 0 < edge < len(text) and text[edge] & 0xC0 == 0x80:  # never inside a character
            edge += 1
        if edge:
            yield "train", Piece(piece.document, text[:edge].decode("utf-8"), piece.last and edge == len(text))
        if edge < len(text):
            yield "validation", Piece(piece.document, text[edge:].decode("utf-8"), piece.last)


Split = ByDocument | ByPosition


def choose_split(documents: int, size: int, fraction: float, seed: int) -> Split:
    """By document if the share for validation is at least one document, else by position."""
    return ByDocument(documents, fraction, seed) if documents * fraction >= 1 else ByPosition(size, fraction)
