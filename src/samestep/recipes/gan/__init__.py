"""A generator of text against a judge: `samestep train gan --preset tiny`.

settings     config.py (with presets, and what is refused before a run is recorded)
data         data.py (kinds of texts, records and their split)
training     players.py (the two models), judges.py (what the judge sees, how it judges and learns),
             objectives.py, rewards.py (what the generator learns from), rollout.py (texts and verdicts),
             task.py (a step), stages.py (what a run does)
evaluation   evaluation.py (metrics, and the benchmark during training)
use          sampling.py (`samestep sample`); `samestep evaluate RUN_A RUN_B`: compare.py, comparison_judges.py (who
             compares), endpoint.py (a judge over HTTP), comparison_results.py (metrics, tables and an HTML page)

`--save_checkpoints` also writes generator_step_N.pt, judge_step_N.pt, generator_epoch_N.pt and judge_epoch_N.pt to
`weights` in the run's folder: plain state dicts, for other programs and for `generator.init_from`. All of them are
kept. They are written from a complete checkpoint, which holds both models with their optimizers, and which a run
resumes from.
"""

from samestep import Alias, GenerationConfig, Recipe, Verb
from samestep.core.config import paths_of
from samestep.kit.prompts import generate_texts
from samestep.recipes.gan.compare import CompareOptions, compare
from samestep.recipes.gan.comparison_results import show_comparison
from samestep.recipes.gan.config import NO_EFFECT, PRESETS, GanConfig, resolve_config
from samestep.recipes.gan.players import build_networks, language_models
from samestep.recipes.gan.sampling import SampleOptions, generate
from samestep.recipes.gan.stages import describe, stages

__all__ = ["GanConfig", "recipe"]

_WRITING = {name: f"writing.{name}" for name in paths_of(GenerationConfig)}
"""What is written, by the names that all recipes have for it."""

recipe = Recipe(
    config=GanConfig,
    version=2,
    stages=stages,
    presets=PRESETS,
    aliases={
        "benchmark_freq": "validate_every",
        "data_path": "data.path",
        "domain": "data.domain",
        "min_story_length": "data.min_story_length",
        "max_story_length": "data.max_story_length",
        "max_agent_tokens": "writing.max_new_tokens",
        "max_judge_tokens": "judging.answer_tokens",
        "use_ppo": Alias("objective.kind", {"true": "ppo", "false": "reinforce"}),
        "clip_eps": "objective.clip_eps",
        "entropy_coef": "objective.entropy_coef",
        "project_name": "log.wandb_project",
        "run_name": "name",
        "save_checkpoints": "checkpoint.weights",
        "checkpoint_freq": "checkpoint.every_steps",
    },
    no_effect=NO_EFFECT,
    resolve=resolve_config,
    describe=describe,
    networks=build_networks,
    language_models=language_models,
    code_settings=["reward"],
    model_settings={"generator": "generator.model", "judge": "judge.model"},
    sample=Verb(generate, SampleOptions, aliases=_WRITING),
    methods={"generate": generate_texts},
    evaluate=Verb(compare, CompareOptions, aliases=_WRITING, show=show_comparison, second="against"),
)
