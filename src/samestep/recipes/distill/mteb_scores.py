"""Scores on tasks of MTEB, the public benchmark of text embeddings, by its own package."""

from collections.abc import Sequence
from pathlib import Path

from samestep import UserError


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
