"""One update equals the update of the whole global batch by hand, however the batch is split."""

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from samestep.core.errors import RunFailed
from samestep.data.loading import Batch
from samestep.data.order import Order, Shuffled
from samestep.train.learner.learner import Loss
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import (
    SETTINGS,
    SEVERAL,
    ByHand,
    Case,
    Net,
    Points,
    close,
    default_dtype,
    feed_of,
    in_order,
    in_worlds,
    learner_of,
    made,
    moments_of,
    on_ranks,
    rate,
    weights_of,
)

SPLITS = [
    # rows, global batch, rows of a micro-batch
    (23, 8, 2),  # the last batch has 7 rows
    (23, 8, 100),
    (10, 7, 1),  # uneven shares, the last batch has 3 rows
    (9, 4, 3),  # the last batch has one row: ranks without any
    (5, 2, 1),  # fewer rows than ranks in every batch
]
MIX = {"tokens": 0.7, "pairs": -0.3}


def one_term(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"error": (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)}


def two_terms(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    out = module(batch["x"], batch["tokens"])
    error = (out - batch["y"]).square().sum(1)
    return {"tokens": error * batch["tokens"], "pairs": torch.tanh(out.sum(1)) * batch["pairs"]}


def both(batch: Batch) -> dict[str, Tensor]:
    return {"tokens": batch["tokens"], "pairs": batch["pairs"]}


def whole_batch(rows: Points, order: Order, step: int) -> Batch:
    return rows.rows(order.ids(step)[:, 1])


def mean_loss(module: nn.Module, batch: Batch, loss: Loss = two_terms) -> Tensor | None:
    """The loss of the whole batch by hand; None where nothing weighs anything."""
    sums, weights = loss(module, batch), both(batch)
    parts = [MIX[t] * sums[t].sum() / weights[t].sum() for t in sums if weights[t].sum() > 0]
    return torch.stack(parts).sum() if parts else None


def one_term_is_exact(world: World, strategy: str) -> None:
    for clip in (0.0, 0.5):
        settings = OptimSettings(SETTINGS.betas, SETTINGS.eps, SETTINGS.weight_decay, clip)
        for size, batch, micro in SPLITS:
            rows, order = Points(size), Shuffled(size, batch, seed=3)
            hand = ByHand(made(Net), settings=settings)
            learner = learner_of(made(Net), world, strategy, settings=settings)
            feed, accumulator = feed_of(rows, world, batch, micro, steps=6), MetricAccumulator(world)
            for step in range(6):
                full_batch = whole_batch(rows, order, step)
                loss = one_term(hand.module, full_batch)["error"].mean()
                norm = hand.update(loss, rate(step))
                accumulator.add(learner.update(feed[step], one_term))
                means = accumulator.read()
                for name, wanted in {"loss": float(loss), "error": float(loss), "grad_norm": norm}.items():
                    assert means[name] == pytest.approx(wanted, rel=1e-10), (name, step)
                assert means["lr"] == pytest.approx(rate(step), rel=1e-12)
                assert means["count/rows"] == len(full_batch["x"])
                assert means["skipped"] == 0
            close(weights_of(learner), hand.module.state_dict())


def two_terms_are_exact(world: World, strategy: str) -> None:
    for size, batch, micro in SPLITS:
        rows, order = Points(size), Shuffled(size, batch, seed=3)
        hand, learner = ByHand(made(Net)), learner_of(made(Net), world, strategy)
        feed, accumulator = feed_of(rows, world, batch, micro, steps=6, count=both), MetricAccumulator(world)
        for step in range(6):
            full_batch = whole_batch(rows, order, step)
            loss = mean_loss(hand.module, full_batch)
            if loss is not None:
                hand.update(loss, rate(step))
            accumulator.add(learner.update(feed[step], two_terms, MIX))
            means = accumulator.read()
            assert means.get("loss") == (None if loss is None else pytest.approx(float(loss), rel=1e-10))
        close(weights_of(learner), hand.module.state_dict())


class Gaps(Points):
    """In batches of four, in order: the second has no pairs, the third no tokens, the fourth nothing at all."""

    def __init__(self) -> None:
        super().__init__(20)
        self.tokens = torch.tensor([3, 1, 2, 4] * 2 + [0] * 8 + [1, 2, 0, 0])
        self.pairs = torch.tensor([1, 0, 1, 1] + [0] * 4 + [1, 0, 0, 0] + [0] * 4 + [0, 0, 1, 1])


def terms_without_weight(world: World, strategy: str) -> None:
    """The rows of a term that weighs nothing do not count, whatever they are."""

    def loss_rows(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        out = module(batch["x"], batch["tokens"])
        return {"tokens": (out - batch["y"]).square().sum(1), "pairs": torch.tanh(out.sum(1))}

    rows = Gaps()
    order = in_order(rows, 4)
    hand, learner = ByHand(made(Net)), learner_of(made(Net), world, strategy)
    feed = feed_of(rows, world, 4, 1, steps=5, count=both, order=order)
    for step in range(5):
        loss = mean_loss(hand.module, whole_batch(rows, order, step), loss_rows)
        if loss is not None:
            hand.update(loss, rate(step))
        assert (loss is None) == (step == 3)
        before, moments = weights_of(learner), moments_of(learner)
        metrics = learner.update(feed[step], loss_rows, MIX)
        if step == 3:
            assert not metrics, "a step without weight has no metrics"
            close(weights_of(learner), before, tolerance=0)
            close(moments_of(learner), moments, tolerance=0)
        assert all(p.grad is None for p in learner.parameters())
    assert learner.updates == 5, "the schedule goes on over a skipped step"
    close(weights_of(learner), hand.module.state_dict())


def float32_is_fused_and_right(world: World, strategy: str) -> None:
    """In float32 the optimizer itself divides by the clipping factor: another path than float64's."""
    with default_dtype(torch.float32):
        rows = Points(23)
        rows.x, rows.y = rows.x.float(), rows.y.float()
        order = Shuffled(23, 8, seed=3)
        hand, learner = ByHand(made(Net)), learner_of(made(Net), world, strategy)
        feed = feed_of(rows, world, 8, 2, steps=6)
        for step in range(6):
            hand.update(one_term(hand.module, whole_batch(rows, order, step))["error"].mean(), rate(step))
            learner.update(feed[step], one_term)
        close(weights_of(learner), hand.module.state_dict(), tolerance=1e-4)


class Partly(Net):
    """With a frozen part, and a head that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.table.weight

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        out = super().forward(self.frozen(x), tokens)
        return out + self.tied(self.first(x)).sum(1, keepdim=True)


def frozen_and_tied_parts(world: World, strategy: str) -> None:
    rows, order = Points(23), Shuffled(23, 8, seed=3)
    hand, learner = ByHand(made(Partly)), learner_of(made(Partly), world, strategy)
    feed = feed_of(rows, world, 8, 2, steps=4)
    for step in range(4):
        hand.update(one_term(hand.module, whole_batch(rows, order, step))["error"].mean(), rate(step))
        learner.update(feed[step], one_term)
    close(weights_of(learner), hand.module.state_dict())
    state = learner.state_dict()
    again = learner_of(made(Partly, seed=2), world, strategy)
    again.load_state_dict(state)
    close(weights_of(again), weights_of(learner), tolerance=0)
    close(moments_of(again), moments_of(learner), tolerance=0)


@in_worlds(SEVERAL)
def gradients_are_reduced_once(world: World, strategy: str) -> None:
    learner = learner_of(made(Net), world, strategy)
    feed = feed_of(Points(64), world, 16, 2, steps=3)
    learner.update(feed[0], one_term)
    sent: list[str] = []
    for step in (1, 2):
        micro_batches = feed[step]
        assert len(micro_batches.batches) >= 3
        with profile(activities=[ProfilerActivity.CPU]) as watched:
            learner.update(micro_batches, one_term)
        sent = [event.name for event in watched.events() if event.name.startswith("gloo:")]
    reduced = [name for name in sent if "reduce" in name]
    # DDP: the one bucket. FSDP: each of the two sharded units, and the gradient norm (gloo scatters what all reduced).
    assert reduced == ["gloo:all_reduce"] * (1 if strategy == "ddp" else 3), sent


def around_the_wrapper(world: World, strategy: str) -> None:
    micro_batches = feed_of(Points(8), world, 8, 1, steps=1)[0]
    for honest in (0, 1):  # also when only the second micro-batch goes around
        module = made(Net)
        learner = learner_of(module, world, strategy)
        calls = iter(range(9))

        def loss(given: nn.Module, batch: Batch) -> dict[str, Tensor]:
            if next(calls) < honest * (2 if learner._parallel.needs_warm_up else 1):  # noqa: B023
                return one_term(given, batch)
            return {"error": module.first(batch["x"]).sum(1)}  # noqa: B023 (a part of the module, not the module)

        with pytest.raises(RunFailed, match="learner 'model' did not call the network it was given"):
            learner.update(micro_batches, loss)


CASES: list[Case] = [
    one_term_is_exact,
    two_terms_are_exact,
    terms_without_weight,
    float32_is_fused_and_right,
    frozen_and_tied_parts,
    gradients_are_reduced_once,
    around_the_wrapper,
]

test_on_ranks = on_ranks(CASES)
