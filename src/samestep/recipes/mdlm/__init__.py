"""Masked-diffusion language models, LLaDA in and out: `samestep train mdlm --preset tiny`.

data        corpus.py (what there is to learn from), windows.py (rows), questions.py (a few chats out of Python's help)
training    objective.py (the loss), stages.py (what a run does), settling.py (what it takes over), presets.py
use         sampling.py and drafting.py (the sampler), infilling.py (pages with gaps), watching*.py (to look at it),
            generating.py (`samestep sample`), likelihood.py, harness.py (`samestep evaluate`)
exchange    published.py (LLaDA's folders, in and out)
"""

from samestep.core.config import Alias
from samestep.recipes.mdlm.config import PRESETS, MdlmConfig
from samestep.recipes.mdlm.generating import generate
from samestep.recipes.mdlm.harness import evaluate
from samestep.recipes.mdlm.pretrained import export, read_pretrained
from samestep.recipes.mdlm.resolve import resolve
from samestep.recipes.mdlm.stages import describe, stages
from samestep.train.recipe import Recipe

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
    describe=describe,
    resolve=resolve,
    read_pretrained=read_pretrained,
    sample=generate,
    evaluate=evaluate,
    export=export,
)
