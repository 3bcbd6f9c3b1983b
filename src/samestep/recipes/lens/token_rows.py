"""Texts as rows of tokens: the stage `pretokenize`.

A text is made tokens and cut into rows; what is left of it makes further rows. A last one that would be shorter than
half a row begins earlier, with tokens of the row before, since the activations of a token or two alone say little. A
row that comes again is left out: the first of equal rows counts, those for training before those for validation and
these before those for the test, so that no row is in two parts.

How many rows there are is known only once all texts are tokens. So each rank first writes the tokens of its share of
the texts into a file, one text after the other, and a digest of each row. From these files, which are memory-mapped,
all ranks write the rows together. They are the same on any number of ranks.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samestep import ArtifactKey, Batch, Bench, Dump, LanguageModel, UserError, World
from samestep.data.text import TokenFile, TokenFiles
from samestep.kit.language_model import first_tokens
from samestep.recipes.lens.config import DataConfig, LensConfig
from samestep.recipes.lens.language_model import open_model
from samestep.recipes.lens.texts import PARTS, TEST, Origin, Texts, load_texts
from samestep.train.artifacts.array_rows import ArrayRows, require_shared

PRETOKENIZE = "pretokenize"
"""The stage."""
TOKENS = "tokens"
"""What it leaves."""
WEIGHTS, ROWS = "weights of paths", "training rows of paths"
"""In its key, where weights are given."""
CUT = {"text cutting": "by tokens"}
"""In the key of all that follows from the rows."""
SHORTEST = 2
"""Tokens of a row at least: before its first token a model has read nothing."""
_SHARES = ".shares"
"""What the ranks write for each other until the rows are written."""


def cut(lengths: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Texts of so many tokens in rows of at most `most`: the text of each row, and where in it the row begins and
    ends."""
    rows = -(-lengths // most)
    text = np.repeat(np.arange(len(lengths)), rows)
    number, whole = np.arange(len(text)) - np.repeat(np.cumsum(rows) - rows, rows), lengths[text]
    start, latest = number * most, whole - (most + 1) // 2
    return text, np.where(number > 0, np.minimum(start, latest), start), np.minimum(start + most, whole)


@dataclass(frozen=True)
class Share:
    """A rank's share of the texts as tokens: those whose number is `rank`, modulo `size`."""

    folder: Path
    rank: int
    size: int

    def write(self, texts: Texts, model: LanguageModel, most: int, moved: Callable[[], None]) -> None:
        """Write the tokens, and about them the part, the path and the length of each text and a digest of each row."""
        parts: list[int] = []
        paths: list[int] = []
        lengths: list[int] = []
        digests = bytearray()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._file("tokens").open("wb") as file:
            for part, path, text in self._own(texts):
                tokens = np.array(model.encode(text), dtype="<u4")
                file.write(tokens.data)
                parts.append(part)
                paths.append(path)
                lengths.append(len(tokens))
                digests += b"".join(_digests(tokens, most))
                moved()
        part_of, path_of, length_of = (np.array(numbers, int) for numbers in (parts, paths, lengths))
        with self._file("about").open("wb") as file:
            np.savez(file, digest=np.frombuffer(digests, "u8"), part=part_of, path=path_of, length=length_of)

    def about(self) -> dict[str, np.ndarray]:
        with np.load(self._file("about")) as found:
            return dict(found)

    def tokens(self) -> list[TokenFile]:
        """The file of tokens, unless it is empty."""
        path = self._file("tokens")
        size = path.stat().st_size // 4
        return [TokenFile(path, "<u4", 0, size)] if size else []

    def _own(self, texts: Texts) -> Iterator[tuple[int, int, str]]:
        return (found for number, found in enumerate(texts.pieces()) if number % self.size == self.rank)

    def _file(self, what: str) -> Path:
        return self.folder / f"{what}-{self.rank}-of-{self.size}"


def _digests(tokens: np.ndarray, most: int) -> Iterator[bytes]:
    """Of each row of a text."""
    _, start, stop = cut(np.array([len(tokens)]), most)
    for first, end in zip(start.tolist(), stop.tolist()):
        yield hashlib.blake2b(tokens[first:end].tobytes(), digest_size=8).digest()


@dataclass(frozen=True)
class FoundRows:
    """Which rows there are, those for training first."""

    part: np.ndarray
    """The number of each row's part."""
    path: np.ndarray
    """The number of the path that it is from; in each part in their order."""
    start: np.ndarray
    """Where a row begins in the tokens of all ranks, those of rank 0 first."""
    length: np.ndarray
    tokens: int
    """Of all texts."""
    too_short: int
    """Tokens of texts that are too short for a row."""
    again: int
    """Rows that were left out because an equal one is in their part."""
    elsewhere: int
    """Rows of validation or test that were left out because an equal one is in a part before theirs."""

    @property
    def counts(self) -> dict[str, int]:
        """Rows by part."""
        return dict(zip(PARTS, np.bincount(self.part, minlength=len(PARTS)).tolist()))

    def by_path(self, paths: int) -> list[int]:
        """Rows for training of each path."""
        return np.bincount(self.path[self.part == 0], minlength=paths).tolist()

    @property
    def rows(self) -> str:
        """How many there are, as text."""
        train, validation, test = self.counts.values()
        return f"{train:,} rows for training, {validation:,} for validation and {test:,} for the test"

    def __str__(self) -> str:
        return (
            f"{self.tokens:,} tokens in {self.rows}; left out: {self.again:,} rows that come again in their part, "
            f"{self.elsewhere:,} rows that are in a part before theirs, {self.too_short:,} tokens of texts that are "
            "too short for a row"
        )


def find_rows(shares: Sequence[Mapping[str, np.ndarray]], most: int, least: int) -> FoundRows:
    """The rows of at least `least` and at most `most` tokens, of what all ranks have written about their shares."""
    ranks, size = range(len(shares)), sum(len(share["part"]) for share in shares)
    parts, paths, lengths, offsets = (np.empty(size, dtype=np.int64) for _ in range(4))
    before = 0
    for rank, share in enumerate(shares):
        for own, name in ((parts, "part"), (paths, "path"), (lengths, "length")):
            own[rank :: len(shares)] = share[name]
        offsets[rank :: len(shares)] = before + np.cumsum(share["length"]) - share["length"]
        before += int(share["length"].sum())
    text, start, stop = cut(lengths, most)
    digest = np.empty(len(text), dtype=np.uint64)
    for rank in ranks:
        digest[text % len(shares) == rank] = shares[rank]["digest"]
    part, length = parts[text], stop - start
    usable = np.flatnonzero(length >= least)
    usable = usable[np.argsort(part[usable], kind="stable")]
    _, first, same = np.unique(digest[usable], return_index=True, return_inverse=True)
    elsewhere = int((part[usable] != part[usable[first[same]]]).sum())
    kept = usable[np.sort(first)]
    again = len(usable) - len(kept) - elsewhere
    short = int(length[length < least].sum())
    return FoundRows(
        part[kept], paths[text][kept], (start + offsets[text])[kept], length[kept], before, short, again, elsewhere
    )


class CutRows:
    """The rows: a BOS token if the model has one, tokens of a text, and padding."""

    def __init__(self, texts: Texts, shares: Sequence[Share], model: LanguageModel, columns: int) -> None:
        self._texts, self._first, self._pad, self._columns = texts, first_tokens(model), model.pad, columns
        most, first = columns - len(self._first), len(self._first)
        self.found = find_rows([share.about() for share in shares], most, SHORTEST - first)
        self._tokens = TokenFiles([tokens for share in shares for tokens in share.tokens()])

    def __len__(self) -> int:
        return len(self.found.part)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        """`tokens` [rows, columns] and `length`."""
        start, length, first = self.found.start[indices], self.found.length[indices], len(self._first)
        column = np.arange(self._columns - first)
        own = self._tokens[start[:, None] + np.minimum(column, length[:, None] - 1)]
        tokens = np.empty((len(indices), self._columns), dtype=np.int64)
        tokens[:, :first], tokens[:, first:] = self._first, np.where(column < length[:, None], own, self._pad)
        return {"tokens": torch.from_numpy(tokens), "length": torch.from_numpy(length + first)}

    def origins(self) -> list[Origin]:
        return self._texts.origins()


def build_pretokenize(bench: Bench) -> Dump:
    """Tokens of all texts: those for training first."""
    config: LensConfig = bench.config
    columns, model, world = config.activation_dumper.seq_len, open_model(config, bench.world), bench.world
    texts = load_texts(config.data, config.seed)
    require_shared(bench.artifact(TOKENS), world, bench.shared)
    rows = make_rows(bench.artifact(_SHARES), texts, model, columns, world)
    _check_enough(bench, rows.found)
    if texts.part_of is None:
        bench.screen.print("too few texts to keep whole ones: validation and test are the end of the text")
    bench.screen.print(str(rows.found))
    mixture = _mixture(config.data, rows.found)
    if mixture:
        bench.screen.print(
            f"rows for training by path, {mixture[ROWS]}, have activations by weight, {mixture[WEIGHTS]}"
        )
    key = tokens_key(world, config, model, {"texts": texts.digest(), **rows.found.counts, **mixture})

    def compute(batch: Batch) -> dict[str, Tensor]:
        return {name: batch[name].int() for name in ("tokens", "length")}

    fields: dict[str, tuple[Sequence[int], str]] = {"tokens": ((columns,), "int32"), "length": ((), "int32")}
    return Dump(bench.evaluation_feed(rows), compute, bench.array_artifact(TOKENS, len(rows), fields, key))


def _mixture(data: DataConfig, found: FoundRows) -> dict[str, Any]:
    """Weights, and rows for training, of each path; nothing where no weights are given."""
    if not data.weights:
        return {}
    rows = found.by_path(len(data.weights))
    if 0 in rows:
        raise UserError(f"Give each of {data.name} texts that differ: of one, no row is left for training.")
    return {WEIGHTS: data.weights, ROWS: rows}


def make_rows(folder: Path, texts: Texts, model: LanguageModel, columns: int, world: World) -> CutRows:
    """The rows of texts; `folder` is for what the ranks write for each other. Collective."""
    shares = [Share(folder, rank, world.size) for rank in range(world.size)]
    most, moved = columns - len(first_tokens(model)), world.activity.made_progress
    world.run_on_all_ranks("making tokens", lambda: shares[world.rank].write(texts, model, most, moved))
    return CutRows(texts, shares, model, columns)


def _check_enough(bench: Bench, found: FoundRows) -> None:
    data: DataConfig = bench.config.data
    needed = PARTS if data.test_fraction else PARTS[:2]
    if min(found.counts[part] for part in needed) < 2:
        remove_shares(None, bench)
        test = ", or leave out the test with data.test_fraction=0" if TEST in needed else ""
        raise UserError(
            f"Give more text, or set activation_dumper.seq_len lower{test}; {data.name} gives {found.rows}, and each "
            "part needs 2."
        )


def remove_shares(task: Dump | None, bench: Bench) -> None:
    """What the ranks have written for each other is not needed any more. Collective."""
    bench.world.barrier()
    if bench.world.is_main:
        shutil.rmtree(bench.artifact(_SHARES))


def tokens_key(
    world: World, config: LensConfig, model: LanguageModel, more: Mapping[str, Any] | None = None
) -> ArtifactKey:
    """What tokens follow from beside the texts, which are `more`: later stages do not read them again. Collective."""
    return ArtifactKey.make(
        world,
        "the tokens of the texts",
        values={"seq_len": config.activation_dumper.seq_len, **CUT, **(more or {})},
        files={"tokenizer": model.files.get("tokenizer", {})},
        otherwise="start a new run",
    )


def open_tokens(bench: Bench, model: LanguageModel) -> ArrayRows:
    """What the stage has left, if it is of this tokenizer. Collective."""
    return bench.read_array_artifact(TOKENS, PRETOKENIZE, tokens_key(bench.world, bench.config, model))


class PartRows:
    """Rows of an array artifact from `start` to `stop`, for a feed."""

    def __init__(self, rows: ArrayRows, start: int, stop: int) -> None:
        self._rows, self._start, self._stop = rows, start, stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: value[0] for name, value in self.rows(np.array([index])).items()}

    def rows(self, indices: np.ndarray) -> dict[str, Tensor]:
        return self._rows.rows(np.asarray(indices) + self._start)

    def origins(self) -> list[Path]:
        return self._rows.origins()
