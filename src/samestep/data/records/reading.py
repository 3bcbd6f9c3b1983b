"""Records of a file, of a folder of files, or of a saved dataset.

    records = Records("pairs.jsonl.gz", columns={"prompt": "question"})
    records.expect(["prompt", "chosen", "rejected"])
    pairs = [records.texts(row, ["prompt", "chosen", "rejected"]) for row in records.rows]
    records.check()

Whatever is wrong with rows is collected, and said at once by `check`, each with its file and number.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from samestep.core.config.checked import CheckedConfig
from samestep.core.config.no_effect import NoEffect
from samestep.core.errors import UserError, quoted
from samestep.core.json_files import parse_json
from samestep.core.paths import expand_home
from samestep.data.data_file import DataFile, existing_file
from samestep.data.records.arrow import dataset_files, dataset_rows, is_saved_dataset, parquet_rows
from samestep.data.records.hub import download_records, hub_dataset
from samestep.data.records.lines import LINE_FORMATS, PACKINGS, ending, is_record_file
from samestep.data.records.mixture import parse_sources
from samestep.data.records.rows import Problem, Row, Rows

logger = logging.getLogger(__name__)
FORMATS: dict[str, Callable[[Path], Rows]] = {**LINE_FORMATS, ".parquet": parquet_rows}
SHOWN = 20
"""How many problems are listed one by one; the others are counted by their kind."""
_FOR_TWO_EDITS = 8
"""Letters of a name that may be misspelt in two places."""
ABSENT = ("is missing", "is empty")
"""What is wrong with a text that there is none of."""
Names = str | Sequence[str]
"""The name of a column, or all names for it."""


@dataclass(frozen=True)
class RecordsConfig(CheckedConfig):
    """How the records of a file are read; for the data settings of a recipe."""

    columns: dict[str, str] = field(default_factory=dict, hash=False, kw_only=True)
    """What a file calls its columns, where that is another name: data.columns.prompt=question."""
    skip_invalid: bool = field(default=False, kw_only=True)
    """Leave out records that cannot be used, and say how many; false: list all of them and stop."""

    PATHS: ClassVar[Sequence[str]] = ("path",)
    """The settings that name files, folders or datasets."""

    def named_paths(self) -> list[str]:
        """What these settings name, without weights."""
        values = [value for name in self.PATHS if (value := getattr(self, name, None))]
        named = [[(value, None)] if isinstance(value, str) else parse_sources(value) for value in values]
        return [path for each in named for path, _ in each]

    def records(self, path: str | Sequence[str], limit: int | None = None) -> "Records":
        """The records of a file or folder, or of several, that these settings are for."""
        return Records(path, self.columns, limit)


def only_for_records(when: Callable[[Any], bool]) -> NoEffect:
    """Names of columns do nothing where no records are named: `when` says so for a configuration."""
    return NoEffect("data.columns*", when, "it is for records; name a file of them, or leave it out")


class Records:
    """Rows of one path: `.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet`, packed or not, a folder of these, one of
    `datasets.save_to_disk`, or a dataset of the Hub; or of several paths, each of which may end with `:weight`."""

    def __init__(
        self,
        path: str | Sequence[str],
        columns: Mapping[str, str] | None = None,
        limit: int | None = None,
        section: str | None = "data.",
    ) -> None:
        """`columns` gives the file's name of a column where it has another; at most `limit` rows are read; `section` is
        where the settings for these records are, for messages; None: there are none."""
        named: list[tuple[str, float | None]] = [(path, None)] if isinstance(path, str) else parse_sources(path)
        self.paths, self.weights = [name for name, _ in named], [weight for _, weight in named]
        self.path = ", ".join(self.paths)
        self.found_files = list(map(find_files, self.paths))
        """By path."""
        self.files = [file for files in self.found_files for file in files]
        self.renamed = dict(columns or {})
        self.problems: list[Problem] = []
        self.total = 0
        self._limit, self._section = limit, section
        self._found: dict[str, None] = {}
        self._known: tuple[tuple[str, ...], ...] = ()
        self._lists: Sequence[str] = ()

    def __iter__(self) -> Iterator[Row]:
        """The usable rows one by one, so that memory does not grow with the files; problems are collected."""
        self.problems, self.total = [], 0
        for row in islice(self._read(), self._limit):
            self.total += 1
            row = replace(row, number=self.total)
            if isinstance(row, Problem):
                self.problems.append(row)
            else:
                self._found.update(dict.fromkeys(row.values))
                yield from self._checked(self._with_our_names(row))
        if not self.total:
            raise UserError(f"Give a file with records; {self.path} has none.")
        self._check_columns()

    @cached_property
    def rows(self) -> list[Row]:
        """All rows that can be used so far. A file without any is refused."""
        found = list(self)
        if not found:
            self.check()
        return found

    @property
    def columns(self) -> list[str]:
        """The columns that any row has, in the order in which they appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row.values))

    def origins(self) -> list[DataFile]:
        """The files, for the comparison of a resumed run."""
        return [DataFile(file.resolve()) for file in self.files]

    def expect(self, known: Iterable[Names], lists: Sequence[str] = ()) -> None:
        """Refuse rows with a column that is nearly one of `known`, and name once what else is not read.

        `known` has names, or sequences of names for the same thing. Those in `lists` may be lists; in a table, where
        every value is a text, they are written as JSON.
        """
        self._known = tuple((names,) if isinstance(names, str) else tuple(names) for names in known)
        self._lists = lists
        if "rows" in vars(self):
            self.rows = [checked for row in self.rows for checked in self._checked(row)]
            self._check_columns()

    def refuse(self, row: Row, text: str, about: str = "texts") -> None:
        """Say what is wrong with a row; `about` is the same in a word or two."""
        self.problems.append(Problem(row.where, text, about, row.number))

    @contextmanager
    def refusing(self, row: Row, about: str = "texts") -> Iterator[None]:
        """A UserError in here is what is wrong with a row."""
        try:
            yield
        except UserError as problem:
            self.refuse(row, str(problem).rstrip("."), about)

    def texts(self, row: Row, columns: Sequence[str]) -> dict[str, str] | None:
        """A row's texts in these columns; None if one is missing, which becomes a problem."""
        wrong = [f"{column!r} {fault}" for column in columns if (fault := text_fault(row.values.get(column)))]
        if wrong:
            is_absent = any(column not in row.values for column in columns)
            self.refuse(row, ", ".join(wrong) + (f"; it has {quoted(row.values)}" if is_absent else ""))
            return None
        return {column: row.values[column] for column in columns}

    def check(self, skip_invalid: bool = False) -> str:
        """Refuse files with problems, all of them at once; or say, once, what is left out and why, and return that."""
        sentence = leave_out(self.path, self.problems, self.total, skip_invalid, self._section)
        if sentence:
            say_once(sentence)
        return sentence

    def draw_weights(self, sources: Sequence[int]) -> list[float] | None:
        """How often a row is drawn, in proportion, given the `Row.source` of each, so that each path has the share of
        its weight; None where no weights are given."""
        sizes = Counter(sources)
        weights = [weight / sizes[source] for source, weight in enumerate(self.weights) if weight and sizes[source]]
        if not weights:
            return None
        if len(weights) < len(self.paths):
            raise UserError(f"Give each of {self.path} records that differ: of one, none is left for training.")
        return [weights[source] for source in sources]

    def _read(self) -> Rows:
        for number, (path, files) in enumerate(zip(self.paths, self.found_files)):
            several = f" of {path}" if len(self.paths) > 1 else ""
            for row in _rows_of(path, files):
                row = replace(row, where=row.where + several)
                yield row if isinstance(row, Problem) else replace(row, source=number)

    def _with_our_names(self, row: Row) -> Row:
        """The row with the names that a recipe knows its columns by."""
        if not self.renamed:
            return row
        others = {*self.renamed, *self.renamed.values()}
        kept = {name: value for name, value in row.values.items() if name not in others}
        ours = {name: row.values[theirs] for name, theirs in self.renamed.items() if theirs in row.values}
        return replace(row, values={**ours, **kept})

    def _checked(self, row: Row) -> Iterator[Row]:
        """The row with its lists, unless a column is misspelt."""
        given = tuple(name for name, value in row.values.items() if value is not None and value != "")
        if meant := _meant(given, self._known):
            for name, wanted in meant.items():
                hint = f"write {wanted!r}"
                hint += "" if self._section is None else f", or set {self._section}columns.{wanted}={name}"
                self.refuse(row, f"the column {name!r} is not known; {hint}", "columns")
                self._found.pop(name, None)
            return
        parsed = {name: _parsed(row.values[name]) for name in self._lists if row.is_cells and row.values.get(name)}
        yield replace(row, values={**row.values, **parsed}) if parsed else row

    def _check_columns(self) -> None:
        """Refuse settings for columns that no row has, and name once the columns that are not read."""
        absent = next((item for item in self.renamed.items() if item[1] not in self._found), None)
        if absent is not None and self._found:
            raise UserError(
                f"Correct {self._section}columns.{absent[0]}={absent[1]}: {self.path} has no such column, but "
                f"{quoted(self._found)}."
            )
        every = {name for names in self._known for name in names} | set(self.renamed.values())
        if self._known and (unused := [name for name in self._found if name not in every]):
            say_once(f"{self.path}: columns that are not used: {quoted(unused)}")


