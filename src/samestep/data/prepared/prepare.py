"""`samestep data prepare`: from text to a folder of tokens.

Everything is read twice (three times for BPE), with only a few pieces in memory at a time: the first pass counts, so
that the split is known before a token is written; then a vocabulary is learned; then the tokens are written.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from samestep.core.errors import UserError
from samestep.core.json_files import write_json
from samestep.core.paths import expand_home
from samestep.data.prepared import FORMAT, METADATA, TOKENIZER_FOLDER
from samestep.data.prepared.chats import Chats
from samestep.data.prepared.config import PrepareConfig
from samestep.data.prepared.sources import TextSource
from samestep.data.prepared.split import CHANGED, Split
from samestep.data.prepared.texts import Texts
from samestep.data.prepared.writing import Writing, fresh_folder, refuse_existing
from samestep.data.records.chats import has_chat
from samestep.data.tokenizer import read_tokenizer
from samestep.data.tokenizer.char import CharTokenizer
from samestep.data.tokenizer.subword import train_bpe
from samestep.data.tokenizer.vocabulary import ByteTokenizer, Tokenizer
from samestep.data.tokenizer.word import WordTokenizer

TextDataset = Texts | Chats
ReportProgress = Callable[[str, int, int], None]
"""Called with the current activity, the bytes done and the bytes in all."""
ReadTokenizer = Callable[[Path, str | None, str | None], Tokenizer]
"""Reads the tokenizer in a folder: (folder, mask token, end-of-document token)."""


def prepare(
    sources: Sequence[TextSource],
    config: PrepareConfig,
    progress: ReportProgress,
    read_folder: ReadTokenizer = read_tokenizer,
) -> dict[str, Any]:
    """Write the folder, and return its metadata; `read_folder` reads the tokenizer if `config` names a folder."""
    target = expand_home(config.out)
    refuse_existing(target, config.overwrite)
    dataset = _dataset(sources, config)
    size = sum(file.stat().st_size for source in sources for file in source.files)
    counts = dataset.count(config.tokenizer == "char", lambda done: progress("reading", done, max(done, size)))

    def split() -> Split:
        return dataset.split(counts, config.validation_fraction, config.test_fraction, config.seed)

    split()  # a text that cannot be split is refused before a vocabulary is learned
    tokenizer = _tokenizer(config, dataset, split, counts.characters, read_folder)
    with fresh_folder(target, config.overwrite) as folder:
        writing = Writing(folder, tokenizer, _row_length(config, dataset), config.shard_bytes)
        found = dataset.write(writing, split(), lambda done: progress("writing tokens", done, counts.bytes))
        if (found["documents"], found["bytes"]) != (counts.documents, counts.bytes):
            raise UserError(CHANGED)
        tokenizer.save(folder / TOKENIZER_FOLDER)
        metadata = {
            "format": FORMAT,
            "kind": dataset.kind,
            "tokenizer": tokenizer.kind,
            **_special_ids(tokenizer),
            **found,
            "split": split().name,
            "seed": config.seed,
            "sources": [source.describe() for source in sources],
        }
        write_json(folder / METADATA, metadata)
    return metadata


def _dataset(sources: Sequence[TextSource], config: PrepareConfig) -> TextDataset:
    chats = [config.kind == "chat" or (config.kind == "auto" and _is_chat(source)) for source in sources]
    if not any(chats):
        return Texts(sources, config.skip_invalid)
    plain = [source.name for source, chat in zip(sources, chats) if not (chat and source.records)]
    if plain:
        raise UserError(
            f"Prepare chats and running text separately; {plain[0]} does not hold records of chats, others do."
        )
    return Chats(sources, config.too_long, config.skip_invalid)


def _is_chat(source: TextSource) -> bool:
    """Whether records are chats, judged by the first one."""
    return source.records is not None and any(has_chat(row.values) for row in islice(source.records, 1))


def _row_length(config: PrepareConfig, dataset: TextDataset) -> int:
    return config.sequence_length or dataset.default_length


def _tokenizer(
    config: PrepareConfig,
    dataset: TextDataset,
    split: Callable[[], Split],
    characters: set[str],
    read_folder: ReadTokenizer,
) -> Tokenizer:
    if config.tokenizer == "byte":
        return ByteTokenizer()
    if config.tokenizer == "char":
        # of all text, validation too: a character without a token could not be encoded at all
        return CharTokenizer.of(characters)
    if config.tokenizer == "word":
        return WordTokenizer.learned(dataset.training_texts(split()), config.vocab_size or 4096)
    if config.tokenizer == "bpe":
        return train_bpe(dataset.training_texts(split()), config.vocab_size or 4096)
    folder = expand_home(config.tokenizer)
    if not folder.is_dir():
        raise UserError(f"Choose --tokenizer byte, char, word, bpe or a folder; there is no folder {config.tokenizer}.")
    return read_folder(folder, config.mask_token, config.eos_token)


def _special_ids(tokenizer: Tokenizer) -> dict[str, Any]:
    vocabulary = tokenizer.vocabulary
    return {
        "vocab_size": vocabulary.size,
        "mask_token_id": vocabulary.mask,
        "eos_token_id": vocabulary.eos,
        "bos_token_id": vocabulary.bos,
        "eot_token_id": vocabulary.eot,
        "header_token_ids": vocabulary.headers,
    }
