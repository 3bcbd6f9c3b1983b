"""The training data, cut into rows: a prepared folder, a local file, or the English text that comes with Python."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from samestep import UserError
from samestep.core.config.bounds import Bounds, Count, PartialShare
from samestep.core.paths import expand_home
from samestep.data import text
from samestep.data.prepared import METADATA, TOKENIZER_FOLDER, Prepared, is_prepared, open_prepared
from samestep.data.pydoc_topics import BUILT_IN_TEXT, PROSE, pydoc_text
from samestep.data.records.arrow import is_saved_dataset
from samestep.data.records.hub import hub_dataset
from samestep.data.records.lines import is_record_file
from samestep.data.records.mixture import parse_sources, shown
from samestep.data.records.reading import RecordsConfig
from samestep.data.token_rows import AnswerRows, JoinedRows, TextRows, TokenRows
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer, Tokenizer, read_record
from samestep.recipes.mdlm.built_in import answer_rows, bytes_per_answer_token, question_rows, split_prose
from samestep.recipes.mdlm.older_data import FixedRows, OlderFolder, is_older, open_older
from samestep.recipes.mdlm.tokenizer import load_tokenizer, read_tokenizer

DEFAULT_LENGTH = 128
"""Tokens in a row, if neither the settings nor the data give another length."""
QUESTIONS = "pydoc-questions"
"""The value of `data.path` for questions and answers made from Python's help."""


@dataclass(frozen=True)
class DataConfig(RecordsConfig):
    """The training data."""

    path: str | list[str] | None = field(default=None, hash=False)
    """A folder that `samestep data prepare` wrote; or a text file, a file or folder of records (.jsonl, .json, .csv,
    .tsv, .parquet) or a dataset of the Hub (org/name:split), with a column `text`, read as bytes; or several texts and
    records, whose rows are drawn in the proportion of weights, as [a.jsonl:3, b.txt:1]. null is the English text that
    comes with Python (`pydoc_data.topics`); pydoc-prose is its sentences, with words as tokens."""
    sequence_length: Count | None = None
    """Tokens in a row of running text; null is that of the prepared folder, or 128. Chats and older folders have
    rows of their own lengths."""
    validation_fraction: PartialShare = 0.1
    """Share that is kept for validation: of records, by their content; of a text file, its end; a prepared folder has
    its own."""
    test_fraction: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Share that is kept for a last test, by `samestep evaluate` alone: of records, by their content; of a text file,
    what comes before its validation part. Validation stays what it is without. 0: none."""
    limit: Count | None = None
    """Use only this many tokens, from the beginning, for a quick trial; null is all of them."""

    def __post_init__(self) -> None:
        """Refuse shares that leave nothing to train on."""
        super().__post_init__()
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "Set data.validation_fraction and data.test_fraction to less than 1 together, or nothing is left to "
                f"train on; they are {self.validation_fraction:g} and {self.test_fraction:g}."
            )


@dataclass(frozen=True)
class Corpus:
    """Text in a training and a validation region, and where it is wanted one for a test, all cut into rows."""

    name: str
    """The folder, the file, or the name of the built-in text."""
    train: TokenRows
    validation: TokenRows
    tokenizer: Tokenizer
    origin: text.Tokens | Mapping[str, Any]
    """What the hash of the corpus is computed from: its tokens, or the metadata of a folder."""
    validation_bytes_per_token: float = 1.0
    """Bytes of text per token that counts in validation; 1 if tokens are bytes. Of chats the answers count, each with
    its end token."""
    test: TokenRows | None = None
    """What neither training nor validation sees, if that is wanted."""
    test_bytes_per_token: float = 1.0
    weights: np.ndarray | None = None
    """How often each row is drawn in training, in proportion; None: once an epoch."""

    @property
    def sft(self) -> bool:
        """Whether rows begin with a prompt, so that only answers are learned."""
        return isinstance(self.train, AnswerRows)

    @property
    def sequence_length(self) -> int:
        return self.train.length

    def check_fits(self, vocab_size: int, embedding_size: int, max_sequence_length: int | None = None) -> None:
        """Refuse a network that is too small for the tokens of this corpus, or for its rows."""
        vocabulary = self.tokenizer.vocabulary
        if vocabulary.required_mask >= embedding_size:
            raise UserError(
                f"Set model.embedding_size above {vocabulary.mask}, which is the mask token of {self.name}; it is "
                f"{embedding_size}."
            )
        if vocabulary.size > vocab_size:
            raise UserError(
                f"Set model.vocab_size to {vocabulary.size} or more, the number of tokens of {self.name}; it is "
                f"{vocab_size}."
            )
        if max_sequence_length is not None and self.sequence_length > max_sequence_length:
            raise UserError(
                f"Set model.max_sequence_length to {self.sequence_length} or more, the length of the rows of "
                f"{self.name}; it is {max_sequence_length}."
            )

    def describe(self) -> dict[str, str | int | float | None]:
        """The record of a corpus, with its hash: Python's text differs from version to version."""
        if isinstance(self.origin, Mapping):
            sha256 = hashlib.sha256(json.dumps(self.origin, sort_keys=True).encode()).hexdigest()
        else:
            sha256 = text.fingerprint(self.origin)
        test = {} if self.test is None else {"test_tokens": self.test.size, "test_rows": len(self.test)}
        return {
            "name": self.name,
            "sha256": sha256,
            "tokenizer": self.tokenizer.kind,
            "tokens": self.train.size + self.validation.size + test.get("test_tokens", 0),
            "train_tokens": self.train.size,
            "train_rows": len(self.train),
            "validation_tokens": self.validation.size,
            "validation_rows": len(self.validation),
            "validation_bytes_per_token": self.validation_bytes_per_token,
            **test,
        }


