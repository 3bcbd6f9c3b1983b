"""Which part of the text is for validation, decided before anything is cut into rows."""

from collections.abc import Iterator, Sequence
from typing import Literal

from samestep.core.errors import UserError
from samestep.data.prepared.sources import Piece
from samestep.data.split import VALIDATION, choose_parts

Region = Literal["train", "validation"]
REGIONS: tuple[Region, Region] = ("train", "validation")
CHANGED = "Prepare again once nothing changes the text; it changed while it was read."


class ByDocument:
    """A share of the documents, by their content; no document is cut, and equal ones stay together."""

    name = "documents"

    def __init__(self, digests: Sequence[int], fraction: float, seed: int) -> None:
        self._is_validation = choose_parts(digests, fraction, test=0.0, seed=seed) == VALIDATION

    def region(self, document: int) -> Region:
        if document >= len(self._is_validation):
            raise UserError(CHANGED)
        return "validation" if self._is_validation[document] else "train"

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


def choose_split(digests: Sequence[int], size: int, fraction: float, seed: int) -> Split:
    """By document if the share for validation is at least one document, else by position."""
    return ByDocument(digests, fraction, seed) if len(digests) * fraction >= 1 else ByPosition(size, fraction)
