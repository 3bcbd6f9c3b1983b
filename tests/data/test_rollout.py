"""Rows that are made inside a step are the same at any world size: their ids, values, weights, parts and moments."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.data import noise
from samestep.data.feed import CountedTerms, MicroBatches
from samestep.data.loading import Batch
from samestep.data.order import Shuffled
from samestep.data.rollout import moments, produce, split_rows
from samestep.world.world import World
from toys import ByHand, Case, Net, Points, close, feed_of, learner_of, made, on_ranks, rate, weights_of

DRAW = noise.purpose("test/draw")
SIZES = [(20, 7, 2), (20, 8, 3), (9, 2, 1), (5, 1, 4)]
"""Rows, global batch and micro-batch; at 3 ranks some have nothing but filler rows."""


def drawn(batch: Batch) -> dict[str, Tensor]:
    """A draw for each copy, and a reward; also with a gradient, which must not stay."""
    tokens = noise.integers(5, DRAW, *batch["ids"].unbind(1))
    reward = (batch["x"].sum(1) * torch.ones(1, requires_grad=True)) * (1 + tokens)
    return {"x": batch["x"], "y": batch["y"], "tokens": tokens, "pairs": batch["pairs"], "reward": reward}


def ragged(batch: Batch) -> dict[str, Tensor]:
    """As wide as the longest of a micro-batch."""
    wide = torch.arange(int(batch["tokens"].max()) + 1) < batch["tokens"][:, None]
    return {**drawn(batch), "wide": wide}


def count(batch: Batch) -> dict[str, Tensor]:
    return {"error": batch["tokens"]}


def rollout(world: World, rows: int, batch: int, micro: int, step: int, copies: int, make: Any = drawn) -> MicroBatches:
    prompts = feed_of(Points(rows), world, batch, micro, steps=4)[step]
    return produce(world, prompts, make, copies, count, CountedTerms())


def live_rows(world: World, rows: MicroBatches) -> list[Any]:
    """The live rows of all ranks in order, as numbers; checks what each rank has."""
    mine = []
    for number, batch in enumerate(rows.batches):
        start, stop = rows.spans[number]
        assert len(batch["live"]) == max(1, stop - start) and bool(batch["live"].all()) == (stop > start)
        if stop > start:
            assert torch.equal(batch["ids"], torch.as_tensor(rows.ids[start:stop]))
            mine += [batch[name].tolist() for name in ("ids", "reward", "tokens")]
    assert len(set(world.gather(len(rows.batches)))) == 1, "as many micro-batches on every rank"
    columns = [[value for part in world.gather(mine) for column in part[at::3] for value in column] for at in range(3)]
    assert columns[0] == rows.ids.tolist(), "the shares follow each other"
    return [sorted(zip(*columns)), rows.weights]


def produced_rows(world: World, strategy: str) -> None:
    for sizes in SIZES:
        for step, copies, make in ((0, 1, drawn), (1, 3, drawn), (2, 2, ragged)):
            here, alone = (rollout(w, *sizes, step, copies, make) for w in (world, World.single()))
            assert live_rows(world, here) == live_rows(World.single(), alone)
            assert here.weights["rows"] == len(Shuffled(sizes[0], sizes[1], 3).ids(step)) * copies
            assert len(np.unique(here.ids, axis=0)) == len(here.ids), "copies are told apart"
            assert all(len(batch["live"]) <= sizes[2] for batch in here.batches), "micro-batches as large as before"
            assert not any(value.requires_grad for batch in here.batches for value in batch.values())
            assert moments(world, here, "reward") == moments(World.single(), alone, "reward"), "bit for bit"


def parts_of_rows(world: World, strategy: str) -> None:
    for sizes in SIZES:
        for make in (drawn, ragged):
            here, alone = (rollout(w, *sizes, 1, 2, make) for w in (world, World.single()))
            turns = [split_rows(world, here, 3, turn) for turn in range(2)]
            for turn, parts in enumerate(turns):
                expected = split_rows(World.single(), alone, 3, turn)
                assert len(parts) == len(expected) == min(3, len(here.ids))
                for part, wanted in zip(parts, expected):
                    assert live_rows(world, part) == live_rows(World.single(), wanted)
                    assert all(len(batch["live"]) <= sizes[2] for batch in part.batches)
                    assert moments(world, part, "reward") == moments(World.single(), wanted, "reward")
                sizes_of_parts = [len(part.ids) for part in parts]
                assert max(sizes_of_parts) - min(sizes_of_parts) <= 1
                together = np.concatenate([part.ids for part in parts])
                assert np.array_equal(np.unique(together, axis=0), np.unique(here.ids, axis=0))
            if len(here.ids) > 10:
                assert not np.array_equal(turns[0][0].ids, turns[1][0].ids), "another turn is another split"
    few = len(split_rows(World.single(), rollout(World.single(), 20, 8, 2, 0, 4), 2)[0].batches)
    assert few == 8, "equal shapes are put together again: 16 rows by two"


def policy_loss(mean: float, spread: float) -> Any:
    def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        off = (module(batch["x"], batch["tokens"]) - batch["y"]).square().sum(1)
        return {"error": off * batch["tokens"] * (batch["reward"] - mean) / spread}

    return loss


def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"out": module(batch["x"], batch["tokens"]), "reward": batch["reward"]}


def couple(rows: Mapping[str, Tensor], own: slice = slice(None)) -> dict[str, Tensor]:
    return {"all": (rows["out"][own] @ rows["out"].T).sum(1) * rows["reward"][own]}


def updates_on_a_rollout(world: World, strategy: str) -> None:
    learner, hand = learner_of(made(Net), world, strategy, step=lambda: 0), ByHand(made(Net))
    feed = feed_of(Points(20), world, 7, 2, steps=4)
    whole = feed_of(Points(20), World.single(), 7, 7, steps=4)
    for step in range(3):
        here = produce(world, feed[step], drawn, 2, count, CountedTerms())
        full = produce(World.single(), whole[step], drawn, 2, count, CountedTerms())
        everything = {name: torch.cat([batch[name] for batch in full.batches]) for name in full.batches[0]}
        mean, variance = moments(world, here, "reward")
        assert mean == pytest.approx(float(everything["reward"].mean()), rel=1e-12)
        assert variance == pytest.approx(float(everything["reward"].var(correction=0)), rel=1e-12)
        loss = policy_loss(mean, math.sqrt(variance))
        index = {tuple(pair): at for at, pair in enumerate(everything["ids"].tolist())}
        for inner in range(2):
            for part in split_rows(world, here, 3, inner):
                rows = [index[tuple(pair)] for pair in part.ids.tolist()]
                batch = {name: value[rows] for name, value in everything.items()}
                hand.update(loss(hand.module, batch)["error"].sum() / batch["tokens"].sum(), rate(0))
                learner.update(part, loss)
        hand.update(couple(embed(hand.module, everything))["all"].mean(), rate(0))
        learner.update_coupled(here, embed, couple)
    close(weights_of(learner), hand.module.state_dict(), tolerance=1e-9)


def what_is_refused(world: World, strategy: str) -> None:
    prompts = feed_of(Points(20), world, 8, 2, steps=4)[0]
    wrong: list[tuple[Any, int, str]] = [
        (lambda batch: batch["x"], 1, "must return a dict of tensors, not a Tensor"),
        (lambda batch: {"x": batch["x"][:1].repeat(9, 1)}, 2, r"'x' has the shape \(9, 4\) in a batch of"),
        (drawn, 0, "at least 1 copy, not 0"),
    ]
    for make, copies, sentence in wrong:
        with pytest.raises(UserError, match=sentence):
            produce(world, prompts, make, copies, None, CountedTerms())
    with pytest.raises(UserError, match="at least 1 part, not 0"):
        split_rows(world, prompts, 0)
    with pytest.raises(UserError, match="one value a row, but 'x' has the shape"):
        moments(world, prompts, "x")
    with pytest.raises(UserError, match="the rows have no 'reward'; they have 'x', 'y'"):
        moments(world, prompts, "reward")
    counted = CountedTerms()
    stray = produce(world, prompts, drawn, 1, lambda batch: {"eror": batch["tokens"]}, counted)
    learner_of(made(Net), world, strategy).update(stray, policy_loss(0.0, 1.0))
    with pytest.raises(UserError, match="count gives 'eror' a weight, but the loss has no such term"):
        counted.check()
    infinite = produce(world, prompts, lambda batch: {"v": batch["x"][:, 0] / 0}, 1, None, CountedTerms())
    assert all(map(math.isnan, moments(world, infinite, "v")))


CASES: list[Case] = [produced_rows, parts_of_rows, updates_on_a_rollout, what_is_refused]

test_on_ranks = on_ranks(CASES)
