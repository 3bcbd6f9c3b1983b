"""The data of a run: training records of one or several sources, and a retrieval set that is kept for validation."""

import hashlib
import re
from collections.abc import Collection, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from samestep import Trained, UserError
from samestep.core.json_files import read_object
from samestep.core.paths import expand_home
from samestep.data.data_file import DataFile
from samestep.data.pydoc_topics import BUILT_IN_TEXT
from samestep.data.records.hub import hub_dataset
from samestep.data.records.mixture import parse_sources, read_mixture
from samestep.data.records.reading import find_files
from samestep.data.split import split_records
from samestep.recipes.distill.config import DistillConfig, as_list
from samestep.recipes.distill.objective import RECORDS
from samestep.recipes.distill.python_docs import python_docs, some_queries, spread
from samestep.recipes.distill.records import Record, read_records, read_records_or_texts
from samestep.recipes.distill.retrieval import RetrievalSet, find_beir, read_beir

_SENTENCE_END = re.compile(r"(?<=[.?!;])\s+")
_FEWEST_WORDS = 3
"""Of a sentence that is a text of its own."""
TEXTS = "texts.json"
"""The artifact of a phase that says with which texts it trains, and how many queries were kept for validation."""
Origin = DataFile | Path | np.ndarray


class Text(NamedTuple):
    """A text, and whether it is a query, which a model may read after an instruction."""

    text: str
    is_query: bool


def texts_of(found: RetrievalSet) -> list[Text]:
    """Of a retrieval set, queries first."""
    return [*(Text(text, True) for text in found.queries), *(Text(text, False) for text in found.passages)]


@dataclass(frozen=True)
class IndexedRecord:
    """A record by the numbers of its texts."""

    query: int
    positive: int
    negatives: tuple[int, ...] = ()
    scores: tuple[float, ...] = ()
    """Of the positive and of each negative, where the records' own are wanted."""


@dataclass(frozen=True)
class TextTable:
    """Every distinct query and every distinct passage, in the order in which they first appear.

    Queries and passages are numbered apart, because a model may read them with different instructions.
    """

    queries: list[str]
    passages: list[str]
    rows: list[IndexedRecord]
    """The records, in their order."""

    @classmethod
    def of(cls, records: Sequence[Record]) -> "TextTable":
        queries: dict[str, int] = {}
        passages: dict[str, int] = {}

        def passage(text: str) -> int:
            return passages.setdefault(text, len(passages))

        rows = [
            IndexedRecord(
                queries.setdefault(record.query, len(queries)),
                passage(record.positive),
                tuple(map(passage, record.negatives)),
                record.scores,
            )
            for record in records
        ]
        return cls(list(queries), list(passages), rows)


