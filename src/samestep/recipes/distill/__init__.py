"""A small retriever that learns from a large one: `samestep train distill --preset tiny`.

To be read in this order:

config.py, presets.py      settings; named sets of them, and those that have no effect beside others
records.py, python_docs.py records of files and folders; where none are named, the documentation inside Python
retrieval.py               what retrieval is measured on, also BEIR's sets, and how
data.py                    the data of a run: every text once, and what is kept for validation
models.py                  teacher and student; texts as tokens for feeds
teacher.py                 its vectors, cached or live, and hard negatives
objective.py, task.py      the losses; phase 1 and phase 2
stages.py                  what is filled in and refused before a run is recorded, and what a run does
sampling.py, evaluation.py `samestep sample` and `samestep evaluate`
exporting.py               `samestep export`: a folder of sentence-transformers, with its card
"""

from samestep import Recipe, Verb
from samestep.kit.showing import show_lines
from samestep.recipes.distill.config import DistillConfig
from samestep.recipes.distill.evaluation import EvaluationOptions, evaluate, show
from samestep.recipes.distill.exporting import export
from samestep.recipes.distill.models import MODEL, student_network, trained_encoders
from samestep.recipes.distill.presets import NO_EFFECT, PRESETS
from samestep.recipes.distill.sampling import SampleOptions, embed, find_passages, search
from samestep.recipes.distill.stages import describe, resolve_config, stages

__all__ = ["DistillConfig", "recipe"]

recipe = Recipe(
    version=2,
    config=DistillConfig,
    stages=stages,
    presets=PRESETS,
    aliases={
        "train_data": "data.train",
        "val_data": "data.validation",
        "output_dir": "out",
        "query_instruction": "teacher.query_instruction",
        "passage_instruction": "teacher.passage_instruction",
        "matryoshka_dims": "student.matryoshka_dims",
        "temperature": "rank.temperature",
    },
    no_effect=NO_EFFECT,
    describe=describe,
    resolve=resolve_config,
    encoders=trained_encoders,
    networks=lambda config: {MODEL: lambda: student_network(config)},
    sample=Verb(find_passages, SampleOptions, show=show_lines),
    evaluate=Verb(evaluate, EvaluationOptions, show=show),
    export=export,
    exports_onnx=True,
    methods={"embed": embed, "search": search},
)
