"""Generation inside a step through `Learner.inference()`, and two learners that train against each other."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from samestep.data.loading import Batch
from samestep.data.order import Order, Shuffled
from samestep.train.learner.draws import Draws
from samestep.train.logging.metrics import Metric, MetricAccumulator
from samestep.world.world import World
from toys import ByHand, Case, Points, close, feed_of, learner_of, made, on_ranks, rate, weights_of

TOKENS = 5
INNER = 2  # updates of each learner in a step


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, TOKENS)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sees, self.table = nn.Linear(4, 1), nn.Embedding(TOKENS, 1)

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        return (self.sees(x) + self.table(token))[:, 0]


def judge_loss(judge: nn.Module, batch: Batch) -> dict[str, Tensor]:
    """Real and written rows in one call, because two calls of a wrapper are two forwards to be synchronised."""
    x, token = batch["x"].repeat(2, 1), torch.cat([batch["tokens"], batch["written"]])
    real, written = judge(x, token).chunk(2)
    return {"real": nn.functional.softplus(-real), "written": nn.functional.softplus(written)}


def writer_loss(writer: nn.Module, batch: Batch) -> dict[str, Tensor]:
    likelihood = writer(batch["x"]).log_softmax(-1).gather(1, batch["written"][:, None])[:, 0]
    return {"policy": -likelihood * batch["advantage"]}


def duel(world: World, strategy: str) -> None:
    """Each step: write, judge the writing, train the judge, then train the writer on rewards centred over all rows."""
    for size, batch, micro in [(23, 8, 2), (10, 7, 3), (5, 2, 1)]:
        rows, order, draws = Points(size), Shuffled(size, batch, seed=3), Draws("write", seed=4)
        writer = learner_of(made(Writer), world, strategy, name="writer")
        judge = learner_of(made(Judge, seed=2), world, strategy, name="judge")
        feed, accumulator = feed_of(rows, world, batch, micro, steps=4), MetricAccumulator(world)
        hands = ByHand(made(Writer), ("body.weight", "head.weight")), ByHand(made(Judge, seed=2), ("sees.weight",))
        for step in range(4):
            expected = duel_by_hand(*hands, rows, order, draws, step)
            micro_batches = feed[step]
            with writer.inference() as module:
                for part in micro_batches.batches:
                    part["written"] = draws.pick(module(part["x"]), step=step, ids=part["ids"], position=0)
            for _ in range(INNER):
                accumulator.add(judge.update(micro_batches, judge_loss, {"real": 1.0, "written": 0.5}))
            with judge.inference() as module:
                for part in micro_batches.batches:
                    part["reward"] = module(part["x"], part["written"])
            mean = global_mean(world, micro_batches.batches, micro_batches.weight("rows"))
            micro_batches = replace(
                micro_batches, batches=[{**b, "advantage": b["reward"] - mean} for b in micro_batches.batches]
            )
            for _ in range(INNER):
                accumulator.add(writer.update(micro_batches, writer_loss))
            means = accumulator.read()
            assert mean == pytest.approx(expected["reward"], rel=1e-10)
            assert means["count/rows"] == len(order.ids(step)), "counts are the step's, whoever learns from it"
            assert not any(name.endswith("/count/rows") for name in means)
            for name in ("judge/loss", "writer/loss"):
                assert means[name] == pytest.approx(expected[name], rel=1e-9), name
        for learner, hand in zip((writer, judge), hands):
            close(weights_of(learner), hand.module.state_dict())
        assert (writer.updates, judge.updates) == (4 * INNER, 4 * INNER)


def global_mean(world: World, batches: list[Batch], rows: float) -> float:
    accumulator = MetricAccumulator(world)
    total = sum(torch.where(b["live"], b["reward"], 0.0).sum() for b in batches)
    accumulator.add({"reward": Metric(total, rows)})
    return accumulator.read()["reward"]


def duel_by_hand(
    writer: ByHand, judge: ByHand, rows: Points, order: Order, draws: Draws, step: int
) -> dict[str, float]:
    ids = order.ids(step)
    full_batch = rows.rows(ids[:, 1])
    losses: dict[str, list[float]] = {"judge/loss": [], "writer/loss": []}
    with torch.no_grad():
        full_batch["written"] = draws.pick(
            writer.module(full_batch["x"]), step=step, ids=torch.as_tensor(ids), position=0
        )
    for inner in range(INNER):
        terms = judge_loss(judge.module, full_batch)
        loss = terms["real"].mean() + 0.5 * terms["written"].mean()
        judge.update(loss, rate(step * INNER + inner))
        losses["judge/loss"].append(float(loss.detach()))
    with torch.no_grad():
        reward = judge.module(full_batch["x"], full_batch["written"])
    full_batch["advantage"] = reward - reward.mean()
    for inner in range(INNER):
        loss = writer_loss(writer.module, full_batch)["policy"].mean()
        writer.update(loss, rate(step * INNER + inner))
        losses["writer/loss"].append(float(loss.detach()))
    return {"reward": float(reward.mean()), **{name: sum(values) / INNER for name, values in losses.items()}}


class Moody(nn.Module):
    """Writes tokens, in evaluation mode without its dropout; a part of it stays in evaluation mode always."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.calm = nn.Sequential(nn.Dropout(0.5)).eval()
        self.head = nn.Linear(6, 7)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.calm(self.body(x)))
        return self.head(hidden + (1.0 if self.training else 0.0))