@dataclass(frozen=True)
class DistillData:
    """The data of a run, the same on every rank."""

    name: str
    table: TextTable
    sources: Sequence[range]
    """The rows of the table that each source has."""
    weights: Sequence[float]
    """How often each source is drawn, in proportion."""
    held_out: RetrievalSet
    """For validation."""
    origins: Sequence[Origin]
    """Where all of it comes from, for the comparison of a resumed run."""
    sentences: Sequence[str] = ()
    """Of all passages, where phase 1 learns them too, and other texts that only it learns."""
    test: RetrievalSet | None = None
    """What only `samestep evaluate` uses; none of its texts has a number."""
    learns_held_out: bool = True
    """Whether phase 1 learns the passages of the retrieval set beside the sentences."""
    first: Sequence[Sequence[Sequence[Text]]] | None = None
    """What phase 1 has of its own: by source, the texts of each record."""
    first_weights: Sequence[float] = ()
    """How often each of these sources is drawn, in proportion."""

    @cached_property
    def texts(self) -> list[Text]:
        """All texts by number: queries, passages, those of the retrieval set, sentences, and then others that phase 1
        has of its own."""
        parts = (
            (self.table.queries, True),
            (self.table.passages, False),
            (self.held_out.queries, True),
            (self.held_out.passages, False),
            (self.sentences, False),
        )
        found = [Text(text, is_query) for texts, is_query in parts for text in texts]
        known = set(found)
        return [*found, *(text for text in dict.fromkeys(_flat(self.first or ())) if text not in known)]

    @property
    def digest(self) -> str:
        """Equal for the same texts in all parts."""
        return digest_of([*self.texts, *(texts_of(self.test) if self.test else [])])

    @property
    def first_passage(self) -> int:
        """The number of the first passage among all texts."""
        return len(self.table.queries)

    @property
    def held_out_texts(self) -> range:
        """The numbers of the texts of the retrieval set, queries first."""
        first = self.first_passage + len(self.table.passages)
        return range(first, first + len(self.held_out.queries) + len(self.held_out.passages))

    def rows_of_phase(self, limit: int) -> list[list[int]]:
        """The rows of the table, by source, of which a phase takes at most `limit` in all."""
        kept = share_out(limit, [len(source) for source in self.sources])
        return [list(source[:count]) for source, count in zip(self.sources, kept)]

    def texts_of_phase(self, limit: int, unit: str = "records") -> tuple[list[list[int]], list[float]]:
        """The texts of those rows, or at most `limit` texts of all rows, by source, each once for a source, and how
        often each source is drawn. Sentences and the passages of the retrieval set, where these are learned too, are
        in proportion to their number."""
        items = self._items_of_phase_1()
        if unit == "records":
            items = [each[:count] for each, count in zip(items, share_out(limit, list(map(len, items))))]
        found = [list(dict.fromkeys(number for item in each for number in item)) for each in items]
        if unit == "texts":
            found = [texts[:most] for texts, most in zip(found, share_texts(limit, items))]
        weights = list(self.weights if self.first is None else self.first_weights)
        if not self.sentences:
            return found, weights
        held_out = self.held_out_texts
        known = set(self.table.passages if self.first is None else (text.text for text in _flat(self.first)))
        passages = held_out[len(self.held_out.queries) :]
        more = (
            []
            if not self.learns_held_out
            else [number for number, text in zip(passages, self.held_out.passages) if text not in known]
        )
        more += range(held_out.stop, held_out.stop + len(self.sentences))
        if len(found) == 1:
            return [[*found[0], *more]], weights
        return [*found, more], [*weights, sum(weights) * len(more) / sum(map(len, found))]

    def _items_of_phase_1(self) -> list[list[list[int]]]:
        """By source, the numbers of the texts of each record that phase 1 may take."""
        if self.first is None:
            return [[self._texts_of(self.table.rows[row]) for row in source] for source in self.sources]
        numbers = {text: number for number, text in reversed(list(enumerate(self.texts)))}
        return [[[numbers[text] for text in item] for item in source] for source in self.first]

    def _texts_of(self, record: IndexedRecord) -> list[int]:
        return [record.query, *(self.first_passage + number for number in (record.positive, *record.negatives))]


