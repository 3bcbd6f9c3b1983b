"""`samestep evaluate RUN`: the student beside its teacher, itself before training, and BM25, at each of its sizes.

BM25 is the ranking by common words that a retriever has to beat. k1 is 0.9 and b is 0.4, with Lucene's idf
ln(1 + (N - n + 0.5) / (n + 0.5)). Words are lowercased runs of letters, digits and underscores; there is no stemming
and no list of stop words.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from samestep import EncoderSource, Trained, UserError, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.console import PlainConsole
from samestep.core.output import print_text
from samestep.core.pages.tables import Table
from samestep.data.split import PART_NOTES
from samestep.parallel.build import materialize
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import DistillData, Text, data_of, texts_of
from samestep.recipes.distill.exporting import export
from samestep.recipes.distill.models import MODEL, STUDENT, TEACHER, Models, open_models
from samestep.recipes.distill.objective import COSINE, cosine, unit_prefix
from samestep.recipes.distill.retrieval import RetrievalSet, read_beir
from samestep.recipes.distill.sampling import embed_texts
from samestep.recipes.distill.task import KS, NDCG, retrieval_of
from samestep.recipes.distill.teacher import TEACHER_STAGE, VECTORS, CachedVectors, vectors_key
from samestep.train.learner.initialization import build_fresh
from samestep.train.trained.batch_inference import compute_dtype, network_of
from samestep.train.trained.export import ExportOptions

TEST, VALIDATION = "test", "validation"
RETAINED = "retained"
"""The student's nDCG@10 as a share of that of the teacher's whole vectors."""
K1 = 0.9
B = 0.4
_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """What to evaluate on."""

    beir: Path | None = None
    """A folder in BEIR's format (corpus.jsonl, queries.jsonl, qrels/test.tsv); by default the queries that the run kept
    for a test (data.test_fraction), or else for validation."""
    mteb: str = ""
    """Also run these tasks of MTEB, such as NFCorpus,SciFact; needs the package mteb."""
    teacher: bool = True
    """Also evaluate the teacher; of the run's own queries its cached vectors are used."""
    untrained: bool = True
    """Also evaluate the student before training."""
    batch_size: Count = 32
    """Texts at once on a device."""


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> dict[str, Any]:
    """Metrics by model and size, on every rank."""
    if trained.form:
        raise UserError(f"Evaluate the run that {trained.source} came from: its data and its teacher are known there.")
    config: DistillConfig = trained.config
    data = data_of(trained)
    part = "" if options.beir else TEST if data.test else VALIDATION
    held_out = read_beir(options.beir) if options.beir else data.test or data.held_out
    subject = _Subject(trained, options, world, data, open_models(config, data, world), held_out)
    found = compare(subject.models.dims, subject.student(), held_out, subject.teacher() if options.teacher else None)
    if options.untrained:
        vectors = subject.untrained()
        sizes = sorted({min(dim, vectors.shape[1]) for dim in subject.models.dims}, reverse=True)
        found["untrained"] = {str(dim): retrieval_of(vectors, held_out, dim) for dim in sizes}
    ranked = rank_by_bm25(held_out.queries, held_out.passages, max(KS) + 1)
    found["bm25"] = {"": held_out.metrics(ranked, KS)}
    counts = {"queries": len(held_out.queries), "passages": len(held_out.passages)}
    tasks = [task for task in options.mteb.split(",") if task]
    mteb = {"mteb": _mteb(trained, tasks, world)} if tasks else {}
    return {"set": str(options.beir or data.name), "part": part, **counts, "models": found, **mteb}


@dataclass(frozen=True)
class _Subject:
    """What is evaluated, and how texts, queries first, become vectors there."""

    trained: Trained
    options: EvaluationOptions
    world: World
    data: DistillData
    models: Models
    held_out: RetrievalSet

    @property
    def texts(self) -> list[Text]:
        return texts_of(self.held_out)

    def student(self) -> Tensor:
        network, compute = network_of(self.trained, MODEL, self.world.device)
        reading = self.models.readings[STUDENT]
        return embed_texts(network, reading, self.texts, self.world, self.options.batch_size, compute)

    def untrained(self) -> Tensor:
        """Without a projection."""
        return self._before_training(self.models.untrained, MODEL, STUDENT)

    def teacher(self) -> Tensor:
        """Cached vectors, if there are some of these texts; refused if they are of another teacher."""
        run = self.trained.run
        if self.held_out is self.data.held_out and run and (run.artifacts(TEACHER_STAGE) / VECTORS).is_dir():
            key = vectors_key(self.trained.config, self.data, self.models, self.world)
            key = replace(key, otherwise="put back the teacher that the run was trained with, or use --no-teacher")
            rows = self.trained.read_array_artifact(VECTORS, TEACHER_STAGE, self.world, key)
            return CachedVectors(rows, self.data.texts).of(self.data.held_out_texts)
        return self._before_training(self.models.teacher, TEACHER_STAGE, TEACHER)

    def _before_training(self, source: EncoderSource, name: str, who: str) -> Tensor:
        """Of the network as a run builds it: with its published weights, or with those drawn for `name`."""
        config: DistillConfig = self.trained.config
        module, fill = build_fresh(source.network, config.seed, name)
        network = materialize(module, self.world.device, fill).eval()
        compute = compute_dtype(config, self.world.device)
        return embed_texts(network, self.models.readings[who], self.texts, self.world, self.options.batch_size, compute)


