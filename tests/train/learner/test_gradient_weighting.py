"""Which terms of a loss are trained, what is logged of them, and what of another learner's loss reaches a network."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data.feed import Feed
from samestep.data.loading import Batch
from samestep.data.order import Shuffled
from samestep.train.api.fit import Fit, evaluate
from samestep.train.logging.metrics import MetricAccumulator
from samestep.train.record.progress import Tick
from samestep.world.world import World
from toys import ByHand, Case, Net, Points, close, feed_of, learner_of, made, on_ranks, rate, weights_of

STEPS = 5


def count(batch: Batch) -> dict[str, Tensor]:
    return {"tokens": batch["tokens"], "error": batch["pairs"]}


def terms(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    found = module(batch["x"], batch["tokens"]) - batch["y"]
    return {
        "error": found.square().sum(1) * batch["pairs"],
        "tokens": found.abs().sum(1) * batch["tokens"],
        "accuracy": found[:, 0] * 100,
    }


def means(rows: Points, ids: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """Each term's mean over a batch, by hand."""
    batch = rows.rows(ids)
    sums = {name: value.sum() for name, value in terms(module, batch).items()}
    weights = {"error": batch["pairs"].sum(), "tokens": batch["tokens"].sum(), "accuracy": torch.tensor(len(ids))}
    return {name: total / weights[name].clamp(min=1) for name, total in sums.items()}


def only_what_the_mix_names_is_trained(world: World, strategy: str) -> None:
    rows, order, hand = Points(20), Shuffled(20, 8, seed=3), ByHand(made(Net))
    task = Fit(
        learner_of(made(Net), world, strategy),
        feed_of(rows, world, 8, 2, steps=STEPS, count=count),
        terms,
        mix=lambda tick: {"error": 1.0, "tokens": 0.1 * tick.step},
    )
    for step in range(STEPS):
        by_hand = means(rows, order.ids(step)[:, 1], hand.module)
        hand.update(by_hand["error"] + 0.1 * step * by_hand["tokens"], rate(step))
        task.step(Tick(step, 0, False))
    close(weights_of(task.learner), hand.module.state_dict())


def the_logged_loss_is_the_mix_of_the_logged_terms(world: World, strategy: str) -> None:
    mix = {"error": 0.7, "tokens": 0.2}
    learner, accumulator = learner_of(made(Net), world, strategy, name="judge"), MetricAccumulator(world)
    feed = feed_of(Points(20), world, 8, 2, steps=STEPS, count=count)
    for step in range(STEPS):  # an epoch ends in a smaller batch, and the terms weigh differently in every step
        accumulator.add(learner.update(feed[step], terms, mix))
    means = accumulator.read()
    assert {"judge/accuracy", "judge/error", "judge/tokens"} <= set(means), "all are logged"
    wanted = sum(part * means[f"judge/{term}"] for term, part in mix.items())
    assert means["judge/loss"] == pytest.approx(wanted, rel=1e-12)
    assert not any("\x1f" in name for name in means)
    for step in range(STEPS):  # a term that is trained in one step of five counts for as much in the mean
        accumulator.add(learner.update(feed[step], terms, {"accuracy": 1.0} | ({"error": 1.0} if step == 1 else {})))
    means, alone = accumulator.read(), MetricAccumulator(world)
    alone.add(learner.update(feed[1], terms, {"error": 1.0}))
    extra = means["judge/loss"] - means["judge/accuracy"]
    assert 0 < extra < alone.read()["judge/error"] * 0.75


def several_terms_need_a_mix(world: World, strategy: str) -> None:
    learner, feed = learner_of(made(Net), world, strategy), feed_of(Points(20), world, 8, 2, steps=STEPS)
    with pytest.raises(UserError, match=r"several terms \('error', 'tokens', 'accuracy'\); say which .*mix=\{'error'"):
        learner.update(feed[0], terms)
    with pytest.raises(UserError, match="names 'eror', but its loss returned 'error', 'tokens', 'accuracy'"):
        learner.update(feed[0], terms, {"eror": 1.0})
    with pytest.raises(
        UserError, match="the mix of learner 'model' names no term; give a coefficient to one of 'error'"
    ):
        learner.update(feed[0], terms, {})
    for wrong in (1.0, "error", {"error": "1"}):
        with pytest.raises(
            UserError, match=r"the mix of learner 'model' is .*; give each trained term a number, such as"
        ):
            learner.update(feed[0], terms, wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="returned no term"):
        learner.update(feed[0], lambda module, batch: {})