def load_data(config: DistillConfig) -> DistillData:
    """Read the records, keep some for validation, and cut to what the phases use."""
    data = config.data
    if data.named:
        read_file = partial(
            read_records,
            limit=data.limit,
            columns=data.columns,
            skip_invalid=data.skip_invalid,
            scored=config.rank.scores == RECORDS,
        )
        mixture = read_mixture(data.named, read_file, data.limit)
        read, weights = [source.records for source in mixture], [source.weight for source in mixture]
        name = ", ".join(source.path for source in mixture)
    else:
        records, own_set = python_docs()
        read, weights, name = [spread(records, data.limit)], [1.0], BUILT_IN_TEXT
    held_out: RetrievalSet | None = None
    if data.validation:
        held_out = read_beir(*(find_beir(data.validation, "test") or [data.validation]))
        read = _without(set(held_out.queries), read, "other queries than data.validation; one has only those")
    test: RetrievalSet | None = None
    if data.named:
        share = data.validation_fraction if held_out is None else 0.0
        read, chosen, test = hold_out(read, share, data.validation_queries, data.test_fraction, config.seed)
        held_out = held_out or chosen
    elif held_out is None:
        held_out = some_queries(own_set, data.limit)
    assert held_out is not None
    read = [records[:count] for records, count in zip(read, records_of_phases(config, read))]
    ends = np.cumsum([len(records) for records in read]).tolist()
    sources = [range(end - len(records), end) for end, records in zip(ends, read)]
    table = TextTable.of([record for records in read for record in records])
    first, first_weights, learned = None, list[float](), table.passages
    if data.phase1 and not config.skip_phase1:
        own = read_mixture(as_list(data.phase1), partial(_phase_1_records, config), data.limit)
        first = _not_held_out([source.records for source in own], [part for part in (held_out, test) if part])
        first = [items[:count] for items, count in zip(first, _records_of_phase_1(config, first))]
        first_weights, learned = [source.weight for source in own], [text.text for text in _flat(first)]
        name = ", ".join([name, *(source.path for source in own)])
    sentences = sentences_of(learned, held_out.passages) if data.sentences else []
    if first is not None:
        known = set(learned)
        sentences = [sentence for sentence in sentences if sentence not in known]
    origins = _origins(config, table, held_out)
    return DistillData(
        name, table, sources, weights, held_out, origins, sentences, test, data.sentences, first, first_weights
    )


def _phase_1_records(config: DistillConfig, path: str) -> list[list[Text]]:
    """The texts of each record that only phase 1 learns."""
    data = config.data
    read = read_records_or_texts(path, data.limit, data.columns, data.skip_invalid)
    return [[Text(item, False)] if isinstance(item, str) else texts_in(item) for item in read]


def texts_in(record: Record) -> list[Text]:
    """The texts of a record, its query first."""
    return [Text(record.query, True), *(Text(text, False) for text in (record.positive, *record.negatives))]


def _not_held_out(read: Sequence[list[list[Text]]], kept: Sequence[RetrievalSet]) -> list[list[list[Text]]]:
    """What phase 1 may learn: no query that is kept, and no single text that is."""
    queries = {query for part in kept for query in part.queries}
    texts = {text.text for part in kept for text in texts_of(part)}
    found = [[item for item in items if item[0].text not in (texts if len(item) == 1 else queries)] for items in read]
    if not all(found):
        raise UserError("Give every file of data.phase1 other texts: one has only those that are kept for validation.")
    return found


def _flat(sources: Sequence[Sequence[Sequence[Text]]]) -> Iterator[Text]:
    return (text for items in sources for item in items for text in item)


def records_of_phases(config: DistillConfig, read: Sequence[Sequence[Record]]) -> list[int]:
    """How many records of each source of data.train the phases use."""
    second = share_out(config.max_samples_phase2, list(map(len, read)))
    if config.skip_phase1 or config.data.phase1:
        return second
    first = _records_of_phase_1(config, [[texts_in(record) for record in records] for records in read])
    return first if config.skip_phase2 else list(map(max, first, second))


def _records_of_phase_1(config: DistillConfig, read: Sequence[Sequence[Sequence[Text]]]) -> list[int]:
    """How many records of each source phase 1 uses, given the texts of each."""
    limit = config.max_samples_phase1
    if config.phase1_samples == "records":
        return share_out(limit, list(map(len, read)))
    return [_records_with(texts, items) for texts, items in zip(share_texts(limit, read), read)]


def _records_with(texts: int, items: Sequence[Sequence[Text]]) -> int:
    """How many records, from the first, have so many distinct texts."""
    found = set[Text]()
    for count, item in enumerate(items):
        if len(found) >= texts:
            return count
        found.update(item)
    return len(items)


