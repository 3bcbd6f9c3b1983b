"""A loss that couples all rows of the global batch has the gradient of the whole batch at once, however it is split."""

from collections.abc import Mapping
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import RunFailed, UserError
from samestep.data.loading import Batch
from samestep.data.order import Shuffled, micro_batches
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import (
    NOT_SHARDED,
    SETTINGS,
    ByHand,
    Case,
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

SPLITS = [(23, 8, 2), (23, 8, 100), (10, 7, 1), (9, 4, 3), (5, 2, 1)]
MIX = {"match": 0.5, "pairs": 2.0}
DECAYED = ("query.weight", "key.weight", "join.weight")


class Towers(nn.Module):
    """Two towers that meet in one forward; `drop` is torch's own dropout on the query side."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.join = nn.Linear(4, 5), nn.Linear(2, 5), nn.Linear(5, 3)
        self.drop = nn.Dropout(drop)
        self.shard_units = [self.query]

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.join(torch.tanh(self.drop(self.query(x)))), self.join(torch.tanh(self.key(y)))


class Scaled(Towers):
    """With a learned scale."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        query, key = super().forward(x, y)
        return self.scale * query, key


def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    query, key = module(batch["x"], batch["y"])
    return {"query": query, "key": key, "weight": batch["pairs"]}  # the last has no gradient and travels along


def couple(all_rows: Mapping[str, Tensor], own: slice = slice(None)) -> dict[str, Tensor]:
    """Each query must find its key among those of the whole batch; a second term weighs only some rows."""
    query, weight = all_rows["query"][own], all_rows["weight"][own]
    numbers = torch.arange(len(all_rows["key"]), device=query.device)[own]
    match = torch.nn.functional.cross_entropy(query @ all_rows["key"].T, numbers, reduction="none")
    return {"match": match, "pairs": query.square().sum(1) * weight}


def pairs(batch: Batch) -> dict[str, Tensor]:
    return {"pairs": batch["pairs"]}


def mean_loss(rows: Mapping[str, Tensor], weight: Tensor) -> Tensor:
    loss = MIX["match"] * rows["match"].mean()
    return loss + MIX["pairs"] * rows["pairs"].sum() / weight.sum() if weight.sum() > 0 else loss


def the_whole_batch_is_coupled(world: World, strategy: str) -> None:
    for size, batch, micro in SPLITS:
        rows, order = Points(size), Shuffled(size, batch, seed=3)
        hand, learner = ByHand(made(Towers), DECAYED), learner_of(made(Towers), world, strategy)
        feed, accumulator = feed_of(rows, world, batch, micro, steps=5, count=pairs), MetricAccumulator(world)
        for step in range(5):
            full_batch = rows.rows(order.ids(step)[:, 1])
            loss = mean_loss(couple(embed(hand.module, full_batch)), full_batch["pairs"])
            norm = hand.update(loss, rate(step))
            accumulator.add(learner.update_coupled(feed[step], embed, couple, MIX))
            means = accumulator.read()
            assert means["loss"] == pytest.approx(float(loss), rel=1e-10)
            assert means["grad_norm"] == pytest.approx(norm, rel=1e-10)
        close(weights_of(learner), hand.module.state_dict())


def dropout_is_the_same_in_both_passes(world: World, strategy: str) -> None:
    """Every rank draws from a stream of its own; the reference replays all of them, one pass only."""
    size, batch, micro = 22, 7, 2
    rows, order = Points(size), Shuffled(size, batch, seed=3)
    build = lambda: Towers(drop=0.4)  # noqa: E731
    hand, learner = ByHand(made(build), DECAYED), learner_of(made(build), world, strategy)
    feed = feed_of(rows, world, batch, micro, steps=4, count=pairs)
    streams = []
    for rank in range(world.size):
        torch.manual_seed(100 + rank)
        streams.append(torch.get_rng_state())
    mine = streams[world.rank]
    for step in range(4):
        full_batch = rows.rows(order.ids(step)[:, 1])
        parts: list[dict[str, Tensor]] = []
        for rank in range(world.size):
            torch.set_rng_state(streams[rank])
            for start, stop in micro_batches(len(full_batch["x"]), rank, world.size, micro):
                filler = start == stop  # is embedded too, and draws
                chosen = slice(0, 1) if filler else slice(start, stop)
                part = embed(hand.module, {name: value[chosen] for name, value in full_batch.items()})
                parts += [] if filler else [part]
            streams[rank] = torch.get_rng_state()
        joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        hand.update(mean_loss(couple(joined), full_batch["pairs"]), rate(step))

        torch.set_rng_state(mine)
        learner.update_coupled(feed[step], embed, couple, MIX)
        mine = torch.get_rng_state()
        assert torch.equal(mine, streams[world.rank])
    close(weights_of(learner), hand.module.state_dict())


def nothing_to_weigh_is_skipped(world: World, strategy: str) -> None:
    rows = Points(8)
    rows.pairs[:4] = 0
    rows.pairs[4:] = 1
    learner = learner_of(made(Towers), world, strategy)
    feed = feed_of(rows, world, 4, 1, steps=2, count=pairs, order=in_order(rows, 4))
    before, moments = weights_of(learner), moments_of(learner)
    both = lambda *seen: {"pairs": couple(*seen)["pairs"] + 0 * couple(*seen)["match"]}  # noqa: E731
    assert not learner.update_coupled(feed[0], embed, both)
    close(weights_of(learner), before, tolerance=0)
    close(moments_of(learner), moments, tolerance=0)
    assert learner.update_coupled(feed[1], embed, both)
    assert learner.updates == 2


def around_the_wrapper(world: World, strategy: str) -> None:
    module = made(Towers)
    learner = learner_of(module, world, strategy)
    micro_batches = feed_of(Points(8), world, 8, 2, steps=1)[0]

    def around(given: nn.Module, batch: Batch) -> dict[str, Tensor]:
        return {"query": module.query(batch["x"])}

    with pytest.raises(RunFailed, match="learner 'model' did not call the network it was given"):
        learner.update_coupled(micro_batches, around, lambda seen, own: {"norm": seen["query"][own].square().sum(1)})


def weights_do_not_couple(world: World, strategy: str) -> None:
    """Where rows are compared, a weight would get the gradient of one rank's rows."""
    for micro in (100, 2):
        learner = learner_of(made(Scaled), world, strategy)

        def scaled(rows: Mapping[str, Tensor], own: slice, learner: Learner = learner) -> dict[str, Tensor]:
            return {"match": learner.module.scale * couple(rows, own)["match"]}

        with pytest.raises(UserError, match=r"couple\(rows, own\) uses the weight 'scale' of the network"):
            learner.update_coupled(feed_of(Points(8), world, 8, micro, steps=1)[0], embed, scaled)


def one_micro_batch_is_embedded_once(world: World, strategy: str) -> None:
    learner = learner_of(made(Towers), world, strategy)
    calls: list[int] = []

    def counted(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
        calls.append(len(batch["x"]))
        return embed(module, batch)

    for micro, times in ((100, 1), (1, 2 * -(-8 // world.size))):
        feed = feed_of(Points(16), world, 8, micro, steps=2)
        learner.update_coupled(feed[0], counted, couple, MIX)  # its first update may try a pass before
        calls.clear()
        learner.update_coupled(feed[1], counted, couple, MIX)
        assert len(calls) == times


def a_rank_does_the_loss_of_its_own_rows(world: World, strategy: str) -> None:
    learner = learner_of(made(Towers), world, strategy)
    spans: list[tuple[int, int]] = []

    def own_rows(rows: Mapping[str, Tensor], own: slice) -> dict[str, Tensor]:
        spans.append((own.start, own.stop))
        return couple(rows, own)

    for step, batch in enumerate((7, 2)):  # with 3 ranks one has no row of the second
        learner.update_coupled(feed_of(Points(7), world, batch, 2, steps=1)[0], embed, own_rows, MIX)
        everybody = world.gather(spans[-1])
        assert [bound for span in everybody for bound in span][:: 2 * world.size - 1] == [0, batch]
        assert all(before[1] == after[0] for before, after in pairwise(everybody)), step


def low_precision_follows(world: World, strategy: str) -> None:
    """Embeddings in bf16 or fp16 are gathered in float32; fp16's scale cancels out."""
    with default_dtype(torch.float32):
        # A large epsilon: Adam would otherwise blow the rounding of a gradient near zero up to a full step.
        settings = OptimSettings(SETTINGS.betas, 0.01, SETTINGS.weight_decay, SETTINGS.clip)
        rows = Points(16)
        ends = {}
        for precision in ("none", "bf16", "fp16"):
            learner = learner_of(made(Towers), world, strategy, mixed_precision=precision, settings=settings)
            if learner._scale:
                learner._scale.scale.fill_(2.0**8)  # its usual start would overflow here, and skip the first steps
            feed = feed_of(rows, world, 8, 2, steps=4, count=pairs)
            for step in range(4):
                learner.update_coupled(feed[step], embed, couple, MIX)
            learner.check_finite()
            ends[precision] = torch.cat([value.flatten() for value in weights_of(learner).values()])
        begun = torch.cat([value.flatten() for value in made(Towers).state_dict().values()])
        moved = (ends["none"] - begun).norm()
        for precision in ("bf16", "fp16"):
            assert 0 < (ends[precision] - ends["none"]).norm() < 0.02 * moved, precision


CASES: list[Case] = [
    the_whole_batch_is_coupled,
    dropout_is_the_same_in_both_passes,
    nothing_to_weigh_is_skipped,
    around_the_wrapper,
    in_worlds(NOT_SHARDED)(weights_do_not_couple),
    one_micro_batch_is_embedded_once,
    a_rank_does_the_loss_of_its_own_rows,
    low_precision_follows,
]

test_on_ranks = on_ranks(CASES)
