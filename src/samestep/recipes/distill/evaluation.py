"""`samestep evaluate RUN`: the student beside its teacher, itself before training, and BM25, at each of its sizes."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.core.output import print_text
from samestep.recipes.distill.bm25 import rank_by_bm25
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.data import DistillData, Text, data_of
from samestep.recipes.distill.embedding import embed_texts, first_network
from samestep.recipes.distill.exporting import export
from samestep.recipes.distill.models import MODEL, Models, open_models
from samestep.recipes.distill.objective import COSINE, cosine, unit_prefix
from samestep.recipes.distill.phase import KS, NDCG, retrieval_of
from samestep.recipes.distill.retrieval_set import RetrievalSet, read_beir
from samestep.recipes.distill.rows import STUDENT, TEACHER
from samestep.recipes.distill.teacher import ARTIFACT, CachedVectors
from samestep.recipes.distill.teacher import STAGE as TEACHER_STAGE
from samestep.train.artifacts.array_rows import ArrayRows
from samestep.train.trained.batch_inference import compute_dtype, network_of
from samestep.train.trained.export import ExportOptions

RETAINED = "retained"
"""The student's nDCG@10 as a share of that of the teacher's whole vectors."""


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """What to evaluate on."""

    beir: Path | None = None
    """A folder in BEIR's format (corpus.jsonl, queries.jsonl, qrels/test.tsv); by default the queries that the run kept
    for validation."""
    mteb: str = ""
    """Also run these tasks of MTEB, such as NFCorpus,SciFact; needs the package mteb."""
    teacher: bool = True
    """Also evaluate the teacher; of the run's own queries its cached vectors are used."""
    untrained: bool = True
    """Also evaluate the student before training."""
    batch_size: Count = 32
    """Texts at once on a device."""


@dataclass(frozen=True)
class _Subject:
    """What is evaluated, and how texts become vectors there."""

    trained: Trained
    options: EvaluationOptions
    world: World
    data: DistillData
    models: Models
    held_out: RetrievalSet

    @property
    def texts(self) -> list[Text]:
        """Queries and then passages."""
        queries = [Text(text, True) for text in self.held_out.queries]
        return [*queries, *(Text(text, False) for text in self.held_out.passages)]

    def student(self) -> Tensor:
        """Vectors of the trained student."""
        network, compute = network_of(self.trained, MODEL, self.world.device)
        reading = self.models.readings[STUDENT]
        return embed_texts(network, reading, self.texts, self.world, self.options.batch_size, compute)

    def untrained(self) -> Tensor:
        """Vectors of the student before training, without a projection."""
        return self._first(self.models.untrained, MODEL, STUDENT)

    def teacher(self) -> Tensor:
        """Vectors of the teacher: cached ones, if they are of these texts."""
        run = self.trained.run
        folder = run.artifacts(TEACHER_STAGE) / ARTIFACT if run else None
        if self.options.beir is None and folder is not None and folder.is_dir():
            return CachedVectors(ArrayRows(folder), self.data.texts).of(self.data.held_out_texts)
        return self._first(self.models.teacher, TEACHER_STAGE, TEACHER)

    def _first(self, source: Any, name: str, who: str) -> Tensor:
        config: DistillConfig = self.trained.config
        network = first_network(source, config.seed, name, self.world.device)
        compute = compute_dtype(config, self.world.device)
        return embed_texts(network, self.models.readings[who], self.texts, self.world, self.options.batch_size, compute)


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> dict[str, Any]:
    """Metrics by model and size, on every rank."""
    config: DistillConfig = trained.config
    data = data_of(trained)
    held_out = data.held_out if options.beir is None else read_beir(options.beir)
    subject = _Subject(trained, options, world, data, open_models(config, data, world), held_out)
    found = compare(subject.models.dims, subject.student(), held_out, subject.teacher() if options.teacher else None)
    if options.untrained:
        vectors = subject.untrained()
        sizes = sorted({min(dim, vectors.shape[1]) for dim in subject.models.dims}, reverse=True)
        found["untrained"] = {str(dim): retrieval_of(vectors, held_out, dim) for dim in sizes}
    ranked = rank_by_bm25(held_out.queries, held_out.passages, max(KS) + 1)
    found["bm25"] = {"": held_out.metrics(ranked, KS)}
    about = {
        "set": str(options.beir or data.name),
        "queries": len(held_out.queries),
        "passages": len(held_out.passages),
    }
    tasks = [task for task in options.mteb.split(",") if task]
    return {**about, "models": found, **({"mteb": _mteb(trained, tasks, world)} if tasks else {})}


def _mteb(trained: Trained, tasks: Sequence[str], world: World) -> dict[str, float]:
    """The score of each task, computed by rank 0 on the exported student."""

    def compute() -> dict[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            export(trained, Path(folder) / "student", ExportOptions())
            return mteb_scores(Path(folder) / "student", tasks)

    return dict(world.run_on_all_ranks("running MTEB", lambda: compute() if world.is_main else {})[0])


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


def show(trained: Trained, results: Mapping[str, Any]) -> None:
    """Print a table, one row for each model and size."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from samestep.core.console import PlainConsole

    title = f"{trained.source}\n{results['queries']:,} queries, {results['passages']:,} passages of {results['set']}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    metrics = (NDCG, "mrr@10", *(f"recall@{k}" for k in KS), RETAINED, COSINE)
    for name in ("model", "size", "nDCG@10", "MRR@10", *(f"R@{k}" for k in KS), "of teacher", "cosine"):
        table.add_column(name, justify="left" if name == "model" else "right", no_wrap=True)
    for model, sizes in results["models"].items():
        for size, found in sizes.items():
            table.add_row(model, size, *(_shown(name, found.get(name)) for name in metrics))
    PlainConsole().print(table)
    for task, score in results.get("mteb", {}).items():
        print_text(f"{task}  {score:.4f}")


def _shown(name: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{100 * value:.1f}%" if name == RETAINED else f"{value:.4f}"


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
