"""Preference optimisation, for protein inverse folding and for text: `samestep train dpo --preset tiny`.

settings     config.py, presets.py, resolve.py (what is filled in and refused before a run is recorded)
data         record_files.py (problems of a file), pair_split.py; text_records.py (pairs of texts); protein_records.py,
             structures.py, structure_cache.py, designs.py, sequence_checks.py (pairs for structures), protein_data.py
             (their rows), default_pairs.py and ideal_backbones.py (pairs where none are named)
families     families.py (what proteins and texts have in common); text_models.py, text_family.py; protein_family.py
training     objective.py (the losses), reference.py (the reference, cached or live), task.py (a step), stages.py (what
             a run does), weight_files.py (checkpoint_epoch_N.pt, best_model.pt, latest_model.pt; also as models)
sampling     sampling.py (`samestep sample`; texts after prompts), sample_options.py, design_files.py and
             protein_sampling.py (sequences for structures)
"""

from samestep import Alias, Recipe, Verb, World
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.presets import PRESETS
from samestep.recipes.dpo.reference import POLICY
from samestep.recipes.dpo.resolve import NO_EFFECT, resolve_config
from samestep.recipes.dpo.sample_options import SampleOptions
from samestep.recipes.dpo.sampling import generate, show
from samestep.recipes.dpo.stages import describe, open_family, stages
from samestep.recipes.dpo.weight_files import read_pretrained

__all__ = ["DpoConfig", "recipe"]

recipe = Recipe(
    config=DpoConfig,
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
    sample=Verb(generate, SampleOptions, show=show),
)
