"""A generator of text against a judge: `samestep train gan --preset tiny`.

settings     config.py (with the presets), domains.py (kinds of texts)
data         data.py (records and their split), table_files.py (CSV and JSONL), human_texts.py (as tokens)
training     players.py (the two models), judging.py (what the judge sees), judges.py (how it judges and learns),
             objectives.py (what the generator learns from), rollout.py (texts and verdicts), task.py (a step),
             stages.py (what a run does)
sampling     sampling.py (`samestep sample`)
evaluation   evaluation.py (the benchmark), text_metrics.py
"""

from samestep import GenerationConfig, Recipe, Verb
from samestep.core.config import paths_of
from samestep.recipes.gan.config import PRESETS, GanConfig
from samestep.recipes.gan.players import build_networks
from samestep.recipes.gan.sampling import SampleOptions, generate
from samestep.recipes.gan.stages import describe, stages

__all__ = ["GanConfig", "recipe"]

recipe = Recipe(
    config=GanConfig,
    stages=stages,
    presets=PRESETS,
    aliases={"benchmark_freq": "validate_every"},
    describe=describe,
    networks=build_networks,
    sample=Verb(generate, SampleOptions, aliases={name: f"writing.{name}" for name in paths_of(GenerationConfig)}),
)
