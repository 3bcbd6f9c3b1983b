"""Tasks of MTEB, by its own package, on the exported student."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from samestep import Trained, UserError, World
from samestep.recipes.distill.exporting import export
from samestep.train.pretrained.export import ExportOptions


def run_mteb(trained: Trained, tasks: Sequence[str], world: World) -> dict[str, float]:
    """The main score of each task, computed by rank 0 and shared with all ranks."""
    return world.run_on_all_ranks("running MTEB", lambda: _scores(trained, tasks, world) if world.is_main else {})[0]


def _scores(trained: Trained, tasks: Sequence[str], world: World) -> dict[str, float]:
    try:
        import mteb
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise UserError(
            "Install the packages mteb and sentence-transformers, or leave out --mteb: pip install mteb "
            f"sentence-transformers ({error})."
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        export(trained, Path(folder) / "student", ExportOptions())
        model = SentenceTransformer(str(Path(folder) / "student"), device=str(world.device))
        results = mteb.MTEB(tasks=mteb.get_tasks(tasks=list(tasks))).run(model, output_folder=folder)
        return {result.task_name: float(result.get_score()) for result in results}
