"""A character is a token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from samestep.core.errors import UserError
from samestep.core.json_files import write_json
from samestep.data.tokenizer.vocabulary import TOKENIZER, Vocabulary


class CharTokenizer:
    """One token for each known character, and the special tokens."""

    kind = "char"

    def __init__(self, characters: Mapping[str, int], vocabulary: Vocabulary, unknown: int | None = None) -> None:
        assert all(len(character) == 1 for character in characters)
        self.characters, self.vocabulary, self.unknown = dict(characters), vocabulary, unknown
        self._text = {token: character for character, token in characters.items()}
        if vocabulary.mask is not None:
            self._text[vocabulary.mask] = "_"

    @classmethod
    def of(cls, characters: Iterable[str]) -> "CharTokenizer":
        """The tokenizer of a set of characters: these in order, then mask, eos and bos."""
        table = {character: token for token, character in enumerate(sorted(set(characters)))}
        size = len(table)
        return cls(table, Vocabulary(size + 3, mask=size, eos=size + 1, bos=size + 2, silent=(size + 2,)))

    def encode(self, text: str) -> list[int]:
        """The characters of a text; an unknown one is refused, unless there is a token for unknown characters."""
        try:
            return [self.characters[character] for character in text]
        except KeyError as error:
            if self.unknown is None:
                raise UserError(
                    f"Leave out the character {error.args[0]!r}, which is not among the {len(self.characters)} of "
                    f"this tokenizer, or use the byte tokenizer, which knows them all."
                ) from None
            return [self.characters.get(character, self.unknown) for character in text]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The characters of many texts."""
        return [np.array(self.encode(text), dtype=np.int64) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a mask token reads as an underscore."""
        out = []
        for token in tokens:
            if token == self.vocabulary.eos:
                break
            out.append(self._text.get(token, ""))
        return "".join(out)

    def save(self, folder: Path) -> None:
        """Write the table of characters and the special tokens."""
        content = {"characters": self.characters, "vocabulary": asdict(self.vocabulary), "unknown": self.unknown}
        write_json(folder / TOKENIZER, {"kind": self.kind, **content})
