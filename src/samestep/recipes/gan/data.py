"""The training data: prompts, each with the text that a person wrote for it, from a file or from Python's own text.

A file's domain says which of its columns the prompt is made of and which a person wrote. It is found by the columns:

    register_domain(Domain("poems", prompt_fields=("subject",), human_field="poem", template="Write about {subject}."))

A recipe file of your own may register more when it is imported.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from string import Formatter
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from samestep import UserError
from samestep.core.config.bounds import Bounds, Count, PartialShare
from samestep.core.errors import quoted
from samestep.data.data_file import DataFile
from samestep.data.order_choice import Weighted
from samestep.data.pydoc_topics import BUILT_IN_TEXT, distinct, passages, pydoc_topics
from samestep.data.records.reading import ABSENT, Records, RecordsConfig, text_fault
from samestep.data.records.rows import Row
from samestep.data.records.too_long import LengthLimit, TooLong
from samestep.data.split import split_records

Origin = DataFile | np.ndarray
GENERATED = "generated"
"""The column of a text that some model wrote for the same prompt, in a file of pairs."""


@dataclass(frozen=True)
class Domain:
    """One kind of text."""

    name: str
    prompt_fields: tuple[str, ...]
    """The columns that the prompt is made of."""
    human_field: str
    """The column of the text that a person wrote."""
    template: str
    """The prompt, with the prompt's columns in braces."""
    group_field: str | None = None
    """The column by which results are also shown; None: there is one group."""
    optional_fields: tuple[str, ...] = ()
    """Those of the prompt's columns that a row may lack; its prompt is then without their lines."""

    def __post_init__(self) -> None:
        for name in (name for name in self.prompt_fields if not name.isidentifier()):
            raise UserError(f"Rename the column {name!r} of domain {self.name!r}; a template can only name words.")
        if self.human_field in self.prompt_fields:
            raise UserError(f"Leave {self.human_field!r} out of the prompt of domain {self.name!r}; it is the answer.")
        try:
            parts = [part for part in Formatter().parse(self.template) if part[1] is not None]
            used = {f"{name}{'!' + way if way else ''}{':' + spec if spec else ''}" for _, name, spec, way in parts}
        except ValueError as problem:
            raise UserError(f"Fix the template of domain {self.name!r}: {problem}.") from None
        if used != set(self.prompt_fields):
            raise UserError(
                f"Name exactly the prompt's columns in the template of domain {self.name!r}: it has "
                f"{quoted(sorted(used))}, and the columns are {quoted(self.prompt_fields)}."
            )

    @property
    def columns(self) -> tuple[str, ...]:
        named = (*self.prompt_fields, self.human_field, *([self.group_field] if self.group_field else []))
        return tuple(dict.fromkeys(named))

    @property
    def required(self) -> tuple[str, ...]:
        """The columns that every row has."""
        return tuple(name for name in self.columns if name not in self.optional_fields)

    def prompt(self, row: Mapping[str, str]) -> str:
        empty = ["{" + name + "}" for name in self.optional_fields if not row[name]]
        lines = self.template.splitlines(keepends=True)
        kept = "".join(line for line in lines if not any(field in line for field in empty))
        return kept.format(**{field: row[field] for field in self.prompt_fields})

    def group(self, row: Mapping[str, str]) -> str:
        return (row[self.group_field] or f"no {self.group_field}") if self.group_field else self.name

    def record(self, row: Mapping[str, str], source: int = 0) -> "Record":
        return Record(self.prompt(row), row[self.human_field], self.group(row), source)


STORIES = Domain(
    "stories",
    prompt_fields=("title", "genre"),
    human_field="human_story",
    template="Write a short story.\nTitle: {title}\nGenre: {genre}\n\nStory:\n",
    group_field="genre",
    optional_fields=("genre",),
)
PROOFS = Domain(
    "proofs",
    prompt_fields=("problem",),
    human_field="human_solution",
    template="Prove the following, step by step.\n\nProblem:\n{problem}\n\nProof:\n",
    group_field="source",
)
PYDOC = Domain(
    "pydoc",
    prompt_fields=("title",),
    human_field="paragraph",
    template="Write a paragraph of Python's reference on {title}.\n\n",
)
"""The text that comes with Python; it is used where no file is named."""
DOMAINS = {domain.name: domain for domain in (STORIES, PROOFS, PYDOC)}
OTHER_NAMES = {"creative_writing": STORIES.name}
"""Of domains, as `data.domain` may spell them too."""


def register_domain(domain: Domain) -> Domain:
    """Make a domain known; one of another definition under the same name is refused."""
    known = DOMAINS.setdefault(domain.name, domain)
    if known != domain:
        raise UserError(f"Name your domain differently; there is another one called {domain.name!r}.")
    return domain


