"""A mistake in a recipe of one's own is one sentence that says what to write, before the second step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Shell
from samestep import Bench, Config, Fit, Recipe, Stage, Tick
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.train.api.recipe_checks import check_hooks, check_task, check_validation
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import checked_metrics
from samestep.world.world import World
from train.api import mistakes

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(World.single(), Config(max_steps=2, global_batch_size=4), RunDir(tmp_path), "fit", Screen(False))


def one_step(bench: Bench, build: Callable[[Bench], Any]) -> None:
    task = build(bench)
    check_task("fit", task)
    checked_metrics(task.step(Tick(0, 0, False)))


def test_a_sound_task_passes(bench: Bench) -> None:
    one_step(bench, mistakes.Own)


@pytest.mark.parametrize("mistake", mistakes.BUILDS)
def test_each_mistake_in_a_task_is_one_sentence(mistake: str, bench: Bench) -> None:
    build, sentence = mistakes.BUILDS[mistake]
    with pytest.raises(UserError) as refused:
        one_step(bench, build)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("mistake", [*mistakes.VALIDATIONS, *mistakes.HOOKS, *mistakes.STAGES])
def test_what_functions_of_a_recipe_return_is_checked(mistake: str) -> None:
    returned, sentence = {**mistakes.VALIDATIONS, **mistakes.HOOKS, **mistakes.STAGES}[mistake]

    def check() -> None:
        if mistake in mistakes.VALIDATIONS:
            check_validation("fit", returned, ("val/a", "min"))
        elif mistake in mistakes.HOOKS:
            check_hooks("fit", returned)
        else:
            mistakes.recipe.stages(mistakes.Mistaken(mistake=mistake))

    with pytest.raises(UserError) as refused:
        check()
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    ("mistake", "ranks"),
    [("float metric", 2), ("lr", 1), ("validate returns None", 1), ("one hook", 1), ("one stage", 1)],
)
def test_a_launch_ends_with_the_sentence(
    mistake: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    args = ["mistake=" + mistake, "name=a", "max_steps=2", "global_batch_size=4", "log.tensorboard=false"]
    started = Shell(tmp_path).start("train", str(Path(mistakes.__file__)), *args, ranks=ranks)
    assert started.wait(60) == [2] * ranks, started.output(0)
    every = {**mistakes.BUILDS, **mistakes.VALIDATIONS, **mistakes.HOOKS, **mistakes.STAGES}
    assert every[mistake][1] in started.output(0) and "Traceback" not in started.output(0)


def build(bench: Any) -> Any:
    raise AssertionError("it is not called")


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "best": (
        lambda: Stage("fit", build, best="val/loss"),  # type: ignore[arg-type]
        r"best must be a metric and 'min' or 'max', as in best=\('val/loss', 'min'\), but is 'val/loss'",
    ),
    "mode": (lambda: Stage("fit", build, best=("val/loss", "lower")), "best must be a metric and 'min' or 'max'"),
    "no name": (lambda: Stage(build, "fit"), r"begins with its name, such as Stage\('train', build\), not with a func"),  # type: ignore[arg-type]
    "no build": (lambda: Stage("fit", None), r"build of stage 'fit' must be a function of \(bench\), but is None"),  # type: ignore[arg-type]
    "build without bench": (lambda: Stage("fit", lambda: 1), r"function of \(bench\), but <lambda> takes \(\)"),  # type: ignore[misc, arg-type]
    "hooks as a list": (
        lambda: Stage("fit", build, hooks=[]),
        r"hooks of stage 'fit' must be a function of \(task, be",
    ),  # type: ignore[arg-type]
    "text to show": (lambda: Stage("fit", build, shown="loss"), r"shown must be a list, as in shown=\['loss'\]"),
    "text to ignore": (lambda: Stage("fit", build, ignores="epochs"), r"must be a list, as in ignores=\['epochs'\]"),
    "unknown of a stage": (
        lambda: Stage("fit", build, validation=1),  # type: ignore[call-arg]
        "Stage has no argument 'validation'; give the function validate=",
    ),
    "list of stages": (
        lambda: Recipe(Config, [Stage("fit", build)]),  # type: ignore[arg-type]
        r"stages must be a function of the settings; write stages=lambda config: \[Stage",
    ),
    "config made": (lambda: Recipe(Config(), lambda config: []), "must be the class of its settings, Config or a"),  # type: ignore[arg-type]
    "preset made": (
        lambda: Recipe(Config, lambda config: [], presets={"tiny": Config()}),  # type: ignore[dict-item]
        "settings by name, as in presets={'small': {'batch_size': 8}}, but 'tiny' is a Config",
    ),
    "presets listed": (lambda: Recipe(Config, lambda config: [], presets=["tiny"]), "but 'presets' is a list"),  # type: ignore[arg-type]
    "no stages": (lambda: Recipe(Config), r"Recipe takes \(config, stages, "),  # type: ignore[call-arg]
    "unknown of Fit": (lambda: Fit(1, 2, 3, lr=0.1), "Fit has no argument 'lr'; set learning_rate, or give the"),  # type: ignore[call-arg, arg-type]
}


@pytest.mark.parametrize("mistake", MADE)
def test_a_recipe_is_refused_where_it_is_written(mistake: str) -> None:
    make, sentence = MADE[mistake]
    with pytest.raises(UserError, match=sentence):
        make()


def test_an_error_inside_a_function_stays_what_it_is() -> None:
    class Failing(Fit):
        def __init__(self) -> None:
            len(3)  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="has no len"):
        Failing()
