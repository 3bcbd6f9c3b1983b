"""Several ranks may take one share of the data: all shares together still give every sample once."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from samestep.data.feed import CountedTerms
from samestep.data.loading import Batch, Share, Steps
from samestep.data.order import Sequential, Shuffled
from samestep.data.rollout import produce
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import DataParallel, World
from toys import Points, feed_of


def tokens(batch: Batch) -> dict[str, Tensor]:
    return {"tokens": batch["tokens"]}


def worlds(shares: int, copies: int) -> list[World]:
    """Ranks without their peers, `copies` neighbours to each share; the last of them counts it."""
    return [
        World(
            RankInfo("test", rank, shares * copies),
            torch.device("cpu"),
            data_parallel=DataParallel(rank // copies, shares, None, rank % copies == copies - 1),
        )
        for rank in range(shares * copies)
    ]


def same(one: Share, other: Share) -> bool:
    return (
        one.spans == other.spans
        and one.weights == other.weights
        and all(torch.equal(a[key], b[key]) for a, b in zip(one.batches, other.batches, strict=True) for key in a)
    )


def live_ids(share: Share) -> Tensor:
    return torch.cat([batch["ids"][batch["live"]] for batch in share.batches])


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40),
    batch=st.integers(1, 20),
    shares=st.integers(1, 5),
    copies=st.integers(1, 3),
    micro=st.integers(1, 9),
    shuffled=st.booleans(),
)
def test_all_shares_give_each_sample_once(
    size: int, batch: int, shares: int, copies: int, micro: int, shuffled: bool
) -> None:
    rows = Points(size)
    order = Shuffled(size, batch, seed=5) if shuffled else Sequential(size, batch)
    ranks = worlds(shares, copies)
    loads = [Steps(rows, order, world, micro, tokens) for world in ranks]
    seen: list[int] = []
    for step in range(order.steps_per_epoch):
        found = [steps[step] for steps in loads]
        assert len({len(share.batches) for share in found}) == 1, "every rank runs as many micro-batches"
        for rank, share in enumerate(found):
            assert same(share, found[rank - rank % copies]), "ranks of one share hold the same"
        counted = torch.cat([live_ids(share) for share, world in zip(found, ranks) if world.dp_counted])
        assert np.array_equal(counted.numpy(), order.ids(step)), "in the order's order, none twice, none left out"
        seen += counted[:, 1].tolist()
    assert sorted(seen) == list(range(size))


@settings(max_examples=20, deadline=None)
@given(size=st.integers(1, 30), batch=st.integers(1, 12), shares=st.integers(1, 4), copies=st.integers(1, 3))
def test_the_weights_that_ranks_send_count_every_share_once(size: int, batch: int, shares: int, copies: int) -> None:
    """A rank without peers receives only its own numbers, which are those it would have sent."""
    rows, order = Points(size), Shuffled(size, batch, seed=5)
    sent = [feed_of(rows, world, batch, 2, 1, tokens, order)[0].weights for world in worlds(shares, copies)]
    assert sum(weights["tokens"] for weights in sent) == float(rows.tokens[order.ids(0)[:, 1]].sum())
    assert {weights["rows"] for weights in sent} == {len(order.ids(0))}, "known without a message"


def test_rows_made_in_a_step_count_every_share_once() -> None:
    rows, order = Points(17), Shuffled(17, 7, seed=5)
    for shares, copies in ((1, 2), (2, 2), (3, 1), (5, 3)):
        sent = []
        for world in worlds(shares, copies):
            prompts = feed_of(rows, world, 7, 2, 1, None, order)[0]
            made = produce(world, prompts, lambda batch: {"tokens": batch["tokens"]}, 2, tokens, CountedTerms())
            sent.append(made.weights)
        assert sum(weights["tokens"] for weights in sent) == 2 * float(rows.tokens[order.ids(0)[:, 1]].sum())
        assert {weights["rows"] for weights in sent} == {14}


def test_by_default_every_rank_has_a_share_of_its_own() -> None:
    world = World(RankInfo("test", 2, 5), torch.device("cpu"))
    assert (world.dp_rank, world.dp_size, world.dp_group, world.dp_counted) == (2, 5, None, True)
    alone = World.single()
    assert (alone.dp_rank, alone.dp_size, alone.dp_group, alone.dp_counted) == (0, 1, None, True)
