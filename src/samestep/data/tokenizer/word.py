"""A common word is a token; a rare one is spelled in bytes. It needs no library, and learns from a text in no time."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from samestep.core.errors import UserError
from samestep.core.json_files import write_json
from samestep.data.tokenizer.vocabulary import BYTES, TOKENIZER, Vocabulary

PIECE = re.compile(r" ?[^\W\d]+| ?[^\w\s]|\s|\d")
"""A word or a sign with the space before it, a digit, or white space: one after the other they are the whole text.
Underscores belong to words."""
LETTERS = tuple(byte for byte in range(256) if byte > 127 or chr(byte).isalpha() or chr(byte) == "_")
"""Bytes that only spell rare words. They are never written: a network that begins to spell does not end with a word."""


class WordTokenizer:
    """The tokens of bytes, then one for each known word, which has the space before it in it."""

    kind = "word"

    def __init__(self, words: Sequence[str]) -> None:
        self.words = list(words)
        silent = (*LETTERS, *BYTES.silent)
        self.vocabulary = Vocabulary(BYTES.size + len(words), BYTES.mask, BYTES.eos, BYTES.bos, silent=silent)
        self._tokens = {word: BYTES.size + number for number, word in enumerate(self.words)}

    @classmethod
    def learned(cls, texts: Iterable[str], vocab_size: int) -> "WordTokenizer":
        """The commonest words of some texts, `vocab_size` tokens in all with bytes and special ones."""
        if vocab_size <= BYTES.size:
            raise UserError(f"Set vocab_size above {BYTES.size}: 256 bytes and 3 special tokens come before the words.")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(PIECE.findall(text))
        # Of equally common ones the first in the alphabet, so that their order does not matter.
        words = sorted((piece for piece in counts if len(piece.encode()) > 1), key=lambda word: (-counts[word], word))
        return cls(words[: vocab_size - BYTES.size])

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without any special one."""
        known = self._tokens
        return list(chain.from_iterable([known[p]] if p in known else p.encode("utf-8") for p in PIECE.findall(text)))

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The tokens of many texts."""
        return [np.array(self.encode(text), dtype=np.int64) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a mask token reads as an underscore."""
        out = bytearray()
        for token in tokens:
            if token == BYTES.eos:
                break
            if token == BYTES.mask:
                out += b"_"
            elif token < 256:
                out.append(token)
            elif token >= BYTES.size:
                out += self.words[token - BYTES.size].encode("utf-8")
        return out.decode("utf-8", errors="replace")

    def save(self, folder: Path) -> None:
        """Write the list of words."""
        write_json(folder / TOKENIZER, {"kind": self.kind, "words": self.words})
