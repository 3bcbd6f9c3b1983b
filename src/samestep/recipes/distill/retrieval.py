"""What retrieval is measured on: queries, a corpus, and which of its passages answer which query; how good a ranking
is, and the ranking by vectors.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from samestep import RunFailed, UserError
from samestep.core.paths import expand_home
from samestep.data.records.reading import Records, text_fault
from samestep.data.records.rows import Row

_QRELS = ("query-id", "corpus-id", "score")
CUTOFF = 10
"""How many passages of a ranking nDCG and MRR look at."""
_QUERIES = 256
_PASSAGES = 16384
_LOW = 0xFFFFFFFF


@dataclass(frozen=True)
class RetrievalSet:
    """Queries, the passages to find, and their grades."""

    queries: list[str]
    passages: list[str]
    relevant: list[dict[int, float]]
    """For each query, the passages that answer it, with a grade above 0 each."""
    itself: Mapping[int, int] = field(default_factory=dict)
    """The passage that a query was taken from, for queries that are passages: finding it is no answer."""

    def metrics(self, ranked: Sequence[Sequence[int]], ks: Sequence[int] = (1, 10, 100)) -> dict[str, float]:
        """nDCG@10, MRR@10 and Recall@k of the passages found for each query, best first.

        Ask for `max(ks) + 1` passages a query where `itself` has any.
        """
        others = [
            [passage for passage in found if passage != self.itself.get(number)] for number, found in enumerate(ranked)
        ]
        return retrieval_metrics(others, self.relevant, ks)


def read_beir(folder: str | Path, split: str = "test") -> RetrievalSet:
    """A folder as BEIR has them: corpus.jsonl, queries.jsonl, qrels/test.tsv.

    A passage is its title and its text. Queries without a grade above 0 in this split are left out.
    """
    files = [_existing(expand_home(folder), name) for name in ("corpus.jsonl", "queries.jsonl")]
    grades_file = _existing(expand_home(folder), f"qrels/{split}.tsv")
    corpus, queries = (_texts_by_id(file) for file in files)
    grades = _grades(grades_file, list(queries), list(corpus))
    numbers = {name: number for number, name in enumerate(corpus)}
    return RetrievalSet(
        [queries[name] for name in grades],
        list(corpus.values()),
        [{numbers[passage]: grade for passage, grade in found.items()} for found in grades.values()],
        {place: numbers[name] for place, name in enumerate(grades) if name in numbers},
    )


def find_beir(path: str, wanted: str) -> tuple[Path, str] | None:
    """The folder and the split that a path names: a folder as BEIR has them, of which the `wanted` split is taken, or
    the only one; or a file qrels/SPLIT.tsv in it. None for any other path."""
    place = expand_home(path)
    folder = place.parent.parent if place.parent.name == "qrels" and place.suffix == ".tsv" else place
    if not ((folder / "corpus.jsonl").is_file() and (folder / "qrels").is_dir()):
        return None
    splits = sorted(file.stem for file in (folder / "qrels").glob("*.tsv"))
    if place != folder:
        return folder, place.stem
    if wanted not in splits and len(splits) > 1:
        named = ", ".join(str(folder / "qrels" / f"{split}.tsv") for split in splits)
        raise UserError(f"Name one split of {path}, such as {named}; it has none called {wanted}.")
    return folder, wanted if wanted in splits or not splits else splits[0]


def _existing(folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        found = sorted(str(path.relative_to(folder)) for path in folder.glob("**/*") if path.is_file())[:10]
        raise UserError(
            f"Give a folder with corpus.jsonl, queries.jsonl and qrels/SPLIT.tsv, as BEIR has them; {folder} has no "
            f"{name}, but {', '.join(found) or 'no file'}."
        )
    return folder / name


def _texts_by_id(file: Path) -> dict[str, str]:
    """The texts of a file in its order; those of a corpus begin with the title, and may be empty."""
    table = Records(str(file), section=None)
    texts: dict[str, str] = {}
    for row in table.rows:
        name, title, text = (row.values.get(key) for key in ("_id", "title", "text"))
        may_be_empty = file.stem == "corpus" and text == ""
        if not isinstance(name, str) or text_fault(name):
            table.refuse(row, f"'_id' {text_fault(name)}")
        elif name in texts:
            table.refuse(row, f"the '_id' {name!r} comes twice")
        elif not may_be_empty and (fault := text_fault(text)):
            table.refuse(row, f"'text' {fault}")
        elif title and (fault := text_fault(title)):
            table.refuse(row, f"'title' {fault}")
        else:
            texts[name] = f"{title or ''} {text}".strip()
    table.check()
    return texts


def _grades(file: Path, queries: Sequence[str], passages: Sequence[str]) -> dict[str, dict[str, float]]:
    """For each query with an answer, in the order of the queries: the passages that answer it."""
    table = Records(str(file), section=None)
    if missing := [name for name in _QRELS if name not in table.columns]:
        raise UserError(f"Give {file} the columns {', '.join(_QRELS)}, with tabs between; it has no {missing[0]}.")
    found: dict[str, dict[str, float]] = {name: {} for name in queries}
    known = set(passages)
    for row in table.rows:
        query, passage = (row.values[name] for name in _QRELS[:2])
        wrong = list(_qrel_faults(row, query in found, passage in known, found.get(query, {})))
        if wrong:
            table.refuse(row, ", ".join(wrong))
        else:
            found[query][passage] = float(row.values["score"])
    table.check()
    answered = {
        query: {passage: grade for passage, grade in grades.items() if grade > 0} for query, grades in found.items()
    }
    answered = {query: grades for query, grades in answered.items() if grades}
    if not answered:
        raise UserError(f"Give {file} a query with a score above 0; it has none.")
    return answered


def _qrel_faults(row: Row, has_query: bool, has_passage: bool, before: Mapping[str, float]) -> Iterator[str]:
    query, passage, score = (row.values[name] for name in _QRELS)
    if not has_query:
        yield f"queries.jsonl has no {query!r}"
    if not has_passage:
        yield f"corpus.jsonl has no {passage!r}"
    if passage in before:
        yield f"{query!r} and {passage!r} come twice"
    if not re.fullmatch(r"\s*-?\d+\s*", score or ""):
        yield f"'score' is no whole number but {score!r}"


def retrieval_metrics(
    ranked: Sequence[Sequence[int]], relevant: Sequence[Mapping[int, float]], ks: Sequence[int] = (1, 10, 100)
) -> dict[str, float]:
    """Means over all queries of nDCG@10, MRR@10 and Recall@k, as trec_eval computes them.

    `ranked` has the passages found for each query, best first; `relevant` the grade of each passage that is relevant to
    it. A grade of 0 or less is that of a passage that is not relevant. nDCG's gain is the grade itself.
    """
    assert len(ranked) == len(relevant), "one ranking for each query"
    useless = [number for number, grades in enumerate(relevant) if not any(grade > 0 for grade in grades.values())]
    if useless or not relevant:
        named = ", ".join(map(str, useless[:10])) + (", ..." if len(useless) > 10 else "")
        what = f"{len(useless)} of {len(relevant)} have none: number {named}" if useless else "there is no query"
        raise UserError(f"Evaluate on queries that have a relevant passage each; {what}.")
    sums: dict[str, float] = dict.fromkeys((f"ndcg@{CUTOFF}", f"mrr@{CUTOFF}", *(f"recall@{k}" for k in ks)), 0.0)
    for found, grades in zip(ranked, relevant):
        assert len(set(found)) == len(found), "a passage is ranked once"
        gains = [max(grades.get(passage, 0.0), 0.0) for passage in found]
        ideal = sorted((grade for grade in grades.values() if grade > 0), reverse=True)
        sums[f"ndcg@{CUTOFF}"] += _discounted(gains) / _discounted(ideal)
        sums[f"mrr@{CUTOFF}"] += next((1 / place for place, gain in enumerate(gains[:CUTOFF], 1) if gain > 0), 0.0)
        for k in ks:
            sums[f"recall@{k}"] += sum(gain > 0 for gain in gains[:k]) / len(ideal)
    return {name: total / len(relevant) for name, total in sums.items()}


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(place + 1) for place, gain in enumerate(gains[:CUTOFF], start=1))


def rank_by_vectors(queries: Tensor, passages: Tensor, top: int) -> list[list[int]]:
    """For each query the numbers of the passages with the largest inner products, largest first; ties by number.

    Products are computed in float64 and compared in float32, so that neither the device nor the size of a block
    decides which of two equal passages comes first. Passages may be on another device than the queries.
    """
    for name, vectors in (("queries", queries), ("passages", passages)):
        if not bool(vectors.isfinite().all()):
            raise RunFailed(f"The vectors of the {name} are not finite, so nothing can be ranked by them.")
    device = queries.device if queries.device.type in ("cpu", "cuda") else torch.device("cpu")
    return [
        numbers
        for block in queries.split(_QUERIES)
        for numbers in _best(block.to(device, torch.float64), passages, top).tolist()
    ]


def _best(queries: Tensor, passages: Tensor, top: int) -> Tensor:
    best = torch.empty(len(queries), 0, dtype=torch.int64, device=queries.device)
    for start in range(0, len(passages), _PASSAGES):
        block = passages[start : start + _PASSAGES].to(queries.device, torch.float64)
        keys = torch.cat([best, _sortable((queries @ block.T).float(), start)], dim=1)
        best = keys.topk(min(top, keys.shape[1]), dim=1).values
    return _LOW - (best & _LOW)


def _sortable(scores: Tensor, start: int) -> Tensor:
    """Integers in the order of (score, then lower number): no two are equal, so the order has no choice."""
    bits = (scores + 0.0).view(torch.int32).long()  # + 0.0: zero has one sign
    ordered = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    numbers = torch.arange(start, start + scores.shape[1], device=scores.device)
    return (ordered << 32) | (_LOW - numbers)
