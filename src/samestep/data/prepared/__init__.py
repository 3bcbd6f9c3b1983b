"""A folder of prepared tokens: its files are memory-mapped, never read into memory.

metadata.json             the kind of data, the number of tokens, the sources
tokenizer/                what `load_tokenizer` reads
train-00000.bin ...       tokens, 16 or 32 bits each, little-endian, one sequence over all files
validation-00000.bin ...
test-00000.bin ...         if a share was kept for a test
train-rows-00000.bin ...  for chats: where each row begins, its length, the length of its prompt (64 bits each)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samestep.core.errors import UserError
from samestep.data.data_file import DataFile
from samestep.data.text import TokenFile, TokenFiles
from samestep.data.tokenizer import load_tokenizer
from samestep.data.tokenizer.vocabulary import Tokenizer, read_record

METADATA = "metadata.json"
TOKENIZER_FOLDER = "tokenizer"
FORMAT = "samestep tokens 2"
ROWS = "rows"


@dataclass(frozen=True)
class Prepared:
    """What `samestep data prepare` wrote."""

    folder: Path
    metadata: Mapping[str, Any]
    tokenizer: Tokenizer
    train: TokenFiles
    validation: TokenFiles
    train_rows: TokenFiles | None
    """For chats: three numbers a row."""
    validation_rows: TokenFiles | None
    test: TokenFiles | None = None
    """What neither training nor validation sees, if that was wanted."""
    test_rows: TokenFiles | None = None


def is_prepared(folder: Path) -> bool:
    """Whether `samestep data prepare` wrote a folder."""
    return "format" in read_record(folder / METADATA)


def open_prepared(folder: Path) -> Prepared:
    """Open a folder; refuse one that is incomplete or of another format."""
    folder = folder.resolve()
    metadata = read_record(folder / METADATA)
    if metadata.get("format") != FORMAT:
        raise UserError(f"Prepare {folder} again; it has the format {metadata.get('format')!r}, not {FORMAT!r}.")
    try:
        tokens = {
            region: _open_shards(folder, files, metadata["dtype"]) for region, files in metadata["shards"].items()
        }
        rows = {region: _open_shards(folder, files, "<i8") for region, files in metadata.get("rows", {}).items()}
        tokenizer = load_tokenizer(folder / TOKENIZER_FOLDER)
        if tokenizer.vocabulary.size != metadata["vocab_size"]:
            size = tokenizer.vocabulary.size
            raise _damaged(folder, f"its tokenizer has {size} tokens, not {metadata['vocab_size']}")
        train, validation = tokens["train"], tokens["validation"]
        index = (rows.get("train"), rows.get("validation"))
        test = (tokens.get("test"), rows.get("test"))
        return Prepared(folder, metadata, tokenizer, train, validation, *index, *test)
    except (KeyError, TypeError, AttributeError) as problem:
        raise _damaged(folder, f"{METADATA} lacks {problem}") from None


def _open_shards(folder: Path, files: Sequence[Mapping[str, Any]], dtype: str) -> TokenFiles:
    found = []
    for record in files:
        file, tokens = folder / record["file"], record["tokens"]
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            raise _damaged(folder, f"{file.name} is missing")
        if size != tokens * np.dtype(dtype).itemsize:
            raise _damaged(folder, f"{file.name} has {size} bytes instead of {tokens * np.dtype(dtype).itemsize}")
        origin = DataFile(file, sha256=record.get("sha256"))  # hashed when it was prepared, so not at every launch
        found.append(TokenFile(file, dtype, 0, tokens, origin))
    return TokenFiles(found)


def _damaged(folder: Path, how: str) -> UserError:
    return UserError(f"Prepare {folder} again with samestep data prepare; {how}.")
