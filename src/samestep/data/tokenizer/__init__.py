"""Finding a tokenizer: by its own name, or in a folder that samestep wrote or that belongs to a published model."""

from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.data.tokenizer.char import VOCAB, CharTokenizer, read_older_vocab
from samestep.data.tokenizer.subword import FILE, read_subword, reopen_subword
from samestep.data.tokenizer.vocabulary import TOKENIZER, ByteTokenizer, Tokenizer, Vocabulary, read_record

OTHERS = ("tokenizer.model", "tokenizer_config.json", "merges.txt", "spiece.model")
"""Files that show that a folder has a tokenizer, but not one that is read here."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer in a folder; with no such folder, or none in it, tokens are bytes."""
    files = (TOKENIZER, FILE, VOCAB, *OTHERS)
    if not any((folder / name).is_file() for name in files):
        return ByteTokenizer()
    return read_tokenizer(folder)


def read_tokenizer(folder: Path, mask_token: str | None = None, eos_token: str | None = None) -> Tokenizer:
    """The tokenizer in a folder, which must have one; the special tokens may be named where its files name none."""
    if (folder / TOKENIZER).is_file():
        return _own(folder, read_record(folder / TOKENIZER))
    if (folder / FILE).is_file():
        return read_subword(folder, mask_token, eos_token)
    if (folder / VOCAB).is_file():
        return read_older_vocab(folder)
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:4]) or "nothing" if folder.is_dir() else "nothing"
    raise UserError(f"Give a tokenizer folder with a {FILE} in it; {folder} has {there}.")


def _own(folder: Path, record: dict[str, Any]) -> Tokenizer:
    """What `Tokenizer.save` wrote."""
    try:
        if record["kind"] == ByteTokenizer.kind:
            return ByteTokenizer()
        vocabulary = _vocabulary(record["vocabulary"])
        if record["kind"] == CharTokenizer.kind:
            return CharTokenizer(record["characters"], vocabulary, record["unknown"])
        return reopen_subword(folder, str(record["kind"]), vocabulary)
    except (KeyError, TypeError):
        raise UserError(f"Make the tokenizer in {folder} anew; its {TOKENIZER} is not as it was written.") from None


def _vocabulary(values: dict[str, Any]) -> Vocabulary:
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Vocabulary(**{**values, **lists})
