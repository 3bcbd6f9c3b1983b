"""Which part of the text is for validation and which for a test, decided before anything is cut into rows."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Literal

from samestep.core.errors import UserError
from samestep.data.prepared.sources import Piece
from samestep.data.split import choose_parts

Region = Literal["train", "validation", "test"]
REGIONS: tuple[Region, ...] = ("train", "validation", "test")
"""By the numbers of the parts of a split."""
CHANGED = "Prepare again once nothing changes the text; it changed while it was read."


def regions(test: float) -> tuple[Region, ...]:
    """Those that there are: a test, if it has a share."""
    return REGIONS if test else REGIONS[:2]


class ByDocument:
    """Shares of the documents, by their content; no document is cut, and equal ones stay together."""

    name = "documents"

    def __init__(self, digests: Sequence[int], validation: float, test: float, seed: int) -> None:
        self.regions = regions(test)
        self._part_of = choose_parts(digests, validation, test, seed)

    def region(self, document: int) -> Region:
        if document >= len(self._part_of):
            raise UserError(CHANGED)
        return REGIONS[self._part_of[document]]

    def parts(self, piece: Piece) -> Iterator[tuple[Region, Piece]]:
        yield self.region(piece.document), piece


class ByPosition:
    """The head of the text for training, its tail for validation, and what is between for a test, for text of one or of
    few documents."""

    name = "position"

    def __init__(self, size: int, validation: float, test: float) -> None:
        self.regions = regions(test)
        tail = size - round(size * validation)
        self._ends: list[tuple[int, Region]] = [(max(0, tail - round(size * test)), "train")]
        self._ends += [(tail, "test")] if test else []
        self._seen = 0

    def parts(self, piece: Piece) -> Iterator[tuple[Region, Piece]]:
        """A piece with its region, or its parts if an edge is inside it; call once a piece, in order."""
        text = piece.text.encode("utf-8")
        if not text:
            yield next((region for end, region in self._ends if self._seen < end), "validation"), piece
            return
        cuts = [0, *(_edge(text, end - self._seen) for end, _ in self._ends), len(text)]
        self._seen += len(text)
        for (start, stop), region in zip(pairwise(cuts), (*(region for _, region in self._ends), "validation")):
            if start < stop:
                last = piece.last and stop == len(text)
                yield region, Piece(piece.document, text[start:stop].decode("utf-8"), last)


def _edge(text: bytes, wanted: int) -> int:
    """Where to cut: never inside a character."""
    edge = min(max(wanted, 0), len(text))
    while 0 < edge < len(text) and text[edge] & 0xC0 == 0x80:
        edge += 1
    return edge


Split = ByDocument | ByPosition


def choose_split(digests: Sequence[int], size: int, validation: float, test: float, seed: int) -> Split:
    """By document if the share for validation is at least one document, else by position."""
    if len(digests) * validation >= 1:
        return ByDocument(digests, validation, test, seed)
    return ByPosition(size, validation, test)