def _parsed(cell: str) -> Any:
    """A list that a cell of a table has as JSON; a text that is none stays one."""
    if cell.lstrip()[:1] == "[":
        with suppress(ValueError):
            return parse_json(cell)
    return cell


def leave_out(
    path: str | Path, problems: Sequence[Problem], total: int, skip_invalid: bool, section: str | None = "data."
) -> str:
    """Refuse records with problems, or say what is left out and why, where a record counts by its first problem."""
    problems = sorted(problems, key=lambda problem: problem.number)
    firsts = {problem.number: problem.about for problem in reversed(problems)}
    valid = total - len(firsts)
    if problems and not (skip_invalid and valid > 0):
        head = f"Fix {len(firsts)} of {total} records of {path}"
        if skip_invalid:
            head = f"Give records that can be used; none of the {total} of {path} can"
        elif section is not None:
            head += f", or leave them out with {section}skip_invalid=true"
        raise UserError(f"{head}:\n{_report(problems)}")
    why = ", ".join(f"{count} because of {about}" for about, count in sorted(Counter(firsts.values()).items()))
    return f"{valid} of {total} records of {path}; left out: {why}" if why else ""


def _report(problems: Sequence[Problem]) -> str:
    """The first problems line by line, the others counted."""
    lines = [f"  {problem.where}: {problem.text}" for problem in problems[:SHOWN]]
    if rest := Counter(problem.about for problem in problems[SHOWN:]):
        counted = ", ".join(f"{count} about {about}" for about, count in sorted(rest.items()))
        lines.append(f"  and {sum(rest.values())} more problems: {counted}")
    return "\n".join(lines)


