"""A character is a token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.core.records import write_json
from samestep.data.tokenizer.vocabulary import TOKENIZER, Vocabulary, find_specials, read_record

VOCAB = "vocab.json"
TABLES = ("char_to_idx", "char_to_id", "char2idx", "stoi", "token_to_id", "vocab")
"""Where a vocab.json may hold its table of characters, if it is not the table itself."""
UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "<|unk|>")


class CharTokenizer:
    """The characters that were seen, each a token, and the special tokens."""

    kind = "char"

    def __init__(self, characters: Mapping[str, int], vocabulary: Vocabulary, unknown: int | None = None) -> None:
        assert all(len(character) == 1 for character in characters)
        self.characters, self.vocabulary, self.unknown = dict(characters), vocabulary, unknown
        self._text = {token: character for character, token in characters.items()} | {vocabulary.mask: "_"}

    @classmethod
    def of(cls, characters: Iterable[str]) -> "CharTokenizer":
        """The tokenizer of a set of characters: these in order, then mask, eos and bos."""
        table = {character: token for token, character in enumerate(sorted(set(characters)))}
        size = len(table)
        return cls(table, Vocabulary(size + 3, mask=size, eos=size + 1, bos=size + 2, silent=(size + 2,)))

    def encode(self, text: str) -> list[int]:
        """The characters of a text; one that was never seen is refused, unless there is a token for such."""
        try:
            return [self.characters[character] for character in text]
        except KeyError as stranger:
            if self.unknown is None:
                raise UserError(
                    f"Leave out the character {stranger.args[0]!r}, which is not among the {len(self.characters)} of "
                    f"this tokenizer, or take the byte tokenizer, which knows them all."
                ) from None
            return [self.characters.get(character, self.unknown) for character in text]

    def encode_all(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The characters of many texts."""
        return [np.array(self.encode(text), dtype=np.int64) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        """The text up to the first end of a document; a hidden token reads as a low line."""
        out = []
        for token in tokens:
            if token == self.vocabulary.eos:
                break
            out.append(self._text.get(token, ""))
        return "".join(out)

    def save(self, folder: Path) -> None:
        """Write the table of characters and the special tokens."""
        facts = {"characters": self.characters, "vocabulary": asdict(self.vocabulary), "unknown": self.unknown}
        write_json(folder / TOKENIZER, {"kind": self.kind, **facts})


def read_older_vocab(folder: Path) -> CharTokenizer:
    """The tokenizer of an older folder: vocab.json, and the special tokens that its metadata.json may name.

    A vocabulary without a mask or an end gets them behind its last token.
    """
    table = _table(folder / VOCAB)
    long = [token for token in table if len(token) != 1 and not _looks_special(token)]
    if long:
        raise UserError(
            f"Put the tokenizer.json that {folder / VOCAB} belongs to beside it; the vocabulary has tokens of more "
            f"than one character, such as {long[0]!r}."
        )
    metadata = read_record(folder / "metadata.json")
    special = find_specials([metadata], table.get)
    eos = special["eos"] if special["eos"] is not None else special["pad"]
    taken = {*table.values(), special["mask"], eos}
    behind = (number for number in count(max(table.values()) + 1) if number not in taken)
    mask = special["mask"] if special["mask"] is not None else next(behind)
    eos = eos if eos is not None else next(behind)
    characters = {token: number for token, number in table.items() if len(token) == 1 and number not in (mask, eos)}
    told = metadata.get("vocab_size")
    size = max(*table.values(), mask, eos, (told if isinstance(told, int) else 0) - 1) + 1
    silent = sorted(set(range(size)) - set(characters.values()) - {mask, eos})
    unknown = next((table[spelling] for spelling in UNKNOWN if spelling in table), None)
    return CharTokenizer(characters, Vocabulary(size, mask, eos, special["bos"], silent=tuple(silent)), unknown)


def _table(file: Path) -> dict[str, int]:
    """The tokens of a vocab.json: a table from token to number, bare or wrapped."""
    record = read_record(file)
    table: Any = next((record[name] for name in TABLES if isinstance(record.get(name), dict)), record)
    if not table or not all(type(number) is int and number >= 0 for number in table.values()):
        raise UserError(f'Make {file} a table from character to number, such as {{"a": 0}}; it is something else.')
    return table


def _looks_special(token: str) -> bool:
    return len(token) > 2 and (token[0], token[-1]) in (("<", ">"), ("[", "]"))