def generation_inside_a_step(world: World, strategy: str) -> None:
    rows, order = Points(23), Shuffled(23, 7, seed=3)
    draws = Draws("write", seed=5)

    def write(module: nn.Module, x: Tensor, ids: Tensor, step: int) -> Tensor:
        tokens = []
        for position in range(3):
            tokens.append(draws.pick(module(x), step=step, ids=ids, position=position))
            x = x + tokens[-1][:, None]
        return torch.stack(tokens, 1)

    def likelihood(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"nll": -module(batch["x"]).log_softmax(-1).gather(1, batch["written"]).sum(1)}

    hand = ByHand(made(Moody).train(), decayed=("body.weight", "head.weight"))
    hand.module.get_submodule("calm").eval()
    learner = learner_of(made(Moody), world, strategy)
    feed = feed_of(rows, world, 7, 2, steps=4)
    modes = _modes(learner)
    assert modes[""]
    assert not modes["calm.0"]
    for step in range(4):
        ids = torch.as_tensor(order.ids(step))
        full_batch = rows.rows(order.ids(step)[:, 1])
        with torch.no_grad():
            full_batch["written"] = write(hand.module.eval(), full_batch["x"], ids, step)
        hand.module.train().get_submodule("calm").eval()
        hand.update(likelihood(hand.module, full_batch)["nll"].mean(), rate(step))

        micro_batches, before = feed[step], weights_of(learner)
        with learner.inference() as module:
            assert not torch.is_grad_enabled()
            assert not any(m.training for m in module.modules())
            for batch in micro_batches.batches:
                batch["written"] = write(module, batch["x"], batch["ids"], step)
        assert _modes(learner) == modes
        assert torch.is_grad_enabled()
        assert all(p.grad is None for p in learner.parameters())
        close(weights_of(learner), before, tolerance=0)
        for (start, stop), batch in zip(micro_batches.spans, micro_batches.batches):
            assert torch.equal(batch["written"][: stop - start], full_batch["written"][start:stop]), "the same tokens"
        learner.update(micro_batches, likelihood)
    close(weights_of(learner), hand.module.state_dict())


def _modes(learner: object) -> dict[str, bool]:
    inner: nn.Module = learner._parallel.inner  # type: ignore[attr-defined]
    return {name: module.training for name, module in inner.named_modules()}


CASES: list[Case] = [generation_inside_a_step, duel]

test_on_ranks = on_ranks(CASES)