def load(config: DataConfig, cache: Path | None = None) -> Corpus:
    """Open the corpus that the configuration names; the same on every rank, without any random choice.

    `cache` is a folder in which an unpacked JSONL file may be kept.
    """
    if config.path is None:
        content = pydoc_text(config.limit).encode("utf-8")
        return _byte_corpus(BUILT_IN_TEXT, np.frombuffer(content, dtype=np.uint8), config)
    if not isinstance(config.path, str):
        return _several(config, config.path, cache)
    if config.path == QUESTIONS:
        return load_questions(config)
    if config.path == PROSE:
        return load_prose(config)
    folder = expand_home(config.path)
    if is_prepared(folder):
        return _prepared_corpus(open_prepared(folder), config)
    if is_older(folder):
        return _older_corpus(open_older(folder), config)
    if holds_records(config.path):
        return _record_corpus(config.path, config, cache)
    if folder.is_dir():
        raise UserError(f"Prepare the folder first: samestep data prepare {folder}; or name one text file in it.")
    return _byte_corpus(config.path, text.open_text(config.path), config)


def holds_records(path: str | Sequence[str]) -> bool:
    """Whether a path has records: a file, a folder of such files and of nothing else to read, or a saved dataset; or
    any of several does."""
    if not isinstance(path, str):
        return any(holds_records(name) for name, _ in parse_sources(path))
    place = expand_home(path)
    if not place.is_dir():
        return is_record_file(place) or hub_dataset(path) is not None
    return not is_prepared_folder(path) and (is_saved_dataset(place) or any(map(is_record_file, place.iterdir())))


def is_prepared_folder(path: str | Sequence[str]) -> bool:
    """Whether a folder has tokens, of this program or of an earlier one."""
    return isinstance(path, str) and (is_prepared(expand_home(path)) or is_older(expand_home(path)))


def holds_chats(data: DataConfig) -> bool:
    """Whether the data is prompts with answers, judged by a small file."""
    if not isinstance(data.path, str) or data.path == QUESTIONS:
        return data.path == QUESTIONS
    return read_record(expand_home(data.path) / METADATA).get("kind") == "chat"


def row_length(config: DataConfig) -> int:
    """Tokens in a row; opens only a small file."""
    folder = expand_home(config.path) if isinstance(config.path, str) else None
    metadata = {} if folder is None else read_record(folder / METADATA)
    own = metadata.get("sequence_length")
    fixed = metadata.get("kind") == "chat" or "format" not in metadata
    if own is not None and (fixed or config.sequence_length is None):
        return int(own)
    return config.sequence_length or DEFAULT_LENGTH


def data_tokenizer(config: DataConfig) -> Tokenizer:
    """The tokenizer of the data, without opening the data."""
    if config.path == PROSE:
        return split_prose(config.validation_fraction, config.test_fraction)[0]
    folder = expand_home(config.path) if isinstance(config.path, str) else None
    if folder is None or not folder.is_dir():
        return ByteTokenizer()
    return load_tokenizer(folder / TOKENIZER_FOLDER) if is_prepared(folder) else read_tokenizer(folder)


def _byte_corpus(name: str, tokens: text.Tokens, config: DataConfig) -> Corpus:
    if config.limit is not None:
        tokens = text.part(tokens, 0, config.limit)
        tokens = tokens.with_own_hash() if isinstance(tokens, text.TokenFile) else tokens  # the rest is never read
    parts = text.split(tokens, config.validation_fraction, config.test_fraction)
    return _split_corpus(name, parts, config, tokens)


