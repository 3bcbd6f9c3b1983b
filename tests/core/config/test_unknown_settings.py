"""What is said of a setting that does not exist."""

import pytest

from samestep.core.config import paths_of
from samestep.core.config.unknown_settings import unknown_setting
from samestep.train.api.recipe_registry import find_recipe, known_recipes

RECIPES = known_recipes()


def said_of(setting: str, recipe: str) -> str:
    """The guess for a setting that a recipe does not have."""
    found = find_recipe(recipe)
    sentence = str(unknown_setting(setting, [*paths_of(found.config), *found.all_aliases]))
    assert sentence.startswith(f"There is no setting {setting!r}"), sentence
    return sentence


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("setting", "guess"),
    [
        ("wd", "weight_decay"),
        ("bs", "batch_size"),
        ("BS", "batch_size"),
        ("n-epochs", "epochs"),
        ("max_epochs", "epochs"),
        ("trainer.max_epochs", "epochs"),
        ("per_device_train_batch_size", "batch_size"),
        ("accumulate_grad_batches", "accumulation"),
        ("max_grad_norm", "clip"),
        ("warmup", "warmup_steps or warmup_ratio"),
        ("lr_scheduler_type", "schedule"),
        ("optim", "optimizer"),
        ("bf16", "distributed.mixed_precision=bf16"),
        ("amp", "distributed.mixed_precision"),
        ("logging_steps", "log.every"),
        ("save_steps", "checkpoint.every_steps"),
        ("save_total_limit", "checkpoint.keep_last"),
        ("eval_steps", "validate_every"),
        ("gradient_checkpointing", "activation_checkpointing"),
        ("dataloader_num_workers", "num_workers"),
        ("num_gpus", "--nproc of samestep train"),
        ("resume", "--resume of samestep train"),
    ],
)
def test_names_of_other_trainers_are_known(recipe: str, setting: str, guess: str) -> None:
    assert said_of(setting, recipe).endswith(f"; did you mean {guess}?")


@pytest.mark.parametrize(
    ("recipe", "setting", "guess"),
    [
        ("mdlm", "lr", "learning_rate"),
        ("mdlm", "optimizer.lr", "learning_rate"),
        ("mdlm", "num_epochs", "epochs"),
        ("mdlm", "gradient_accumulation_steps", "accumulation"),
        ("mdlm", "seq_len", "data.sequence_length"),
        ("dpo", "fp16", "distributed.mixed_precision=fp16"),
        ("dpo", "seq_len", "data.max_length"),
        ("dpo", "model_name_or_path", "model.name"),
        ("lens", "num_steps", "gumbel_tau_schedule.num_steps or alpha_schedule.num_steps"),
        ("gan", "model_name_or_path", "model_name"),
        ("gan", "train.epochs", "epochs"),
    ],
)
def test_the_guess_is_a_setting_of_this_recipe(recipe: str, setting: str, guess: str) -> None:
    assert said_of(setting, recipe).endswith(f"; did you mean {guess}?")


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_guess_exists(recipe: str) -> None:
    from samestep.core.config.unknown_settings import _OTHER_TRAINERS

    found = find_recipe(recipe)
    known = {*paths_of(found.config), *found.all_aliases}
    for theirs in {word for words in _OTHER_TRAINERS.values() for word in words.split()} - known:
        guesses = said_of(theirs, recipe).partition("; did you mean ")[2].removesuffix("?")
        for guess in guesses.replace(" or ", ", ").split(", ") if guesses else []:
            assert guess.partition("=")[0] in known or guess.endswith(" of samestep train"), (theirs, guess)


def test_without_a_similar_name_few_settings_are_listed_and_many_are_not() -> None:
    assert str(unknown_setting("zzz", ["a", "b", "b.c"])) == "There is no setting 'zzz'; the settings are a and b."
    assert said_of("zzz", "mdlm").endswith("nor one of a similar name; samestep config RECIPE lists all.")