def find_domain(columns: Iterable[str], file: str, name: str | None = None) -> Domain:
    """The domain called `name`, or the only one whose columns a file has."""
    found = set(columns)
    if name is not None:
        name = OTHER_NAMES.get(name, name)
        if name not in DOMAINS:
            known = quoted([*DOMAINS, *OTHER_NAMES])
            raise UserError(f"Set data.domain to one of {known}, or to null; it is {name!r}.")
        if missing := [column for column in DOMAINS[name].required if column not in found]:
            raise UserError(
                f"Give {file} the columns of domain {name!r}; it lacks {quoted(missing)}, and has "
                f"{quoted(sorted(found))}."
            )
        return DOMAINS[name]
    fitting = [domain for domain in DOMAINS.values() if found.issuperset(domain.required)]
    if not fitting:
        known = "; ".join(f"{domain.name}: {', '.join(domain.columns)}" for domain in DOMAINS.values())
        raise UserError(f"Give {file} the columns of a domain ({known}); it has {quoted(sorted(found))}.")
    if len(fitting) > 1:
        raise UserError(f"Set data.domain; {file} has the columns of {quoted(domain.name for domain in fitting)}.")
    return fitting[0]


@dataclass(frozen=True)
class DataConfig(RecordsConfig):
    """The training data."""

    path: str | list[str] | None = field(default=None, hash=False)
    """A file or folder of records (.jsonl, .json, .csv, .tsv, .parquet) or a dataset of the Hub (org/name:split); or
    several, drawn in the proportion of weights, as [a.jsonl:3, b.csv:1]. null is the English text that comes with
    Python (`pydoc_data.topics`)."""
    domain: str | None = None
    """The kind of text: stories (also called creative_writing), proofs, or one of your own; null: found by the columns
    of the file."""
    min_story_length: Count = 1
    """Leave out human texts with fewer characters."""
    max_story_length: Count | None = None
    """The most characters of a human text; null: any number."""
    too_long: TooLong = "drop"
    """What to do with human texts that are longer than that: refuse, drop, or truncate."""
    validation_fraction: PartialShare = 0.1
    """Share of the records that is kept for validation, chosen by the seed."""
    test_fraction: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Share that is kept for a last test, which chooses nothing: `samestep eval` has its prompts from there; 0: none,
    and it has them from validation."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many of the records that are left, from the beginning, for a quick trial; null is all of them."""

    def __post_init__(self) -> None:
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "Set data.validation_fraction and data.test_fraction to less than 1 together, or nothing is left to "
                f"train on; they are {self.validation_fraction:g} and {self.test_fraction:g}."
            )
        if self.max_story_length is not None and self.max_story_length < self.min_story_length:
            raise UserError(
                f"Set data.max_story_length to data.min_story_length={self.min_story_length} or more, or to null; it "
                f"is {self.max_story_length}."
            )


@dataclass(frozen=True)
class Record:
    """A prompt, and what a person wrote for it."""

    prompt: str
    human: str
    group: str
    source: int = field(default=0, compare=False)
    """Which of several files it is from."""


class TextRows:
    """Records by index, as a feed reads them; `of_batch` gives the texts of a batch."""

    def __init__(
        self,
        records: Sequence[Record],
        groups: Sequence[str],
        origins: Sequence[Origin],
        weights: Sequence[float] | None = None,
    ) -> None:
        """`weights`: how often each is drawn, in proportion; None: once an epoch."""
        self.records, self.groups, self.weights = records, groups, weights
        self._origins = origins

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record = self.records[index]
        return {"prompt": record.prompt, "human": record.human, "group": self.groups.index(record.group)}

    def order(self) -> Weighted | None:
        """The order for training; None: every record once an epoch."""
        return Weighted(self.weights) if self.weights else None

    def of_batch(self, ids: Tensor) -> list[Record]:
        """The records of the rows of a batch, by the `ids` that a feed gives it."""
        return [self.records[index] for index in ids[:, 1].tolist()]

    def origins(self) -> Sequence[Origin]:
        """Where the texts come from, for the comparison of a resumed run."""
        return self._origins