def _record_corpus(name: str, config: DataConfig, cache: Path | None) -> Corpus:
    (parts,) = _documents(name, config, cache)
    share = _share(config, sum(map(len, parts)))
    files = [part.span(0, round(len(part) * share)) for part in parts]
    return _split_corpus(name, files, config, text.TokenFiles(files if config.test_fraction else files[:2]))


def _documents(path: str | Sequence[str], config: DataConfig, cache: Path | None) -> list[list[text.TokenFile]]:
    """By path, its bytes for training, for validation and for a test."""
    return text.open_documents(
        config.records(path),
        separator=BYTES.eos,
        validation_fraction=config.validation_fraction,
        test_fraction=config.test_fraction,
        skip_invalid=config.skip_invalid,
        cache=cache,
    )


def _several(config: DataConfig, named: Sequence[str], cache: Path | None) -> Corpus:
    """Several texts and records, each in rows of its own. Records are split together, so that no document is in the
    training part of one and in the validation part of another."""
    sources, length = parse_sources(named), row_length(config)
    names, weights = [path for path, _ in sources], [weight for _, weight in sources if weight is not None]
    if other := next((path for path in names if path in (QUESTIONS, PROSE) or _is_other_folder(path)), None):
        raise UserError(f"Name texts and records in data.path, or {other} alone: it is mixed with nothing.")
    records = [path for path in names if holds_records(path)]
    found: dict[str, Sequence[text.Tokens]] = dict(zip(records, _documents(records, config, cache))) if records else {}
    for path in names:
        if path not in found:
            found[path] = text.split(text.open_text(path), config.validation_fraction, config.test_fraction)
    share = _share(config, sum(len(part) for parts in found.values() for part in parts))
    cut = [[text.part(part, 0, round(len(part) * share)) for part in found[path]] for path in names]
    if missing := next((path for path, (train, *_) in zip(names, cut) if not len(train)), None):
        raise UserError(f"Give a longer text than {missing}, or leave it out: nothing of it is left for training.")
    rows = [[TextRows(part, length, BYTES.eos) for part in each if len(part)] for each in zip(*cut)]
    name = shown(names)
    if not rows[1] or sum(source.size for source in rows[0]) < length:
        raise UserError(f"Give longer texts, or a smaller data.sequence_length than {length}, for {name}.")
    if config.test_fraction and not rows[2]:
        raise UserError(f"Give longer texts, or raise data.test_fraction: nothing of {name} is left for a test.")
    train, validation, *test = (JoinedRows(part) for part in rows if part)
    by_row = [np.full(len(source), weight / len(source)) for source, weight in zip(rows[0], weights)]
    files = [part for parts in cut for part in parts if isinstance(part, text.TokenFile) and len(part)]
    return Corpus(
        name,
        train,
        validation,
        ByteTokenizer(),
        text.TokenFiles(files),
        test=test[0] if test else None,
        weights=np.concatenate(by_row) if by_row else None,
    )


def _is_other_folder(path: str) -> bool:
    return expand_home(path).is_dir() and not holds_records(path)


def _split_corpus(name: str, parts: Sequence[text.Tokens], config: DataConfig, origin: text.Tokens) -> Corpus:
    """A corpus of bytes, in its parts: for training, for validation and, maybe empty, for a test."""
    (train, validation, test), length = parts, row_length(config)
    rows = _text_rows(name, train, validation, length, BYTES.eos)
    if config.test_fraction and not len(test):
        raise UserError(
            f"Give a longer text, or raise data.test_fraction above {config.test_fraction:g}: of the "
            f"{len(train) + len(validation)} tokens of {name} none is left for a test."
        )
    return Corpus(
        name, *rows, ByteTokenizer(), origin, test=TextRows(test, length, BYTES.eos) if config.test_fraction else None
    )


