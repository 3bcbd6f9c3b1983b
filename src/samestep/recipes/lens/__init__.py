"""Activations of a frozen language model as text, and back: `samestep train lens --preset tiny`.

settings     config.py, components.py (what is trained), schedules.py, presets.py, resolve.py (what is refused before a
             run is recorded), no_effect.py
data         texts.py (documents in pieces), pretokenize.py (tokens), samples.py (which activations there are),
             dump.py (activations on disk), activations.py (rows for feeds)
models       language_model.py (the frozen model and its tokenizer), pretrain.py (the built-in one), network.py (decoder
             and encoder around it), writing.py (the decoder's texts)
training     warm_start.py (with given texts), task.py (the training stage), grpo.py (rewards), stages.py (what a run
             does)
evaluation   evaluation.py (the last stage, and `samestep evaluate`), measuring.py (metrics), baselines.py (what they
             are compared with), held_out.py (rows), explanations.py (records), page.py, sampling.py (`samestep sample`)
"""

from samestep import Recipe, Verb
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.evaluation import EvaluationOptions, evaluate, show
from samestep.recipes.lens.no_effect import NO_EFFECT
from samestep.recipes.lens.presets import PRESETS
from samestep.recipes.lens.resolve import resolve_config
from samestep.recipes.lens.sampling import SampleOptions, explain_text, show_explanations
from samestep.recipes.lens.stages import describe, stages
from samestep.recipes.lens.task import build_networks

__all__ = ["LensConfig", "recipe"]

recipe = Recipe(
    config=LensConfig,
    stages=stages,
    presets=PRESETS,
    aliases={"gradient_accumulation_steps": "accumulation", "num_train_epochs": "epochs"},
    no_effect=NO_EFFECT,
    describe=describe,
    resolve=resolve_config,
    networks=build_networks,
    sample=Verb(explain_text, SampleOptions, show=show_explanations),
    evaluate=Verb(evaluate, EvaluationOptions, show=show),
)