def _rows_of(path: str, files: Sequence[Path]) -> Rows:
    if files[0].suffix == ".arrow":
        yield from dataset_rows(files)
        return
    folder = expand_home(path)
    for file in files:
        inside = str(file.relative_to(folder)) if file.is_relative_to(folder) else file.name
        named = "" if len(files) == 1 and file == folder else f" of {inside}"
        for row in FORMATS[ending(file)](file):
            row = replace(row, where=row.where + named)
            yield row if isinstance(row, Problem) else replace(row, file=file)


def find_files(path: str) -> list[Path]:
    """The files that hold the records of a path, in their order."""
    if (dataset := hub_dataset(path)) is not None:
        return download_records(dataset)
    folder = expand_home(path)
    if is_saved_dataset(folder):
        return dataset_files(folder)
    if folder.is_dir():
        found = sorted(file for file in folder.rglob("*") if is_record_file(file) and file.is_file())
        if not found:
            raise UserError(f"Give a folder with files that end with {_endings()}; {path} has none.")
        return [existing_file(str(file)) for file in found]
    file = existing_file(path)
    if not is_record_file(file):
        raise UserError(f"Give a file that ends with {_endings()}; {path} does not.")
    return [file]


def _endings() -> str:
    return f"{', '.join(FORMATS)} (all but the last also with {', '.join(PACKINGS)})"


def text_fault(value: Any) -> str:
    """Why a value is no text; empty if it is one."""
    if value is None:
        return ABSENT[0]
    if not isinstance(value, str):
        return f"is no text but {json.dumps(value, default=str)[:40]}"
    if not value.strip():
        return ABSENT[1]
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return "holds half of a surrogate pair"
    return ""


@cache
def _meant(names: tuple[str, ...], known: tuple[tuple[str, ...], ...]) -> dict[str, str]:
    """The columns of a row that were meant to be one that the row lacks."""
    every = [name for group in known for name in group]
    lacking = [name for group in known if not any(name in names for name in group) for name in group]
    found = {name: next(filter(partial(is_near, name), lacking), "") for name in names if name not in every}
    return {name: wanted for name, wanted in found.items() if wanted}


def is_near(name: str, known: str) -> bool:
    """Whether a name is another one with a typing error, or differs only in its capital letters and its dashes."""
    plain, wanted = (each.lower().replace("-", "_").replace(" ", "_") for each in (name, known))
    most = 0 if len(wanted) < 4 else 1 if len(wanted) < _FOR_TWO_EDITS else 2
    return edits(plain, wanted) <= most


def edits(first: str, second: str) -> int:
    """How many letters are added, left out, replaced, or exchanged with the next, from one text to the other."""
    before: list[int] = []
    row = list(range(len(second) + 1))
    for place, letter in enumerate(first):
        earlier, before, row = before, row, [place + 1]
        for other, wanted in enumerate(second):
            cost = min(before[other + 1] + 1, row[other] + 1, before[other] + (letter != wanted))
            if place and other and letter == second[other - 1] and first[place - 1] == wanted:
                cost = min(cost, earlier[other - 1] + 1)
            row.append(cost)
    return row[-1]


@cache
def say_once(sentence: str) -> None:
    """Warn once in a process, though several stages read the same file."""
    logger.warning("%s", sentence)