def share_texts(limit: int, sources: Sequence[Sized]) -> list[int]:
    """How many texts of each source are taken where `limit` in all are wanted: by its number of records."""
    total = sum(map(len, sources))
    return [max(1, limit * len(source) // total) for source in sources]


def share_out(limit: int, sizes: Sequence[int]) -> list[int]:
    """How many rows of each source are taken where `limit` in all are wanted: by size, and at least one."""
    total = sum(sizes)
    return list(sizes) if total <= limit else [max(1, size * limit // total) for size in sizes]


def sentences_of(*texts: Sequence[str]) -> list[str]:
    """The distinct sentences of texts that have more than one."""
    parts = (_SENTENCE_END.split(text) for each in texts for text in each)
    found = dict.fromkeys(part for split in parts if len(split) > 1 for part in split)
    return [part for part in found if len(part.split()) >= _FEWEST_WORDS]


def hold_out(
    read: Sequence[Sequence[Record]], validation: float, most: int, test: float, seed: int
) -> tuple[list[list[Record]], RetrievalSet | None, RetrievalSet | None]:
    """The records for training; and for validation (at most so many queries) and a test shares of the queries with all
    their records, as retrieval sets, whose passages are those of these records."""
    queries = list(dict.fromkeys(record.query for records in read for record in records))
    parts = split_records(queries, queries, validation=min(validation, most / len(queries)), test=test, seed=seed)
    held_out = {*parts.validation, *parts.test}
    kept = _without(held_out, read, "records of several queries; one has none left for training")
    every = [record for records in read for record in records]
    return kept, _retrieval_set(every, set(parts.validation)), _retrieval_set(every, set(parts.test))


def _without(queries: Collection[str], read: Sequence[Sequence[Record]], wanted: str) -> list[list[Record]]:
    """The records that are not of these queries, of every source; refused where one has none."""
    found = [[record for record in records if record.query not in queries] for records in read]
    if not all(found):
        raise UserError(f"Give every file of data.train {wanted}.")
    return found


def _retrieval_set(records: Sequence[Record], queries: Collection[str]) -> RetrievalSet | None:
    """Of the records of these queries, if there are any."""
    if not queries:
        return None
    table = TextTable.of([record for record in records if record.query in queries])
    relevant: list[dict[int, float]] = [{} for _ in table.queries]
    for row in table.rows:
        relevant[row.query][row.positive] = 1.0
    return RetrievalSet(table.queries, table.passages, relevant)


def _origins(config: DistillConfig, table: TextTable, held_out: RetrievalSet) -> list[Origin]:
    """The files, or what the texts are where there are none."""
    named = [
        path for each in (config.data.named, as_list(config.data.phase1)) if each for path, _ in parse_sources(each)
    ]
    named += [config.data.validation] if config.data.validation else []
    files: list[Origin] = [DataFile(file.resolve()) for name in named for file in _files(name)]
    if config.data.named:
        return files
    digest = hashlib.sha256(repr((table, held_out)).encode())
    return [*files, np.frombuffer(digest.digest(), dtype=np.uint8)]


def _files(name: str) -> list[Path]:
    if hub_dataset(name) is not None:
        return find_files(name)
    path = expand_home(name)
    if path.parent.name == "qrels":  # a split of a folder as BEIR has them
        path = path.parent.parent
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def digest_of(texts: Sequence[Text]) -> str:
    """Equal for the same texts in the same order."""
    digest = hashlib.sha256()
    for text in texts:
        digest.update(f"{text.is_query} {len(text.text)} {text.text}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def data_of(trained: Trained) -> DistillData:
    """The data of a trained network, refused if it has changed: the queries that were kept for validation would be
    others, and so would the tokens of a built-in network."""
    data, file = load_data(trained.config), texts_file(trained)
    if file is not None and read_object(file).get("texts") != data.digest:
        raise UserError(
            f"Bring back the data that {trained.source} was trained with; its texts are others now, or this is another "
            "version of Python, whose documentation was the data."
        )
    return data


def texts_file(trained: Trained) -> Path | None:
    """Where a run has recorded its texts; None for a network without a run."""
    file = trained.run.artifacts(trained.stage) / TEXTS if trained.run else None
    return file if file and file.is_file() else None
