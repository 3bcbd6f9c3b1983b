"""What tokens mean: the special ones of a vocabulary, and the face of everything that turns text into tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from samestep.core.records import write_json

TOKENIZER = "samestep_tokenizer.json"
"""The file in which a tokenizer says what it is, in a folder of its own."""


@dataclass(frozen=True)
class Vocabulary:
    """Which token is what."""

    size: int
    """Number of tokens in all, the special ones included; an embedding may have more rows."""
    mask: int
    """Stands for a hidden token."""
    eos: int
    """Ends a document, and pads a row."""
    bos: int | None = None
    """Begins a document."""
    eot: int | None = None
    """Ends a turn of a chat."""
    headers: tuple[int, int] | None = None
    """Stand before and after the name of who speaks, in a chat."""
    silent: tuple[int, ...] = ()
    """Special tokens beside the mask that are never written in a sample."""

    def forbidden(self, embedding_size: int) -> list[int]:
        """The tokens that may never be written: the mask, the silent ones, and rows that are no token."""
        return sorted({self.mask, *self.silent, *range(self.size, embedding_size)})


class Tokenizer(Protocol):
    """Turns text into tokens and back."""

    @property
    def kind(self) -> str:
        """What sort of tokenizer it is, in a word."""

    @property
    def vocabulary(self) -> Vocabulary:
        """Which token is what."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any special one."""

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of many texts, as fast as this machine can."""

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a hidden token reads as a low line."""

    def save(self, folder: Path) -> None:
        """Write what `load_tokenizer` needs into a folder, which is made where there is none."""


BYTES = Vocabulary(size=259, mask=256, eos=257, bos=258, silent=(258,))
"""The 256 bytes, then the special tokens."""


class ByteTokenizer:
    """A byte is a token."""

    kind = "byte"
    vocabulary = BYTES

    def encode(self, text: str) -> list[int]:
        """The bytes of a text."""
        return list(text.encode("utf-8"))

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The bytes of many texts."""
        return [np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a hidden token reads as a low line."""
        out = bytearray()
        for token in tokens:
            if token == BYTES.eos:
                break
            if token == BYTES.mask:
                out += b"_"
            elif token < BYTES.mask:
                out.append(token)
        return out.decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        """Leave word that tokens are bytes."""
        write_json(folder / TOKENIZER, {"kind": self.kind})
