"""Activations of a frozen language model as text, and back: `samestep train lens --preset tiny`.

To be read in this order:

config.py, presets.py   settings; named sets of them, and those that have no effect beside others
language_model.py       the frozen model
texts.py                the documents, and which part each is of: training, validation or the test
token_rows.py           documents as rows of tokens
pretraining.py          the built-in model is trained on them
activations.py          which activations there are; activations on disk
parts.py                what decoder and encoder are made of; the decoder's texts
network.py              decoder and encoder around the frozen model, and all that they compute
task.py                 the stages that train: a warm start with given texts, training, rewards
stages.py               what is refused before a run is recorded, and what a run does
measuring.py            metrics, and what a lens is compared with
evaluation.py           the last stage, `samestep evaluate`, and the page
sampling.py             `samestep sample`
exporting.py            `samestep export`; exported_example.txt is the code in its README.md
"""

from samestep import Recipe, Verb
from samestep.kit.showing import show_lines
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.evaluation import EvaluationOptions, evaluate, show
from samestep.recipes.lens.exporting import export
from samestep.recipes.lens.presets import NO_EFFECT, PRESETS
from samestep.recipes.lens.sampling import SampleOptions, explain, explain_texts
from samestep.recipes.lens.stages import describe, resolve_config, stages
from samestep.recipes.lens.task import build_networks, language_models

__all__ = ["LensConfig", "recipe"]

recipe = Recipe(
    config=LensConfig,
    stages=stages,
    presets=PRESETS,
    aliases={
        "gradient_accumulation_steps": "accumulation",
        "num_train_epochs": "epochs",
        "max_train_steps": "max_steps",
        "log_interval": "log.every",
        "wandb.project": "log.wandb_project",
        **{
            f"{schedule}.{end}_value": f"{schedule}.{end}"
            for schedule in ("gumbel_tau_schedule", "alpha_schedule")
            for end in ("start", "end")
        },
    },
    no_effect=NO_EFFECT,
    version=2,
    describe=describe,
    resolve=resolve_config,
    networks=build_networks,
    language_models=language_models,
    sample=Verb(explain_texts, SampleOptions, show=show_lines),
    export=export,
    methods={"explain": explain},
    evaluate=Verb(evaluate, EvaluationOptions, show=show),
)
