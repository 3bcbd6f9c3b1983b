"""Preference optimisation, for protein inverse folding and for text: `samestep train dpo --preset tiny`.

settings     config.py (with presets and the options of `samestep sample`), objective.py (the losses)
families     families.py (what proteins and texts have in common: their interface, problems of a file, the split)
proteins     structures.py (PDB files), designs.py (what of them is designed), protein_data.py (records and rows),
             default_pairs.py (pairs where none are named), protein_family.py (ProteinMPNN)
texts        text_data.py (records and rows), text_family.py (language models)
training     task.py (a step, and the reference, cached or live), stages.py (what a run checks, does and leaves)
use          sampling.py (`samestep sample`: sequences for structures, texts after prompts), evaluation.py (`samestep
             evaluate`: the metrics of records that were held back)
"""

from samestep import Alias, Recipe, Verb, World
from samestep.kit.prompts import generate_texts
from samestep.recipes.dpo.config import NO_EFFECT, PRESETS, DpoConfig, SampleOptions
from samestep.recipes.dpo.evaluation import EvaluationOptions, evaluate
from samestep.recipes.dpo.sampling import design, generate, show
from samestep.recipes.dpo.stages import describe, language_models, open_family, read_pretrained, resolve_config, stages
from samestep.recipes.dpo.task import POLICY
from samestep.train.trained.held_out import show_metrics

__all__ = ["DpoConfig", "recipe"]

recipe = Recipe(
    config=DpoConfig,
    version=2,
    stages=stages,
    presets=PRESETS,
    aliases={
        "train_data": "data.train",
        "val_data": "data.validation",
        "max_length": "data.max_length",
        "skip_invalid": "data.skip_invalid",
        "base_model_name": "model.name",
        "base_model_dir": "model.dir",
        "lora_rank": "model.lora_rank",
        "beta": "objective.beta",
        "diversity_lambda": "objective.diversity_lambda",
        "output_dir": "out",
        "num_epochs": "epochs",
        "lr": "learning_rate",
        "scale_lr": Alias("lr_scaling", {"true": "linear", "false": "none"}),
        "backend": "distributed.backend",
        "no_cuda": Alias("distributed.device", {"true": "cpu", "false": "auto"}),
    },
    no_effect=NO_EFFECT,
    describe=describe,
    resolve=resolve_config,
    read_pretrained=read_pretrained,
    networks=lambda config: {POLICY: lambda: open_family(config, World.single()).network()},
    language_models=language_models,
    model_settings={POLICY: "model.name"},
    sample=Verb(generate, SampleOptions, show=show),
    evaluate=Verb(evaluate, EvaluationOptions, show=show_metrics),
    methods={"generate": generate_texts, "design": design},
)
