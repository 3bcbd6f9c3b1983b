"""Policy gradients against numbers worked out by hand, and against the formulas of published programs in float64."""

import math
from itertools import accumulate, pairwise

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical
from torch.distributions import kl_divergence as torch_kl

import samestep
from samestep import World, policy
from samestep.data.feed import CountedTerms, MicroBatches
from samestep.data.rollout import produce
from toys import NOT_SHARDED, Case, Points, feed_of, in_worlds, on_ranks

DOUBLE = torch.float64


def doubles(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def sampled(seed: int, rows: int = 6, tokens: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities now, before and of a reference [rows, tokens]."""
    random = torch.Generator().manual_seed(seed)
    before = -torch.rand(rows, tokens, generator=random, dtype=DOUBLE) * 3
    moved = [torch.randn(rows, tokens, generator=random, dtype=DOUBLE) * 0.3 for _ in range(2)]
    return (before + moved[0]).requires_grad_(), before, before + moved[1]


def test_it_is_public() -> None:
    assert samestep.policy is policy and "policy" in samestep.__all__
    assert all(hasattr(policy, name) for name in policy.__all__)


def test_advantages_of_a_batch_are_in_units_of_its_spread() -> None:
    found = policy.standardized(doubles(0, 1, 1, 0), policy.Moments(0.5, 0.25))
    assert found.values.tolist() == [-1.0, 1.0, 1.0, -1.0]
    assert not found.without_variance.any()


def test_equal_rewards_teach_nothing() -> None:
    rewards = torch.full((4,), 0.1, dtype=DOUBLE)
    grouped = [policy.group_advantages(rewards, 2, epsilon) for epsilon in (0.0, 1e-6)]
    for found in (policy.standardized(rewards, policy.Moments(0.1, 0.0)), *grouped):
        assert found.values.tolist() == [0.0] * 4
        assert found.without_variance.all()


def test_rewards_that_are_not_finite_are_not_hidden() -> None:
    unknown = policy.moments_of(World.single(), doubles(1, math.inf))
    assert math.isnan(unknown.mean) and math.isnan(unknown.variance)
    assert policy.standardized(doubles(1, 2), unknown).values.isnan().all()
    assert policy.group_advantages(doubles(1, math.nan, 2, 3), 2).values.isnan().tolist() == [True, True, False, False]


def test_a_group_is_compared_with_itself_alone() -> None:
    found = policy.group_advantages(doubles(0, 2, 5, 5, 1, 3), 2)
    assert found.values.tolist() == [-1.0, 1.0, 0.0, 0.0, -1.0, 1.0]
    assert found.without_variance.tolist() == [False, False, True, True, False, False]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(-100, 100))
def test_a_group_does_not_notice_what_all_get(rewards: list[float], more: float) -> None:
    values = doubles(*rewards)
    assume(float(values.std(correction=0)) >= 1e-3)
    shifted = policy.group_advantages(values + more, len(rewards))
    alone = policy.group_advantages(values, len(rewards))
    torch.testing.assert_close(shifted.values, alone.values, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_groups_as_in_grpo(seed: int) -> None:
    """As TRL has it: mean and standard deviation by group, repeated over the group; TRL adds 1e-4, and divides the
    variance by one less than the size."""
    rewards, size = torch.rand(12, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE), 4
    mean = rewards.view(-1, size).mean(dim=1).repeat_interleave(size, dim=0)
    std = rewards.view(-1, size).std(dim=1).repeat_interleave(size, dim=0) * math.sqrt((size - 1) / size)
    wanted = (rewards - mean) / (std + 1e-4)
    torch.testing.assert_close(policy.group_advantages(rewards, size, 1e-4).values, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.1, 0.3)])
def test_the_clipped_objective_as_in_ppo_and_grpo(low: float, high: float) -> None:
    """PPO: max(-advantage x ratio, -advantage x clamp(ratio)); GRPO: -min(ratio x advantage, clamp(ratio) x
    advantage). Both, and their gradients."""
    advantages = doubles(1, -1, 0.5, -2, 0, 3)
    losses = []
    for kind in ("here", "ppo", "grpo"):
        now, before, _ = sampled(1)
        now.retain_grad()
        importance = torch.exp(now - before)
        bounded = torch.clamp(importance, 1 - low, 1 + high)
        each = advantages.unsqueeze(1)
        if kind == "here":
            found = policy.clipped_objective(now, before, advantages, low, None if low == high else high)
            loss = -found.objective
            outside = (importance < 1 - low) | (importance > 1 + high)
            assert torch.equal(found.is_clipped, outside) and outside.any() and not outside.all()
            assert torch.equal(policy.ratio(now, before), importance)
        elif kind == "ppo":
            loss = torch.max(-each * importance, -each * bounded)
        else:
            loss = -torch.min(importance * each, bounded * each)
        loss.sum().backward()
        losses.append((loss.detach(), now.grad))
    for value, gradient in losses[1:]:
        torch.testing.assert_close(losses[0][0], value, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(losses[0][1], gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("moved", "advantage", "value", "has_gradient"),
    [
        (1.5, 1.0, 1.2, False),  # already likelier by more than 0.2: no more of it
        (0.5, 1.0, 0.5, True),
        (0.5, -1.0, -0.8, False),
        (1.5, -1.0, -1.5, True),
        (1.1, 1.0, 1.1, True),
    ],
)
def test_a_ratio_that_has_moved_far_has_no_gradient(
    moved: float, advantage: float, value: float, has_gradient: bool
) -> None:
    now = doubles(math.log(moved)).requires_grad_()
    found = policy.clipped_objective(now, doubles(0), doubles(advantage), 0.2)
    assert float(found.objective) == pytest.approx(value)
    assert bool(found.is_clipped) == (abs(moved - 1) > 0.2)
    found.objective.sum().backward()
    assert bool(now.grad.abs().sum() > 1e-9) == has_gradient


def test_the_first_update_has_the_gradient_of_reinforce() -> None:
    """Where nothing has changed since the rollout, ratios are 1 and clip nothing."""
    before, advantages, gradients = sampled(2, rows=2)[1], doubles(2, -1), []
    for clipped in (False, True):
        now = before.clone().requires_grad_()
        found = policy.clipped_objective(now, before, advantages, 0.2).objective
        (found if clipped else policy.reinforce_objective(now, advantages)).sum().backward()
        gradients.append(now.grad)
    assert torch.equal(*gradients)
    assert gradients[0].tolist() == [[2.0] * 5, [-1.0] * 5]
    assert policy.reinforce_objective(doubles(-3, -4), advantages).tolist() == [-6.0, 4.0], "also of whole texts"


def test_estimates_of_the_divergence_by_their_formulas() -> None:
    now, _, reference = sampled(3)
    logr = reference - now
    torch.testing.assert_close(policy.kl_k1(now, reference), -logr)
    torch.testing.assert_close(policy.kl_k2(now, reference), logr**2 / 2)
    torch.testing.assert_close(policy.kl_k3(now, reference), torch.exp(logr) - logr - 1)  # TRL's per_token_kl


def test_estimates_are_the_divergence_on_average() -> None:
    """Over all tokens, weighted by how often each is sampled."""
    now, reference = doubles(0.5, 0.3, 0.2), doubles(0.2, 0.2, 0.6)
    exact = float((now * (now / reference).log()).sum())
    for estimate in (policy.kl_k1, policy.kl_k3):
        assert float((now * estimate(now.log(), reference.log())).sum()) == pytest.approx(exact)
    for estimate in (policy.kl_k2, policy.kl_k3):
        assert (estimate(now.log(), reference.log()) >= 0).all()
    for estimate in (policy.kl_k1, policy.kl_k2, policy.kl_k3):
        assert estimate(now.log(), now.log()).tolist() == [0.0] * 3
    near = now + doubles(1e-4, -1e-4, 0)
    close = float((now * (now / near).log()).sum())
    assert float((now * policy.kl_k2(now.log(), near.log())).sum()) == pytest.approx(close, rel=1e-3), "second order"


def test_exact_divergence_and_entropy_as_torch_has_them() -> None:
    logits = torch.randn(2, 4, 7, generator=torch.Generator().manual_seed(4), dtype=DOUBLE)
    p, q = (Categorical(logits=each) for each in logits)
    torch.testing.assert_close(policy.kl_divergence(p.logits, q.logits), torch_kl(p, q), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(policy.entropy(p.logits), p.entropy(), rtol=1e-12, atol=1e-12)


def test_what_is_never_chosen_has_no_part() -> None:
    logits = doubles(0, 0, -math.inf).requires_grad_()
    log_p, log_q = logits.log_softmax(0), doubles(0.25, 0.75, 0).log()
    both = policy.entropy(log_p), policy.kl_divergence(log_p, log_q)
    assert [float(value) for value in both] == pytest.approx([math.log(2), math.log(2 / math.sqrt(3))])
    sum(both).backward()
    assert logits.grad.isfinite().all()
    assert float(policy.kl_divergence(log_q.detach(), doubles(1, 0, 0).log())) == math.inf, (
        "p chooses what q never does"
    )


def rollout(world: World, rows: int, batch: int, micro: int) -> MicroBatches:
    prompts = feed_of(Points(rows), world, batch, micro, steps=2)[1]
    return produce(world, prompts, lambda b: {"reward": b["x"].sum(1) + b["ids"][:, 0]}, 3, None, CountedTerms())


@in_worlds(NOT_SHARDED)
def advantages_of_the_global_batch(world: World, strategy: str) -> None:
    """Bit for bit those of a lone process; at 3 ranks some have nothing but filler rows."""
    for sizes in ((20, 7, 2), (20, 8, 3), (5, 1, 4)):
        values: list[dict[tuple[int, int], float]] = []
        for here in (world, World.single()):
            rows = rollout(here, *sizes)
            found = policy.batch_advantages(here, rows, "reward")
            assert [len(each.values) for each in found] == [len(batch["live"]) for batch in rows.batches]
            values.append({})
            for number, (batch, each) in enumerate(zip(rows.batches, found, strict=True)):
                if not rows.is_filler(number):
                    values[-1] |= dict(zip(map(tuple, batch["ids"].tolist()), each.values.tolist(), strict=True))
        mine, alone = values
        assert {key: alone[key] for key in mine} == mine
        shares = world.gather(len(mine))
        assert sum(shares) == len(alone)
        assert torch.tensor(list(alone.values()), dtype=DOUBLE).std(correction=0) == pytest.approx(1)


@in_worlds(NOT_SHARDED)
def advantages_of_tokens(world: World, strategy: str) -> None:
    """Only those that are marked count, and none of a filler row."""
    for sizes in ((20, 7, 2), (5, 1, 4)):
        rows, alone = rollout(world, *sizes), rollout(World.single(), *sizes)
        for batch in rows.batches + alone.batches:
            batch["rewards"] = batch["reward"][:, None] * torch.arange(1, 4)
            batch["written"] = torch.arange(3) <= batch["ids"][:, :1] % 3
        every = torch.cat([batch["rewards"][batch["written"]] for batch in alone.batches])
        found = policy.batch_advantages(world, rows, "rewards", where="written")
        for batch, each in zip(rows.batches, found, strict=True):
            wanted = (batch["rewards"] - every.mean()) / every.std(correction=0)
            torch.testing.assert_close(each.values, wanted, rtol=1e-12, atol=1e-12)
        with pytest.raises(samestep.UserError, match="give rewards 'reward' and a mask 'written' of one shape"):
            policy.batch_advantages(world, rows, "reward", where="written")


@in_worlds(NOT_SHARDED)
def moments_of_all_values(world: World, strategy: str) -> None:
    """However many of them each rank has: also none."""
    everything = torch.randn(23, generator=torch.Generator().manual_seed(5), dtype=DOUBLE) * 1e3
    weights = [3 * rank * (rank - 1) + rank % 2 for rank in range(world.size)] if world.size > 1 else [1]
    bounds = [0, *(23 * part // sum(weights) for part in accumulate(weights))]
    start, stop = list(pairwise(bounds))[world.rank]
    found = policy.moments_of(world, everything[start:stop])
    assert found == policy.moments_of(World.single(), everything), "bit for bit"
    assert found.mean == pytest.approx(float(everything.mean()), rel=1e-12)
    assert found.std == pytest.approx(float(everything.std(correction=0)), rel=1e-12)


CASES: list[Case] = [advantages_of_the_global_batch, advantages_of_tokens, moments_of_all_values]

test_on_ranks = on_ranks(CASES)
