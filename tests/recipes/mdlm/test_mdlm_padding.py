"""Chats are padded, and texts cut, by the step: alike on any number of ranks and in micro-batches of any size."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from samestep.data.feed import Feed
from samestep.data.order import BucketedOrder, Order, Shuffled
from samestep.data.token_rows import AnswerRows, TextRows, TokenRows
from samestep.data.tokenizer.vocabulary import BYTES
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.objective import Objective, ObjectiveConfig
from samestep.recipes.mdlm.stages import describe_padding
from samestep.world.rank_discovery import RankInfo
from samestep.world.world import World

ROWS, BATCH, STEPS = 60, 11, 12


def chats(rows: int = ROWS, longest: int = 64) -> AnswerRows:
    """Prompts of 1 to 7 tokens, with answers up to the longest row."""
    lengths = 9 + np.arange(rows) * 37 % (longest - 8)
    starts = np.cumsum([0, *lengths])[:-1]
    index = np.stack([starts, lengths, 1 + np.arange(rows) % 7], 1).ravel()
    return AnswerRows(np.arange(lengths.sum()) % 250, index, longest, BYTES.eos)


def texts() -> TokenRows:
    return TextRows(np.arange(ROWS * 16) % 250, 16, BYTES.eos)


def order_of(rows: TokenRows) -> Order:
    order = Shuffled(len(rows), BATCH, seed=1)
    return BucketedOrder(order, rows.lengths(np.arange(ROWS)), 1, 3) if isinstance(rows, AnswerRows) else order


def every_loss(whole: TokenRows, ranks: int, micro: int) -> tuple[list[float], list[set[int]]]:
    """The loss of each step, summed over ranks and micro-batches, and the widths that occur in it."""
    torch.manual_seed(0)
    network = Transformer(TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=16))
    config = ObjectiveConfig(cut_rows=0.5, wide_steps=0.5)
    target = Objective(config, BYTES, seed=4, sft=isinstance(whole, AnswerRows))
    rows = target.training_rows(whole)
    losses, widths = [0.0] * STEPS, [set[int]() for _ in range(STEPS)]
    for rank in range(ranks):
        world = World(RankInfo("test", rank, ranks), torch.device("cpu"))
        feed = Feed(rows, order_of(whole), world, micro_rows=micro, length=STEPS)
        for step in range(STEPS):
            share = feed[step]
            for number, batch in enumerate(share.batches):
                widths[step].add(batch["tokens"].shape[1])
                if not share.is_filler(number):
                    losses[step] += float(target.loss(network, batch)["nll"].detach().sum())
    return losses, widths


@pytest.mark.parametrize("rows", [chats(), texts()], ids=["chats", "texts"])
def test_neither_width_nor_loss_depends_on_ranks_and_micro_batches(rows: TokenRows) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        wanted, widths = every_loss(rows, 1, BATCH)
        assert all(len(found) == 1 for found in widths) and len(set.union(*widths)) > 2
        for ranks, micro in itertools.product((1, 2, 3), (2, 5)):
            losses, found = every_loss(rows, ranks, micro)
            assert found == widths
            assert losses == pytest.approx(wanted, rel=1e-12)
    finally:
        torch.set_default_dtype(before)


def test_the_share_of_padding_is_that_of_the_tokens_that_are_computed() -> None:
    rows = chats()
    order = order_of(rows)
    batches: list[dict[str, Tensor]] = []
    for step in range(order.steps_per_epoch):
        indices = order.ids(step)[:, 1]
        batches.append(rows.of_step(step, indices).rows(indices))
    computed = sum(batch["tokens"].numel() for batch in batches)
    padding = computed - sum(int(batch["length"].sum()) for batch in batches)
    counted = computed - sum(int(batch["prompt"].sum()) for batch in batches)
    assert describe_padding(rows, rows, order) == (
        f"{padding / computed:.1%} of all tokens, {padding / counted:.1%} of those that count as answer"
    )


def test_short_chats_are_not_padded_to_the_longest_row_there_may_be() -> None:
    """Prompts of 30 tokens and answers of about 60, where rows may have 1024."""
    lengths = np.random.default_rng(0).integers(50, 131, 2000)
    index = np.stack([np.cumsum(lengths) - lengths, lengths, np.full(2000, 30)], 1).ravel()
    rows = AnswerRows(np.zeros(lengths.sum(), dtype=np.uint8), index, 1024, BYTES.eos)
    shuffled = Shuffled(2000, 16, seed=0)
    share = [describe_padding(rows, rows, order) for order in (BucketedOrder(shuffled, lengths, 0), shuffled)]
    percent = [float(text.partition("%")[0]) for text in share]
    assert percent[0] < 12 < percent[1] < 40
