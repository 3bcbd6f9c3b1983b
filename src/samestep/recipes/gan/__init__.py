"""A generator of text against a judge: `samestep train gan --preset tiny`.

settings     config.py (with the presets), domains.py (kinds of texts)
data         data.py (records and their split), table_files.py (CSV and JSONL)
training     players.py (the two models), rollout.py (what is written and judged), judging.py (what the judge sees),
             objectives.py (what the generator learns from), task.py (a step), stages.py
evaluation   text_metrics.py; comparing.py (`samestep evaluate RUN_A RUN_B`), comparing_texts.py (what is compared),
             comparing_judges.py (who compares), endpoint.py (a judge over HTTP), comparing_results.py (figures and
             tables), comparing_page.py (the page)
"""

from samestep import Recipe, Verb
from samestep.recipes.gan.comparing import CompareOptions, compare
from samestep.recipes.gan.comparing_results import show_comparison
from samestep.recipes.gan.config import PRESETS, GanConfig
from samestep.recipes.gan.stages import stages

__all__ = ["GanConfig", "recipe"]

recipe = Recipe(
    config=GanConfig,
    stages=stages,
    presets=PRESETS,
    evaluate=Verb(compare, CompareOptions, show=show_comparison, second="against"),
)
