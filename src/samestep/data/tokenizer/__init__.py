"""Finding a tokenizer: by its own name, or in a folder that samestep wrote or that belongs to a published model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.tokenizer_file import MOST_TOKENS
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.subword import FILE, read_subword, reopen_subword
from samestep.data.tokenizer.vocabulary import (
    TOKENIZER,
    ByteTokenizer,
    KnownIds,
    Tokenizer,
    Vocabulary,
    no_known_ids,
    read_record,
)
from samestep.data.tokenizer.word import WordTokenizer

OTHERS = ("vocab.json", "tokenizer.model", "tokenizer_config.json", "merges.txt", "spiece.model")
"""Files that show that a folder has a tokenizer, but not one that this module reads."""


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder holds files of a tokenizer, readable here or not."""
    return any((folder / name).is_file() for name in (TOKENIZER, FILE, *OTHERS))


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder; if the folder is missing or has no tokenizer, tokens are bytes."""
    return read_tokenizer(folder) if has_tokenizer(folder) else ByteTokenizer()


def read_tokenizer(
    folder: Path,
    mask_token: str | None = None,
    eos_token: str | None = None,
    *,
    required: Sequence[str] = ("eos",),
    known_ids: KnownIds = no_known_ids,
) -> Tokenizer:
    """The tokenizer in a folder, which must have one.

    `mask_token` and `eos_token` name special tokens that its files do not name. A folder of a published model is
    refused when it lacks one of the `required` special tokens; `known_ids` gives ids that its files leave out.
    """
    if (folder / TOKENIZER).is_file():
        return _read_saved(folder, read_record(folder / TOKENIZER))
    if (folder / FILE).is_file():
        return read_subword(folder, mask_token, eos_token, required=required, known_ids=known_ids)
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:4]) or "nothing" if folder.is_dir() else "nothing"
    raise UserError(f"Give a tokenizer folder with a {FILE} in it; {folder} has {there}.")


def _read_saved(folder: Path, record: dict[str, Any]) -> Tokenizer:
    """What `Tokenizer.save` wrote."""
    try:
        if record["kind"] == ByteTokenizer.kind:
            return ByteTokenizer()
        if record["kind"] == WordTokenizer.kind:
            return WordTokenizer(_words(record["words"]))
        vocabulary = _vocabulary(record["vocabulary"])
        if record["kind"] == CharTokenizer.kind:
            unknown = record["unknown"]
            if unknown is not None and not _is_id(unknown):
                raise TypeError("the unknown character has no number")
            return CharTokenizer(_characters(record["characters"]), vocabulary, unknown)
        return reopen_subword(folder, str(record["kind"]), vocabulary)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"Make the tokenizer in {folder} again; its {TOKENIZER} is damaged.") from None


def _vocabulary(values: dict[str, Any]) -> Vocabulary:
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    numbers = [number for value in values.values() for number in (value if isinstance(value, list) else [value])]
    if not all(number is None or _is_id(number) for number in numbers):
        raise TypeError("a token has no number")
    return Vocabulary(**{**values, **lists})


def _is_id(number: Any) -> bool:
    return type(number) is int and 0 <= number <= MOST_TOKENS


def _words(found: list[Any]) -> list[str]:
    if not all(isinstance(word, str) for word in found) or len(found) > MOST_TOKENS:
        raise TypeError("a word is no text")
    return found


def _characters(table: dict[str, Any]) -> dict[str, int]:
    if not all(len(character) == 1 and _is_id(number) for character, number in table.items()):
        raise TypeError("a character has no number")
    return table
