"""Masked-diffusion language models, also published LLaDA models: `samestep train mdlm --preset tiny`.

settings     config.py (with the presets)
data         corpus.py (what data there is, cut into rows), built_in.py (the text inside Python), tokenizer.py,
             older_data.py (older folders)
training     objective.py (the loss), stages.py (what a run takes from data and pretrained models, and what it does),
             pt_files.py (checkpoint_epoch_N.pt)
sampling     sampling.py (the sampler), generating.py (`samestep sample`, also for text with gaps), animation.py
evaluation   held_out.py (`samestep evaluate`: what a run held back), evaluation.py (log-likelihoods, and the tasks of
             lm-evaluation-harness)
exchange     pretrained.py (published LLaDA folders: read and export), published_code.py (the code that goes with them)
"""

from samestep import Alias, Recipe, Verb
from samestep.core.config import paths_of
from samestep.kit.prompts import generate_texts
from samestep.models.transformer import Transformer
from samestep.recipes.mdlm.config import NO_EFFECT, PRESETS, MdlmConfig
from samestep.recipes.mdlm.evaluation import EvaluationOptions, evaluate, show_results
from samestep.recipes.mdlm.generating import SampleOptions, generate
from samestep.recipes.mdlm.pretrained import export, read_pretrained
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.recipes.mdlm.stages import describe, resolve_config, stages
from samestep.recipes.mdlm.tokenizer import read_tokenizer

__all__ = ["MdlmConfig", "recipe"]

recipe = Recipe(
    config=MdlmConfig,
    stages=stages,
    version=2,
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
    methods={"generate": generate_texts},
    evaluate=Verb(evaluate, EvaluationOptions, show=show_results),
    export=export,
)
