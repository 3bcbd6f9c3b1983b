"""A recipe with one mistake, which the setting `mistake` names: each is one that somebody makes who writes a recipe."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from samestep import Average, Bench, Config, Fit, Metric, Recipe, Stage, evaluate


@dataclass(frozen=True)
class Mistaken(Config):
    """Which mistake to make."""

    mistake: str = ""


def rows() -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.tensor([float(i)])} for i in range(8)]


def loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"error": module(batch["x"]).square().sum(1)}


def net() -> nn.Module:
    return nn.Linear(1, 1)


class Own:
    """A task of one's own, some part of which a mistake replaces."""

    def __init__(self, bench: Bench, **parts: Any) -> None:
        self.feed, self.learner = bench.feed(rows()), bench.learner(net())
        self.length, self.state = self.feed.length, {"model": self.learner}
        self.returned = parts.pop("returned", lambda metrics: metrics)
        vars(self).update(parts)

    def step(self, tick: Any) -> Any:
        return self.returned(self.learner.update(self.feed[tick.step], loss))


class Wide(nn.Linear):
    def __init__(self, width: int) -> None:
        super().__init__(width, 1)


def fit(bench: Bench, **given: Any) -> Fit:
    return Fit(bench.learner(net(), **given), bench.feed(rows()), loss)


def without(name: str) -> Callable[[Bench], Own]:
    def build(bench: Bench) -> Own:
        task = Own(bench)
        delattr(task, name)
        return task

    return build


