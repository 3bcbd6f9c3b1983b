"""What a recipe gives the runtime has the right shape, or a sentence says what to write instead."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep.core.arguments import check_function, described
from samestep.core.errors import UserError
from samestep.data.feed import Feed
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizers.groups import Group
from samestep.train.logging.metrics import MetricValues

_RATE = "rate=lambda step: 1e-3, or rate=Schedule(...); the setting learning_rate is for all learners"
INSTEAD_IN_LEARNER = {
    "lr": f"give it {_RATE}",
    "learning_rate": f"give it {_RATE}",
    "schedule": f"give it {_RATE}",
    "scheduler": f"give it {_RATE}",
    "params": "it trains all parameters that require gradients; groups={pattern: Group(...)} sets some apart",
    "max_norm": "give it clip=...",
    "device": "it is put on this rank's device; the setting is distributed.device",
    "loss": "give the loss to the task: Fit(learner, feed, loss)",
}
"""What to do in place of arguments that people try."""
_BATCH = "the setting global_batch_size is the rows of a step, and batch_size those of a micro-batch"
INSTEAD_IN_FEED = {
    "batch_size": _BATCH,
    "shuffle": "training rows are shuffled in each epoch unless an order=... is given",
    "sampler": "give it order=Weighted(weights), order=Bucketed(lengths) or an order of your own",
    "num_workers": "num_workers is a setting",
    "collate_fn": "give it collate=...",
    "transform": "apply it in the rows' __getitem__; if it draws random numbers, give keyed_random=True",
    "drop_last": "the last batch of an epoch is smaller, and weighted correctly",
    "seed": "seed is a setting",
}
_TASK = "a task has `length`, `state` and `step(tick)`, as Fit(...) has"


def check_learner(what: str, learner: object) -> None:
    """Refuse what is no learner."""
    if isinstance(learner, nn.Module):
        raise UserError(f"{what} is a network; give it the learner that trains it: bench.learner(network)")
    if not isinstance(learner, Learner):
        raise UserError(f"{what} must be a learner, made by bench.learner(network), but is {described(learner)}")


def check_feed(what: str, feed: object, make: str = "bench.feed") -> None:
    """Refuse what is no feed; `make` is the function that makes the right one."""
    if not isinstance(feed, Feed):
        raise UserError(f"{what} must be a feed, but is {described(feed)}; give it {make}(rows)")


def check_learner_arguments(name: str, taken: Sequence[str], rate: object, groups: object, optimizer: object) -> None:
    """Refuse arguments of `bench.learner` that have another form; `taken` are the names of the learners before it."""
    if name in taken:
        raise UserError(f"two learners are called {name!r}; give one of them another name=...")
    if isinstance(rate, int | float):
        raise UserError(f"learner {name!r}: rate must be a function of the step; write rate=lambda step: {rate}")
    if rate is not None:
        check_function(f"learner {name!r}: rate", rate, ["step"])
    if groups is not None and not (isinstance(groups, Mapping) and all(isinstance(g, Group) for g in groups.values())):
        raise UserError(
            f"learner {name!r}: groups must name parameters by patterns, such as groups={{'head.*': Group(rate=0.1)}}"
        )
    if isinstance(optimizer, torch.optim.Optimizer):
        kind = type(optimizer).__name__
        raise UserError(
            f"learner {name!r}: optimizer must be a function that makes one, since the network is first put on its "
            f"device and wrapped; write optimizer=lambda params: torch.optim.{kind}(params), without a learning rate"
        )


def check_names(name: str, best: object, lists: Mapping[str, object]) -> None:
    """Refuse a stage whose texts have another form; `lists` are its lists of texts by field."""
    if not isinstance(name, str) or not name or "/" in name:
        raise UserError(f"a stage begins with its name, such as Stage('train', build), not with {described(name)}")
    if best is not None and not _is_best(best):
        metric = best if isinstance(best, str) else "val/loss"
        raise UserError(
            f"stage {name!r}: best must be a metric and 'min' or 'max', as in best=({metric!r}, 'min'), but is {best!r}"
        )
    for field, found in lists.items():
        if isinstance(found, str):
            raise UserError(f"stage {name!r}: {field} must be a list, as in {field}=[{found!r}]")


def _is_best(best: object) -> bool:
    if not isinstance(best, tuple | list) or len(best) != 2:
        return False
    return isinstance(best[0], str) and best[1] in ("min", "max")


def check_stages(found: object, kind: type) -> None:
    """Refuse what is no list of stages, each with a name of its own; `kind` is what a stage is."""
    if isinstance(found, kind):
        raise UserError("stages must return a list of stages, but returned one stage; put it into brackets: [stage]")
    if not isinstance(found, list | tuple):
        raise UserError(f"stages must return a list of stages, but returned {described(found)}")
    for stage in found:
        if not isinstance(stage, kind):
            raise UserError(f"stages must return a list of stages, but one entry is {described(stage)}")
    names = [stage.name for stage in found]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise UserError(f"two stages are named {double!r}, and would share their checkpoints; give each its own name")


def check_task(stage: str, task: Any) -> None:
    """Refuse what `build` returned if it is no task."""
    built = f"build of stage {stage!r}"
    if task is None:
        raise UserError(f"{built} returned nothing; end it with `return Fit(...)`, or with a task of your own")
    if isinstance(task, type):
        raise UserError(f"{built} returned the class {task.__name__}; return an object of it: {task.__name__}(...)")
    missing = [name for name in ("length", "state", "step") if not hasattr(task, name)]
    if missing:
        raise UserError(f"{built} returned {described(task)} without {missing[0]!r}; {_TASK}")
    try:
        operator.index(task.length)
    except TypeError:
        raise UserError(
            f"stage {stage!r}: the task's length must be its number of steps, such as feed.length, but is "
            f"{described(task.length)}"
        ) from None
    check_function(f"stage {stage!r}: step of the task", task.step, ["tick"])
    _check_state(stage, task.state)


def _check_state(stage: str, state: object) -> None:
    example = 'self.state = {"model": learner}'
    if not isinstance(state, Mapping):
        raise UserError(
            f"stage {stage!r}: the task's state must be a dict that names what a checkpoint holds, such as {example}, "
            f"but is {described(state)}"
        )
    for name, value in state.items():
        if not isinstance(name, str) or not hasattr(value, "state_dict") or not hasattr(value, "load_state_dict"):
            raise UserError(
                f"stage {stage!r}: {name!r} in the task's state is {described(value)}, which cannot be saved; put "
                f"objects there that have state_dict and load_state_dict, such as learners: {example}"
            )


def check_hooks(stage: str, hooks: object) -> None:
    """Refuse what `hooks` returned if it is no list of hooks."""
    if not isinstance(hooks, Sequence):
        raise UserError(f"hooks of stage {stage!r} must return a list of hooks, but returned {described(hooks)}")
    for hook in hooks:
        if isinstance(hook, type) or not callable(getattr(hook, "after_step", None)):
            raise UserError(
                f"hooks of stage {stage!r} gave {described(hook)}; a hook is an object with after_step(tick, metrics, "
                "last)"
            )


def check_validation(stage: str, values: MetricValues, best: tuple[str, str] | None) -> None:
    """Refuse validation metrics that are no numbers by name, or lack the one that decides which checkpoint is best."""
    if not isinstance(values, Mapping):
        raise UserError(
            f"validate of stage {stage!r} returned {described(values)}; return its metrics by name, such as "
            '{"val/error": 0.1}, or {} if there are none'
        )
    for name, value in values.items():
        if not isinstance(value, int | float | np.number):
            item = ", which is read by .item()" if isinstance(value, Tensor) else ""
            raise UserError(
                f"validate of stage {stage!r} gave {name!r} as {described(value)}{item}; it must give plain numbers "
                "that are equal on all ranks, as samestep.evaluate(learner, feed, measure) returns them"
            )
    if best is not None and values and best[0] not in values:
        listed = ", ".join(map(repr, sorted(values)))
        raise UserError(f"stage {stage!r}: best names {best[0]!r}, but validation gave {listed}; name one of those")


def check_presets(presets: object) -> None:
    """Refuse presets that are no settings by name."""
    named = dict(presets) if isinstance(presets, Mapping) else {"presets": presets}
    if other := next((name for name, preset in named.items() if not isinstance(preset, Mapping)), None):
        raise UserError(
            f"a recipe's presets must be settings by name, as in presets={{'small': {{'batch_size': 8}}}}, but "
            f"{other!r} is {described(named[other])}"
        )
