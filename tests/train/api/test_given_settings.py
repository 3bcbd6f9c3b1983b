"""What has no effect in a run is known for the settings of all runs, of every recipe, and of a recipe's stages."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import EXAMPLE, SMALL, Shell
from samestep import TRAINING_SETTINGS, Config, NoEffect, Recipe, Stage
from samestep.core.config import compose, dump, given_by_args, override
from samestep.core.errors import UserError
from samestep.train.api.given_settings import check_given
from samestep.train.api.recipe_registry import find_recipe

pytestmark = pytest.mark.timeout(600)


@cache
def ungiven(config: type[Config], preset: str) -> dict[str, Any]:
    """A configuration without any settings of the user."""
    presets = {} if config is Phases else find_recipe(preset).presets
    return dump(compose(config, presets=presets))


def told(recipe: Recipe, *args: str, name: str = "") -> list[str]:
    config = override(recipe.config, ungiven(recipe.config, name), aliases=recipe.aliases, args=args)
    return check_given(recipe, config, given_by_args(recipe.config, recipe.aliases, args))


PLANTED = {
    "mdlm epochs=3 max_steps=10": "epochs has no effect: max_steps says how long the run is",
    "mdlm accumulation=4": "accumulation has no effect: global_batch_size says how many rows",
    "mdlm batch_size=64": "batch_size has no effect: a step has no more rows than global_batch_size says",
    "mdlm base_batch_size=16": "base_batch_size has no effect: the learning rate is not scaled",
    "mdlm warmup_ratio=0.1 warmup_steps=3": "warmup_ratio has no effect: warmup_steps",
    "mdlm decay_ratio=0.1": "decay_ratio has no effect: only schedule=wsd",
    "mdlm final_lr_ratio=0.1 schedule=constant": "final_lr_ratio has no effect: a constant",
    "mdlm plateau_patience=2 min_improvement=0.1": "plateau_patience has no effect: .*; min_improvement has no effect",
    "mdlm momentum=0.8": "momentum has no effect: it is for optimizer=sgd",
    "mdlm beta2=0.99 optimizer=sgd": "beta2 has no effect: sgd has a momentum",
    "mdlm profile_all_ranks=true": "profile_all_ranks has no effect: no step is profiled",
    "mdlm prefetch=4": "prefetch has no effect: the training process itself loads",
    "mdlm log.wandb_project=mine": "log.wandb_project has no effect: .*; add --log.wandb",
    "mdlm watch.limit=9 watch.step=5": "watch.step has no effect: watch.limit is one limit",
    "mdlm bucketed=true": "bucketed has no effect: .* have one length",
    "mdlm objective.wide_steps=0.5": "objective.wide_steps has no effect: .* have one length",
    "mdlm data.path=pydoc-questions objective.cut_rows=0.1": "objective.cut_rows has no effect: .* the data is chats",
    "mdlm sampling.steps=65": "sampling.steps has no effect: there is no more than one pass",
    "gan epochs=5": "epochs has no effect: max_steps says",
    "gan judging.answer_tokens=9": "judging.answer_tokens has no effect: with judging.mode=verdict",
    "gan objective.kind=spin objective.kl_coef=1": "objective.kl_coef has no effect: spin",
    "gan mle_epochs=0 mle_learning_rate=1": "mle_learning_rate has no effect: there is no stage",
    "gan replay.share=0.2": "replay.share has no effect: no earlier opponents",
    "gan benchmark.size=0 mle_epochs=0 validate_every=9": "validate_every has no effect: there is no benchmark",
    "gan model_name=x judge.network.n_layers=9": "judge.network.n_layers has no effect: it is the shape",
    "gan judge.lora_rank=2 generator.lora_alpha=4": "generator.lora_alpha has no effect: the whole network is trained",
    "dpo family=text lora_rank=2 model.dtype=bfloat16": "model.dtype has no effect: it is the type of a model that is",
    "dpo family=protein model.lora_rank=4": "model.lora_rank has no effect: it is for texts",
    "dpo family=text decoding_order=left_to_right": "decoding_order has no effect: it is for proteins",
    "dpo objective.loss_type=ipo objective.label_smoothing=0.1": "objective.label_smoothing has no effect: only the",
    "dpo data.validation=x data.split_by=structure": "data.split_by has no effect: the validation records are a file",
    "distill learning_rate=1e-3 epochs=2": "learning_rate has no effect: .*phase1_lr.*; epochs has no .*phase1_epochs",
    "distill mining.skip=3": "mining.skip has no effect: no negatives are mined",
    "lens grpo.max_steps=0 grpo.learning_rate=1e-3": "grpo.learning_rate has no effect: .* set grpo.max_steps",
    "lens activation_dumper.source=x activation_dumper.num_samples=9": "num_samples has no effect: the activations of",
    "lens model_name=x pretrain.max_steps=9": "pretrain.max_steps has no effect: it is for the built-in model",
    "lens model_name=x trainable_components.encoder.base_model=true model_dtype=float16": "model_dtype has no effect",
    "lens trainable_components.lora_rank=2": "trainable_components.lora_rank has no effect: no part",
    "lens alpha_schedule.end=0.5": "alpha_schedule.end has no effect: a constant schedule",
}


@pytest.mark.parametrize("command", PLANTED)
def test_planted_mistakes_are_refused(command: str) -> None:
    name, *settings = command.split()
    with pytest.raises(UserError, match=PLANTED[command]):
        told(find_recipe(name), *settings, name=name)


def test_flags_that_scripts_pass_in_any_case_are_said() -> None:
    flags = ["--skip_phase1", "--phase1_lr=3e-5", "--phase2_epochs=3", "--max_steps=9", "--artifacts_dir=x"]
    found = told(find_recipe("distill"), *flags, name="distill")
    assert [sentence.partition(";")[0] for sentence in found] == [
        "phase1_lr has no effect: phase 1 is skipped",
        "phase2_epochs has no effect: max_steps says how long each phase is",
        "artifacts_dir has no effect: no folder is written there",
    ]


@dataclass(frozen=True)
class Phases(Config):
    first_rate: float = 0.1


def stages(config: Phases) -> list[Stage]:
    first = Stage("first", print, config=lambda c: replace(c, learning_rate=c.first_rate, clip=c.clip * 2))
    second = Stage("second", print, config=lambda c: replace(c, learning_rate=2e-3, weight_decay=0.5))
    return [Stage("dump", print, ignores=TRAINING_SETTINGS), first, second]


def test_a_setting_that_every_stage_sets_itself() -> None:
    own = NoEffect("seed", lambda c: c.first_rate > 1, "it is so")
    recipe = Recipe(config=Phases, stages=stages, no_effect=[own])
    with pytest.raises(UserError, match=r"learning_rate has no effect: each stage .* has a value of its own"):
        told(recipe, "learning_rate=0.3")
    assert told(recipe, "clip=0.5", "weight_decay=0.2", "first_rate=0.2", "seed=3", "out=there") == []
    with pytest.raises(UserError, match="seed has no effect: it is so"):
        told(recipe, "first_rate=2", "seed=3")
    with pytest.raises(UserError, match="validate_every has no effect: no stage of the recipe has a `validate`"):
        told(recipe, "validate_every=3")


def test_a_run_says_it_before_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shell, run = Shell(tmp_path), ["train", str(EXAMPLE), *SMALL]
    codes, output = shell(*run, "decay_ratio=0.3", "name=a")
    assert codes == [2] and "samestep: decay_ratio has no effect: only schedule=wsd" in output
    assert not Path("runs/a").exists()
    Path("shared.yaml").write_text("decay_ratio: 0.3\nglobal_batch_size: 5000\nbatch_size: 5000\nmax_steps: 2\n")
    codes, output = shell(*run, "--config", "shared.yaml", "name=a", ranks=2)
    assert codes == [0, 0], output
    sentences = [
        "WARNING: decay_ratio (in shared.yaml) has no effect: only schedule=wsd",
        "WARNING: the global batch is 5000 rows, but there are only",
    ]
    for sentence in sentences:
        assert 0 <= output.find(sentence) < output.find("epoch 1") and output.count(sentence) == 1, output
    codes, output = shell("train", "--resume", "a", "accumulation=2")
    assert codes == [2] and "accumulation has no effect: " in output
