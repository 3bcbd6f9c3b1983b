"""The vocabulary: the 256 bytes, then the special tokens."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vocabulary:
    """Which token is what. Text tokens come first, special ones after them."""

    text: int
    """Number of text tokens: 0 up to this."""
    mask: int
    """Stands for a hidden token."""
    eos: int
    """Ends a document, and pads a row."""
    bos: int
    """Begins a document; kept for prompts, never learned from plain text."""
    size: int
    """Number of tokens in all."""

    def forbidden(self, embedding_size: int) -> list[int]:
        """The tokens that may never be written: all but text and the end of a document."""
        return [token for token in range(self.text, embedding_size) if token != self.eos]


BYTES = Vocabulary(text=256, mask=256, eos=257, bos=258, size=259)


def encode(text: str) -> list[int]:
    """The bytes of a text."""
    return list(text.encode("utf-8"))


def decode(tokens: Iterable[int], vocabulary: Vocabulary = BYTES) -> str:
    """The text up to the first end of a document; a hidden token reads as a low line."""
    out = bytearray()
    for token in tokens:
        if token == vocabulary.eos:
            break
        if token == vocabulary.mask:
            out += b"_"
        elif token < vocabulary.text:
            out.append(token)
    return out.decode("utf-8", errors="replace")
