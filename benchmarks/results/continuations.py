"""The recipe `gan` for passages that are to be continued: a title and the beginning, and what a person wrote next.

samestep train benchmarks/results/continuations.py --data_path train.jsonl --model_name FOLDER
"""

from samestep.recipes.gan import recipe as recipe
from samestep.recipes.gan.data import Domain, register_domain

CONTINUATIONS = register_domain(
    Domain(
        "continuations",
        prompt_fields=("title", "beginning"),
        human_field="continuation",
        template="{title}\n\n{beginning}\n",
    )
)
