"""A small retriever that learns from a large one: `samestep train distill --preset tiny`.

settings     config.py, presets.py, resolve.py (what is filled in and refused before a run is recorded)
data         records.py, mixed_records.py (files and folders), python_docs.py and doc_sections.py (where none are
             named), retrieval_set.py (what is evaluated on), data.py (of a run)
models       models.py (teacher and student), rows.py (texts as tokens for feeds)
stages       teacher.py (vectors, cached or live), mining.py (hard negatives), align.py (phase 1), rank.py and
             rank_terms.py (phase 2), phase.py (what both have), objective.py (the losses), stages.py (what a run does)
evaluation   retrieval_metrics.py, bm25.py, embedding.py, evaluation.py (`samestep evaluate`),
             sampling.py (`samestep sample`)
exchange     exporting.py (folders of sentence-transformers), model_card.py
"""

from samestep import Recipe, Verb
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.evaluation import EvaluationOptions, evaluate, show
from samestep.recipes.distill.exporting import export
from samestep.recipes.distill.models import MODEL, student_network
from samestep.recipes.distill.presets import PRESETS
from samestep.recipes.distill.resolve import NO_EFFECT, resolve_config
from samestep.recipes.distill.sampling import SampleOptions, find_passages, show_passages
from samestep.recipes.distill.stages import describe, stages

__all__ = ["DistillConfig", "recipe"]

recipe = Recipe(
    config=DistillConfig,
    stages=stages,
    presets=PRESETS,
    aliases={
        "train_data": "data.train",
        "val_data": "data.validation",
        "output_dir": "out",
        "query_instruction": "teacher.query_instruction",
        "matryoshka_dims": "student.matryoshka_dims",
        "temperature": "rank.temperature",
    },
    no_effect=NO_EFFECT,
    describe=describe,
    resolve=resolve_config,
    networks=lambda config: {MODEL: lambda: student_network(config)},
    sample=Verb(find_passages, SampleOptions, show=show_passages),
    evaluate=Verb(evaluate, EvaluationOptions, show=show),
    export=export,
)