def _prepared_corpus(folder: Prepared, config: DataConfig) -> Corpus:
    name, metadata, pad = str(config.path), folder.metadata, folder.tokenizer.vocabulary.eos
    share = _share(config, metadata["total_tokens"])
    test: TokenRows | None = None
    if folder.train_rows is not None and folder.validation_rows is not None:
        train, validation = (
            AnswerRows(tokens, _first(index, share), row_length(config), pad)
            for tokens, index in ((folder.train, folder.train_rows), (folder.validation, folder.validation_rows))
        )
        if folder.test is not None and folder.test_rows is not None:
            test = AnswerRows(folder.test, _first(folder.test_rows, share), row_length(config), pad)
        corpus = Corpus(name, train, validation, folder.tokenizer, metadata, _size(metadata, "val", "answer_tokens"))
        return replace(corpus, test=test, test_bytes_per_token=_size(metadata, "test", "answer_tokens"))
    head, tail = (text.part(tokens, 0, round(len(tokens) * share)) for tokens in (folder.train, folder.validation))
    rows = _text_rows(name, head, tail, row_length(config), pad)
    if folder.test is not None:
        part = text.part(folder.test, 0, max(1, round(len(folder.test) * share)))
        test = TextRows(part, row_length(config), pad)
    corpus = Corpus(name, *rows, folder.tokenizer, metadata, _size(metadata, "val", "tokens"))
    return replace(corpus, test=test, test_bytes_per_token=_size(metadata, "test", "tokens"))


def _size(metadata: Mapping[str, Any], part: str, tokens: str) -> float:
    """Bytes per token of a part of a prepared folder; 1 if there is no such part."""
    return metadata[f"{part}_bytes"] / metadata[f"{part}_{tokens}"] if f"{part}_bytes" in metadata else 1.0


def _older_corpus(folder: OlderFolder, config: DataConfig) -> Corpus:
    files = (folder.train, folder.validation)
    share = _share(config, sum(rows.shape[0] * rows.shape[1] for rows in files))
    train, validation = (FixedRows(rows, max(1, round(rows.shape[0] * share))) for rows in files)
    bytes_per_token = folder.validation_bytes_per_token()
    return Corpus(str(config.path), train, validation, folder.tokenizer, folder.metadata, bytes_per_token)


def _share(config: DataConfig, tokens: int) -> float:
    return 1.0 if config.limit is None else min(1.0, config.limit / tokens)


def _first(index: text.Tokens, share: float) -> text.Tokens:
    return text.part(index, 0, 3 * max(1, round(len(index) // 3 * share)))


def _text_rows(
    name: str, train: text.Tokens, validation: text.Tokens, length: int, pad: int
) -> tuple[TextRows, TextRows]:
    if len(train) < length or not len(validation):
        raise UserError(
            f"Give a longer text, or a smaller data.sequence_length than {length}; {name} has "
            f"{len(train) + len(validation)} tokens, of which {len(train)} are for training and {len(validation)} for "
            f"validation."
        )
    return TextRows(train, length, pad), TextRows(validation, length, pad)


def load_prose(config: DataConfig) -> Corpus:
    """The sentences of the built-in text, its commonest words as tokens; the last passages are for validation, those
    before them for a test."""
    tokenizer, parts = split_prose(config.validation_fraction, config.test_fraction)
    encoded = [np.array(tokenizer.encode(part), dtype=np.int64) for part in parts]
    share = _share(config, sum(map(len, encoded)))
    train, validation, test = (tokens[: max(1, round(len(tokens) * share))] for tokens in encoded)
    sizes = [len(tokenizer.decode(part).encode()) / max(1, len(part)) for part in (validation, test)]
    length, pad = row_length(config), tokenizer.vocabulary.eos
    rows = _text_rows(PROSE, train, validation, length, pad)
    corpus = Corpus(PROSE, *rows, tokenizer, np.concatenate((train, validation, test)), sizes[0])
    return replace(corpus, test=TextRows(test, length, pad), test_bytes_per_token=sizes[1]) if len(test) else corpus


def load_questions(config: DataConfig) -> Corpus:
    """The built-in questions, as many as fit into `data.limit` tokens; the last ones are for validation, those before
    them for a test."""
    tokenizer, length = ByteTokenizer(), config.sequence_length or DEFAULT_LENGTH
    rows = [row for row in question_rows() if row.prompt < length]
    if config.limit is not None:
        rows = rows[: max(2, config.limit // length)]
    tail = len(rows) - max(1, round(len(rows) * config.validation_fraction))
    head = tail - (max(1, round(len(rows) * config.test_fraction)) if config.test_fraction else 0)
    if head < 1:
        raise UserError(f"Raise data.sequence_length above {length}: few questions of {QUESTIONS} are so short.")
    parts = [part for part in (rows[:head], rows[tail:], rows[head:tail]) if part]
    tokens = np.array([token for row in rows for token in row.tokens])
    train, validation, *test = (answer_rows(part, length, tokenizer.vocabulary.eos) for part in parts)
    _, *sizes = (bytes_per_answer_token(part, length) for part in parts)
    corpus = Corpus(QUESTIONS, train, validation, tokenizer, tokens, sizes[0])
    return replace(corpus, test=test[0], test_bytes_per_token=sizes[1]) if test else corpus
