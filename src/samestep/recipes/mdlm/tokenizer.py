"""Tokenizers for this recipe: they must have a mask token; LLaDA's published ids; the vocab.json of older folders."""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from samestep import UserError
from samestep.core.tokenizer_file import MOST_TOKENS
from samestep.data import tokenizer
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.subword import FILE
from samestep.data.tokenizer.vocabulary import (
    TOKENIZER,
    ByteTokenizer,
    Tokenizer,
    Vocabulary,
    find_specials,
    read_record,
)

KIND = "llada"
"""The `model_type` of published LLaDA models."""
LLADA_IDS = {
    "mask": 126336,
    "eos": 126081,
    "pad": 126081,
    "bos": 126080,
    "eot": 126348,
    "start_header": 126346,
    "end_header": 126347,
}
"""The special tokens of the published LLaDA-8B models."""
VOCAB = "vocab.json"
TABLES = ("char_to_idx", "char_to_id", "char2idx", "stoi", "token_to_id", "vocab")
"""Where a vocab.json may hold its table of characters, if it is not the table itself."""
UNKNOWN = ("<unk>", "[UNK]", "<UNK>", "<|unk|>")


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder; if the folder is missing or has no tokenizer, tokens are bytes."""
    return read_tokenizer(folder) if tokenizer.has_tokenizer(folder) else ByteTokenizer()


def read_tokenizer(folder: Path, mask_token: str | None = None, eos_token: str | None = None) -> Tokenizer:
    """The tokenizer in a folder, which must have one with a mask token; see `samestep.data.tokenizer`."""
    readable = any((folder / name).is_file() for name in (TOKENIZER, FILE))
    if not readable and (folder / VOCAB).is_file():
        return read_older_vocab(folder)
    return tokenizer.read_tokenizer(folder, mask_token, eos_token, required=("mask", "eos"), known_ids=published_ids)


def published_ids(records: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """The ids of LLaDA's special tokens if one of the files beside the tokenizer is of a LLaDA model."""
    return LLADA_IDS if any(record.get("model_type") == KIND for record in records) else {}


def read_older_vocab(folder: Path) -> CharTokenizer:
    """The tokenizer of an older folder: vocab.json, and the special tokens that its metadata.json may name.

    A vocabulary without a mask or an end gets them after its last token.
    """
    table = _table(folder / VOCAB)
    long = [token for token in table if len(token) != 1 and not _looks_special(token)]
    if long:
        raise UserError(
            f"Put the tokenizer.json that {folder / VOCAB} belongs to beside it; the vocabulary has tokens of more "
            f"than one character, such as {long[0]!r}."
        )
    metadata = read_record(folder / "metadata.json")
    special = find_specials([metadata], table.get, published_ids([metadata]))
    eos = special["eos"] if special["eos"] is not None else special["pad"]
    taken = {*table.values(), special["mask"], eos}
    free = (number for number in count(max(table.values()) + 1) if number not in taken)
    mask = special["mask"] if special["mask"] is not None else next(free)
    eos = eos if eos is not None else next(free)
    characters = {token: number for token, number in table.items() if len(token) == 1 and number not in (mask, eos)}
    declared = metadata.get("vocab_size")
    size = max(*table.values(), mask, eos, (declared if isinstance(declared, int) else 0) - 1) + 1
    if size > MOST_TOKENS:
        raise UserError(
            f"Fix the numbers in {folder / VOCAB} or metadata.json: they go up to {size - 1:,}, and tokens have "
            f"numbers below {MOST_TOKENS:,}."
        )
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