def a_loss_has_one_value_a_row(world: World, strategy: str) -> None:
    learner, feed = learner_of(made(Net), world, strategy, name="judge"), feed_of(Points(20), world, 8, 2, steps=STEPS)

    def returning(change: Callable[[Tensor], Any]) -> Any:
        return lambda module, batch: change(module(batch["x"], batch["tokens"]))

    wrong: list[tuple[Callable[[Tensor], Any], str]] = [
        (
            lambda out: out.sum(1),
            "returned a Tensor; return a dict with one value a row by name",
        ),  # also in the first call
        (
            lambda out: {"error": out.mean()},
            "'error'.* is one number for the whole micro-batch, but must have one value",
        ),
        (lambda out: {"error": out}, r"'error'.* has the shape \(., 2\) for . rows, .* sum over the other dimensions"),
        (lambda out: {"error": 1.0}, "'error'.* is a float, but must be a tensor with one value a row"),
    ]
    for change, sentence in wrong:
        with pytest.raises(UserError, match=sentence):
            learner.update(feed[0], returning(change))
        with pytest.raises(UserError, match=sentence):
            evaluate(learner, feed, returning(change))


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 4)
        self.shard_units = [self.out]

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 1)
        self.shard_units = [self.first]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)))[:, 0]


def judged(judge: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"fake": (judge(batch["x"]) - batch["y"][:, 0]).square()}


def adversaries(world: World, strategy: str) -> None:
    """A generator's loss goes through the judge, whose weights it must neither train nor leave a gradient in."""
    for constant in (True, False):
        rows, order = Points(20), Shuffled(20, 8, seed=3)
        judge = learner_of(made(Judge), world, strategy, name="judge")
        generator = learner_of(made(Generator, seed=2), world, strategy, name="generator")
        hands = ByHand(made(Generator, seed=2), ("out.weight",)), ByHand(made(Judge), ("first.weight", "last.weight"))
        feed = feed_of(rows, world, 8, 2, steps=4)

        def fooled(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
            written = module(batch["x"])
            if constant:  # noqa: B023
                with judge.held_constant() as critic:  # noqa: B023
                    return {"fool": critic(written)}
            return {"fool": judge._parallel.inner(written)}  # noqa: B023  # leaves gradients in the judge

        for step in range(4):
            batch = rows.rows(order.ids(step)[:, 1])
            hands[0].update(hands[1].module(hands[0].module(batch["x"])).mean(), rate(step))
            hands[1].optimizer.zero_grad()
            hands[1].update(judged(hands[1].module, batch)["fake"].mean(), rate(step))
            micro_batches = feed[step]
            generator.update(micro_batches, fooled)
            if constant:
                assert all(p.grad is None for p in judge.parameters())
                assert all(p.requires_grad for p in judge.parameters())
            judge.update(micro_batches, judged)
        close(weights_of(generator), hands[0].module.state_dict())
        close(weights_of(judge), hands[1].module.state_dict())


def a_count_of_no_term_is_refused(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    feed = feed_of(Points(20), world, 8, 2, steps=STEPS, count=lambda batch: {"eror": batch["tokens"]})
    learner.update(feed[0], terms, {"error": 1.0})
    with pytest.raises(UserError, match=r"count gives 'eror' a weight, but the loss has no such term \(it has 'accur"):
        feed.check_counted()
    order = Shuffled(20, 8, seed=3)
    speed = Feed(Points(20), order, world, micro_rows=2, length=3, count=count, unit="tokens")
    evaluate(learner, speed, lambda module, batch: {"error": terms(module, batch)["error"]})
    other = Feed(Points(20), order, world, micro_rows=2, length=3, count=count)
    evaluate(learner, other, lambda module, batch: {"error": terms(module, batch)["error"]})  # what training counts too
    other = Feed(Points(20), order, world, micro_rows=2, length=3, count=count)
    with pytest.raises(UserError, match="count gives 'error' a weight, but the loss has no such term"):
        evaluate(learner, other, lambda module, batch: {"eror": terms(module, batch)["error"]})


def a_step_has_one_rate_however_many_updates_it_makes(world: World, strategy: str) -> None:
    step, hand = 0, ByHand(made(Net))
    learner = learner_of(made(Net), world, strategy, step=lambda: step)
    feed = feed_of(Points(20), world, 8, 2, steps=STEPS)
    rows, order = Points(20), Shuffled(20, 8, seed=3)
    for step in range(3):
        micro_batches = feed[step]
        for _ in range(2):
            loss = terms(hand.module, rows.rows(order.ids(step)[:, 1]))["accuracy"].mean()
            hand.update(loss, rate(step))
            metrics = learner.update(micro_batches, terms, {"accuracy": 1.0})
            assert metrics["lr"].sum == rate(step)
    assert learner.updates == 6
    close(weights_of(learner), hand.module.state_dict())


CASES: list[Case] = [
    only_what_the_mix_names_is_trained,
    the_logged_loss_is_the_mix_of_the_logged_terms,
    several_terms_need_a_mix,
    a_loss_has_one_value_a_row,
    adversaries,
    a_count_of_no_term_is_refused,
    a_step_has_one_rate_however_many_updates_it_makes,
]

test_on_ranks = on_ranks(CASES)