def compare(
    dims: Sequence[int], student: Tensor, held_out: RetrievalSet, teacher: Tensor | None
) -> dict[str, dict[str, dict[str, float]]]:
    """Metrics of the student at each of its sizes, beside those of the teacher at these and as a whole."""
    found: dict[str, dict[str, dict[str, float]]] = {
        "student": {str(dim): retrieval_of(student, held_out, dim) for dim in dims}
    }
    if teacher is None:
        return found
    teacher = teacher.to(student.dtype)
    sizes = sorted({teacher.shape[1], *dims}, reverse=True)
    found["teacher"] = {str(dim): retrieval_of(teacher, held_out, dim) for dim in sizes}
    whole = found["teacher"][str(sizes[0])][NDCG]
    for dim in dims:
        metrics = found["student"][str(dim)]
        metrics[RETAINED] = metrics[NDCG] / whole if whole else 0.0
        metrics[COSINE] = float(cosine(unit_prefix(student, dim), unit_prefix(teacher, dim)).mean())
    return found


def _mteb(trained: Trained, tasks: Sequence[str], world: World) -> dict[str, float]:
    """The score of each task, computed by rank 0 on the exported student."""

    def compute() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            export(trained, Path(folder) / "student", ExportOptions())
            return mteb_scores(Path(folder) / "student", tasks)

    return dict(world.run_on_all_ranks("running MTEB", lambda: compute() if world.is_main else {})[0])


def mteb_scores(folder: str | Path, tasks: Sequence[str]) -> dict[str, float]:
    """The main score of each task, for a model in a folder of sentence-transformers. The tasks' data is downloaded.

    Nothing is kept in the package's cache of results, which goes by a model's name and not by its weights.
    """
    try:
        import mteb
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise UserError('Tasks of MTEB need its package: pip install "samestep[mteb]"') from None
    if not tasks:
        raise UserError("Name at least one task of MTEB, such as NFCorpus.")
    if not (Path(folder) / "modules.json").is_file():
        raise UserError(f"Give a folder that sentence-transformers can load; {folder} has no modules.json.")
    try:
        chosen = [mteb.get_task(name) for name in tasks]
    except KeyError as problem:
        reason = str(problem.args[0]).removeprefix("KeyError: ")
        raise UserError(f"Name tasks that this version of MTEB has; {reason}") from None
    try:
        results = mteb.evaluate(SentenceTransformer(str(folder)), chosen, cache=None, show_progress_bar=False)
    except OSError as problem:  # which no connection is too
        raise UserError(f"Download the data of {', '.join(tasks)} first, or connect to the Hub: {problem}") from None
    return {result.task_name: float(result.get_score()) for result in results.task_results}


def show(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print a table, one row for each model and size."""
    title = f"{trained.source}\n{results['queries']:,} queries, {results['passages']:,} passages of {results['set']}"
    if results["part"]:
        title += f"\n{PART_NOTES[results['part']]}"
    metrics = (NDCG, "mrr@10", *(f"recall@{k}" for k in KS), RETAINED, COSINE)
    columns = ("model", "size", "nDCG@10", "MRR@10", *(f"R@{k}" for k in KS), "of teacher", "cosine")
    rows = [
        (model, size, *(_shown(name, found.get(name)) for name in metrics))
        for model, sizes in results["models"].items()
        for size, found in sizes.items()
    ]
    PlainConsole().print(Table(columns, rows, title).drawn())
    for task, score in results.get("mteb", {}).items():
        print_text(f"{task}  {score:.4f}")


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}%" if name == RETAINED else f"{value:.4f}"


def rank_by_bm25(queries: Sequence[str], passages: Sequence[str], top: int) -> list[list[int]]:
    """For each query the numbers of the best passages, best first; ties by number.

    A passage without any word of the query is not listed.
    """
    index = _Index.of(passages)
    return [_best(index.scores(query), top) for query in queries]


def words(text: str) -> list[str]:
    """The words of a text, as they are compared."""
    return _WORD.findall(text.lower())


@dataclass(frozen=True)
class _Index:
    """Which passages have which words, and what each word adds to a passage's score."""

    size: int
    numbers: dict[str, int]
    starts: np.ndarray
    """Where the entries of each word begin; one more than there are words."""
    passages: np.ndarray
    gains: np.ndarray

    @classmethod
    def of(cls, passages: Sequence[str]) -> "_Index":
        numbers: dict[str, int] = {}
        found = [[numbers.setdefault(word, len(numbers)) for word in words(passage)] for passage in passages]
        lengths = np.array([len(ids) for ids in found], dtype=np.int64)
        flat = np.array([word for ids in found for word in ids], dtype=np.int64)
        pairs, counts = np.unique(flat * len(found) + np.repeat(np.arange(len(found)), lengths), return_counts=True)
        word, passage = np.divmod(pairs, max(len(found), 1))  # sorted by word, then by passage
        having = np.bincount(word, minlength=len(numbers))
        idf = np.log1p((len(found) - having + 0.5) / (having + 0.5))
        relative = lengths / max(lengths.sum() / max(len(found), 1), 1e-9)
        gains = idf[word] * counts / (counts + K1 * (1 - B + B * relative[passage]))
        return cls(len(found), numbers, np.concatenate([[0], np.cumsum(having)]), passage, gains)

    def scores(self, query: str) -> np.ndarray:
        """The score of every passage; a word that the query repeats counts as often."""
        total = np.zeros(self.size)
        for word, times in Counter(words(query)).items():
            if (number := self.numbers.get(word)) is not None:
                span = slice(self.starts[number], self.starts[number + 1])
                total[self.passages[span]] += times * self.gains[span]
        return total


def _best(scores: np.ndarray, top: int) -> list[int]:
    if 0 < top < len(scores):
        candidates = np.flatnonzero(scores >= np.partition(scores, -top)[-top])  # with all that tie with the last
    else:
        candidates = np.arange(len(scores))
    candidates = candidates[scores[candidates] > 0]
    return candidates[np.argsort(-scores[candidates], kind="stable")][:top].tolist()