def groups_of(samples: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """A feed's collate: only which group a sample is of, since texts are taken from the rows by their ids."""
    return {"group": torch.tensor([sample["group"] for sample in samples])}


@dataclass(frozen=True)
class Texts:
    """The data, in parts that have no human text in common."""

    name: str
    """The file, or the name of the built-in text."""
    domain: Domain
    train: TextRows
    validation: TextRows
    selection: str
    """How many records there are, and why others were left out."""
    test: TextRows | None = None
    """What neither training nor validation sees, if that is wanted."""


def load(config: DataConfig, seed: int) -> Texts:
    """Read the data and split it; the same on every rank, since only the seed decides.

    A process reads it once for all stages, and again only if the file has changed.
    """
    return _load(config, seed, _version(config.path))


def _version(path: str | Sequence[str] | None) -> tuple[tuple[int, ...], ...]:
    found = [file.stat() for file in Records(path).files] if path else []
    return tuple((stat.st_ino, stat.st_size, stat.st_ctime_ns) for stat in found)


@lru_cache(maxsize=1)
def _load(config: DataConfig, seed: int, version: tuple[tuple[int, ...], ...]) -> Texts:
    origins: Sequence[Origin]
    read: Records | None = None
    limit = LengthLimit(config.max_story_length, config.too_long, "characters", "human texts")
    if config.path is None:
        if config.domain not in (None, PYDOC.name):
            raise UserError(f"Name the file with data.path; data.domain={config.domain} is not that of Python's text.")
        name, domain, every = BUILT_IN_TEXT, PYDOC, pydoc_records()
        origins = [np.frombuffer("\0".join(r.prompt + r.human for r in every).encode("utf-8"), dtype=np.uint8)]
        records = [fitting for record in every if (fitting := _fit(record, limit, _refuse_own_text))]
    else:
        read = config.records(config.path)
        name = read.path
        domain, origins = find_domain(read.columns, name, config.domain), read.origins()
        records = list(_read_records(read, domain, limit))
        read.check(config.skip_invalid)
    kept, selection = _select(records, config, limit, f"{name} ({domain.name})")
    groups = sorted({record.group for record in kept})
    # Records with the same human text stay together.
    shares = {"validation": config.validation_fraction, "test": config.test_fraction}
    parts = split_records(kept, [record.human for record in kept], **shares, seed=seed)
    weights = read.draw_weights([record.source for record in parts.train]) if read else None
    train = TextRows(parts.train, groups, origins, weights)
    validation, test = (TextRows(part, groups, origins) for part in parts[1:])
    return Texts(name, domain, train, validation, selection, test if len(test) else None)


def load_pairs(config: DataConfig, path: str) -> tuple[TextRows, list[str]]:
    """Records with the columns of a domain, and in `generated` what a model wrote for the same prompt."""
    read = config.records(path)
    domain = find_domain(read.columns, path, config.domain)
    read.expect((*domain.columns, GENERATED))
    texts = [found for row in read.rows if (found := _texts(read, row, domain, [GENERATED]))]
    read.check(config.skip_invalid)
    records = list(map(domain.record, texts))
    groups = sorted({record.group for record in records})
    return TextRows(records, groups, read.origins()), [row[GENERATED] for row in texts]


def _read_records(read: Records, domain: Domain, limit: LengthLimit) -> Iterator[Record]:
    """The records of a file; what is wrong with any of its rows is kept."""
    read.expect(domain.columns)
    for row in read.rows:
        texts = _texts(read, row, domain)
        if texts and (
            fitting := _fit(domain.record(texts, row.source), limit, partial(read.refuse, row, about="length"))
        ):
            yield fitting


def _texts(read: Records, row: Row, domain: Domain, more: Sequence[str] = ()) -> dict[str, str] | None:
    """The texts of a row by column, those of a domain and `more`; an optional one may be empty."""
    given = [name for name in domain.optional_fields if text_fault(row.values.get(name)) not in ABSENT]
    texts = read.texts(row, [*domain.required, *given, *more])
    return {**dict.fromkeys(domain.columns, ""), **texts} if texts else None


def _fit(record: Record, limit: LengthLimit, refuse: Callable[[str], None]) -> Record | None:
    """The record, its human text cut if it is too long; None if it is left out."""
    if not limit.keeps(len(record.human), refuse):
        return None
    return replace(record, human=record.human[: limit.limit])


def _refuse_own_text(problem: str) -> None:
    raise UserError(f"Set data.too_long=drop or truncate, or a file: a paragraph of {BUILT_IN_TEXT} is too long.")


def count_repeated(records: Iterable[Record], training: Iterable[Record]) -> int:
    """How many records have a prompt that occurs in training; their human texts do not."""
    known = {record.prompt for record in training}
    return sum(record.prompt in known for record in records)


@cache
def pydoc_records() -> Sequence[Record]:
    """Every paragraph of prose in Python's help, under its topic; code, grammar, headings and lists are left out."""
    topic_of: dict[str, str] = {}
    for topic, text in pydoc_topics():
        for passage in passages(text):
            topic_of.setdefault(passage, topic)
    found = []
    for passage in distinct(iter(topic_of)):
        if passage[0].isalpha() and passage.endswith(".") and "::=" not in passage:
            row = {"title": topic_of[passage], "paragraph": " ".join(passage.split())}
            found.append(Record(PYDOC.prompt(row), row["paragraph"], PYDOC.group(row)))
    return tuple(found)


def _select(records: Sequence[Record], config: DataConfig, limit: LengthLimit, name: str) -> tuple[list[Record], str]:
    """The records whose human texts are long enough, and a sentence about all that were read."""
    shortest = config.min_story_length
    fitting = [record for record in records if len(record.human) >= shortest]
    kept = fitting[: config.limit]
    left_out = {
        f"shorter than {shortest} characters": len(records) - len(fitting),
        "beyond data.limit": len(fitting) - len(kept),
    }
    why = ", ".join(f"{count} {reason}" for reason, count in left_out.items() if count)
    sentence = f"{len(kept)} of {limit.total} records of {name}" + (f"; left out: {why}" if why else "")
    sentence += f"; {limit.sentence}" if limit.longer else ""
    if len(kept) < 2:
        raise UserError(f"Give at least two records, or change data.min_story_length or max_story_length; {sentence}.")
    return kept, sentence