BUILDS: dict[str, tuple[Callable[[Bench], Any], str]] = {
    "nothing returned": (lambda bench: None, "build of stage 'fit' returned nothing; end it with `return Fit(...)`"),
    "class returned": (lambda bench: Own, "returned the class Own; return an object of it: Own(...)"),
    "learner returned": (lambda bench: bench.learner(net()), "returned a Learner without 'length'; a task has"),
    "no length": (without("length"), "returned an Own without 'length'; a task has `length`, `state` and `step(tick)`"),
    "no state": (without("state"), "returned an Own without 'state'"),
    "float length": (lambda bench: Own(bench, length=2.5), "must be its number of steps, such as feed.length, but is"),
    "list of state": (lambda bench: Own(bench, state=[1]), "the task's state must be a dict that names what a"),
    "number in state": (
        lambda bench: Own(bench, state={"n": 1}),
        "'n' in the task's state is an int (1), which cannot",
    ),
    "step without tick": (lambda bench: Own(bench, step=lambda: {}), "step of the task must be a function of (tick)"),
    "no metrics": (
        lambda bench: Own(bench, returned=lambda m: None),
        "the step of the task returned None; return what",
    ),
    "a loss returned": (lambda bench: Own(bench, returned=lambda m: torch.ones(())), "the step of the task returned a"),
    "float metric": (
        lambda bench: Own(bench, returned=lambda m: {"a": 0.5}),
        "the step of the task returned a float (0.5) for 'a'; make it a Metric(sum, weight)",
    ),
    "many numbers": (
        lambda bench: Own(bench, returned=lambda m: {"a": Metric(torch.ones(3))}),
        "returned a Tensor of shape (3,) as the sum of 'a'; give one number, such as values.sum()",
    ),
    "rows for update": (
        lambda bench: Own(bench, step=lambda tick: bench.learner(net(), name="other").update(rows(), loss)),  # type: ignore[arg-type]
        "an update takes the micro-batches of a step, but was given a list; give it feed[tick.step]",
    ),
    "list for feed": (
        lambda bench: Fit(bench.learner(net()), rows(), loss),  # type: ignore[arg-type]
        "the feed of Fit must be a feed, but is a list; give it bench.feed(rows)",
    ),
    "list for validation": (
        lambda bench: Fit(bench.learner(net()), bench.feed(rows()), loss, validation=rows()),  # type: ignore[arg-type]
        "the validation of Fit must be a feed, but is a list; give it bench.evaluation_feed(rows)",
    ),
    "network for learner": (
        lambda bench: Fit(net(), bench.feed(rows()), loss),  # type: ignore[arg-type]
        "the learner of Fit is a network; give it the learner that trains it: bench.learner(network)",
    ),
    "loss of a batch": (
        lambda bench: Fit(bench.learner(net()), bench.feed(rows()), lambda batch: {}),  # type: ignore[arg-type]
        "the loss of Fit must be a function of (module, batch), but <lambda> takes (batch)",
    ),
    "lr": (
        lambda bench: fit(bench, lr=0.1),
        "bench.learner has no argument 'lr'; give it rate=lambda step: 1e-3, or rate=Schedule(...); the setting",
    ),
    "misspelt": (lambda bench: fit(bench, optimiser=None), "no argument 'optimiser' (did you mean 'optimizer'?); it"),
    "number as rate": (lambda bench: fit(bench, rate=0.1), "rate must be a function of the step; write rate=lambda"),
    "optimizer made": (
        lambda bench: fit(bench, optimizer=torch.optim.Adam(net().parameters())),
        "learner 'model': optimizer must be a function that makes one, since the network is first put on its device",
    ),
    "groups as dicts": (
        lambda bench: fit(bench, groups={"weight": {"lr": 0.1}}),
        "groups must name parameters by patterns, such as groups={'head.*': Group(rate=0.1)}",
    ),
    "class with arguments": (
        lambda bench: bench.learner(Wide),
        "bench.learner 'model' was given a class, which it calls to build the network; the class must be a function of "
        "(), but Wide takes (width)",
    ),
    "text as network": (lambda bench: bench.learner("gpt2"), "bench.learner 'model' was given a str ('gpt2'); give it"),  # type: ignore[arg-type]
    "no network built": (lambda bench: bench.learner(lambda: None), "given a function that returns None; let it"),  # type: ignore[arg-type, return-value]
    "frozen text": (lambda bench: bench.frozen("gpt2"), "bench.frozen 'reference' was given a str ('gpt2')"),  # type: ignore[arg-type]
    "two of one name": (
        lambda bench: (bench.learner(net()), bench.learner(net())),
        "two learners are called 'model'; give one of them another name=...",
    ),
    "average of a network": (lambda bench: Average(net(), 0.9), "averaged weights are those of a learner"),  # type: ignore[arg-type]
    "batch size of a feed": (
        lambda bench: bench.feed(rows(), batch_size=3),  # type: ignore[call-arg]
        "bench.feed has no argument 'batch_size'; the setting global_batch_size is the rows of a step",
    ),
    "collate by position": (
        lambda bench: bench.feed(rows(), torch.stack),  # type: ignore[misc]
        "bench.feed takes (rows, *, order, count, collate, pad, keyed_random), but was called with too many positional",
    ),
    "collate is no function": (
        lambda bench: bench.feed(rows(), collate=3),
        "the collate of a feed must be a function of",
    ),  # type: ignore[arg-type]
    "pad is a number": (lambda bench: bench.feed(rows(), pad=0), "pad must give names their values, such as"),  # type: ignore[arg-type]
    "count is a dict": (lambda bench: bench.feed(rows(), count={}), "count of a feed must be a function of (batch)"),  # type: ignore[arg-type]
    "list evaluated": (
        lambda bench: evaluate(bench.learner(net()), rows(), loss),  # type: ignore[arg-type]
        "the feed of evaluate must be a feed, but is a list; give it bench.evaluation_feed(rows)",
    ),
}
VALIDATIONS: dict[str, tuple[Any, str]] = {
    "validate returns None": (None, "validate of stage 'fit' returned None; return its metrics by name"),
    "validate returns a Metric": (
        {"val/a": Metric(1.0)},
        "gave 'val/a' as a Metric; it must give plain numbers that are",
    ),
    "validate returns a tensor": ({"val/a": torch.ones(())}, "gave 'val/a' as a Tensor, which is read by .item()"),
    "other best": ({"val/b": 1.0}, "stage 'fit': best names 'val/a', but validation gave 'val/b'; name one of those"),
}
HOOKS: dict[str, tuple[Any, str]] = {
    "one hook": (object(), "hooks of stage 'fit' must return a list of hooks, but returned an object"),
    "function as hook": ([print], "hooks of stage 'fit' gave a builtin_function_or_method; a hook is an object with"),
}
STAGES: dict[str, tuple[Any, str]] = {
    "one stage": (
        Stage("fit", fit),
        "stages must return a list of stages, but returned one stage; put it into brackets",
    ),
    "no stages": (None, "stages must return a list of stages, but returned None"),
    "build as stage": ([fit], "stages must return a list of stages, but one entry is a function"),
    "same names": ([Stage("fit", fit), Stage("fit", fit)], "two stages are named 'fit', and would share their"),
}


def stages(config: Mistaken) -> Any:
    mistake = config.mistake
    if mistake in STAGES:
        return STAGES[mistake][0]
    build = BUILDS[mistake][0] if mistake in BUILDS else fit
    if mistake in VALIDATIONS:
        return [Stage("fit", build, validate=lambda task, tick: VALIDATIONS[mistake][0], best=("val/a", "min"))]
    if mistake in HOOKS:
        return [Stage("fit", build, hooks=lambda task, bench: HOOKS[mistake][0])]
    return [Stage("fit", build)]


recipe = Recipe(Mistaken, stages)
