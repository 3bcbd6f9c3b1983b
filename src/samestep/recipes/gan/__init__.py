"""A generator of text against a judge: `samestep train gan --preset tiny`.

settings     config.py (with the presets), domains.py (kinds of texts)
data         data.py (records and their split), table_files.py (CSV and JSONL), human_texts.py (as tokens)
training     players.py (the two models), rollout.py (what is written and judged), judging.py (what the judge sees),
             objectives.py (what the generator learns from), task.py (a step), stages.py
evaluation   evaluation.py (the benchmark), text_metrics.py
"""

from samestep import Recipe
from samestep.recipes.gan.config import PRESETS, GanConfig
from samestep.recipes.gan.stages import stages

__all__ = ["GanConfig", "recipe"]

recipe = Recipe(config=GanConfig, stages=stages, presets=PRESETS, aliases={"benchmark_freq": "validate_every"})
