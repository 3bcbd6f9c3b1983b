"""Masked-diffusion language models, also published LLaDA models: `samestep train mdlm --preset tiny`.

settings     config.py (with the presets), resolve.py (settings that come from data or a pretrained model), no_effect.py
data         corpus.py (what data there is), rows.py (tokens cut into rows), tokenizer.py, older_data.py (older folders)
training     objective.py (the loss), stages.py (what a run does), pt_files.py (checkpoint_epoch_N.pt)
sampling     sampling.py (the sampler), infilling.py (text with gaps), prompts.py (the options of `samestep sample`),
             generating.py (what it does), animation.py
evaluation   likelihood.py, harness.py (`samestep evaluate`), harness_table.py
exchange     pretrained.py (published LLaDA folders: read and export)
"""

from samestep import Alias, Recipe, Verb
from samestep.core.config import paths_of
from samestep.models.transformer import Transformer
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.generating import generate
from samestep.recipes.mdlm.harness import EvaluationOptions, evaluate
from samestep.recipes.mdlm.harness_table import show_results
from samestep.recipes.mdlm.no_effect import NO_EFFECT
from samestep.recipes.mdlm.pretrained import export, read_pretrained
from samestep.recipes.mdlm.prompts import SampleOptions
from samestep.recipes.mdlm.resolve import resolve_config
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.recipes.mdlm.stages import describe, stages
from samestep.recipes.mdlm.tokenizer import read_tokenizer

__all__ = ["MdlmConfig", "recipe"]

recipe = Recipe(
    config=MdlmConfig,
    stages=stages,
    presets=PRESETS,
    aliases={
        "data_dir": "data.path",
        "model_name": "init_from",
        "save_dir": "out",
        "fp16": Alias("distributed.mixed_precision", {"true": "fp16", "false": "none"}),
    },
    no_effect=NO_EFFECT,
    describe=describe,
    resolve=resolve_config,
    read_pretrained=read_pretrained,
    read_tokenizer=read_tokenizer,
    networks=lambda config: {"model": lambda: Transformer(config.model)},
    sample=Verb(generate, SampleOptions, aliases={name: f"sampling.{name}" for name in paths_of(SamplingConfig)}),
    evaluate=Verb(evaluate, EvaluationOptions, show=show_results),
    export=export,
)
