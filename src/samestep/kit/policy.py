"""The arithmetic of policy gradients: advantages, ratios, divergences and entropies, each in one place.

    found = policy.group_advantages(rewards, size=8)  # completions of a prompt follow each other
    part = policy.clipped_objective(now, before, found.values, clip=0.2)  # [rows, tokens]
    return {"policy": -part.objective.sum(1), "kl": policy.kl_k3(now, reference).sum(1)}

Log-probabilities are [rows, tokens] of the tokens that were sampled, or [rows] of whole texts; advantages are [rows].
`now` is by the network that learns, `before` by the one that sampled, `reference` by the one to stay close to. What is
padded is for the caller to leave out. Nothing here depends on how rows are split over ranks and micro-batches, except
groups, which have to be whole; `moments_of` and `batch_advantages` are collective, and equal at any number of ranks.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.data.feed import MicroBatches
from samestep.data.rollout import Moments, exact_moments, moments
from samestep.world.world import World

__all__ = [
    "Advantages",
    "Clipped",
    "Moments",
    "batch_advantages",
    "clipped_objective",
    "entropy",
    "group_advantages",
    "kl_divergence",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "moments",
    "moments_of",
    "ratio",
    "reinforce_objective",
    "standardized",
]


class Advantages(NamedTuple):
    """Rewards compared with others, by row."""

    values: Tensor
    without_variance: Tensor
    """Whether the rewards that it was compared with were all equal; then the advantage is 0, and nothing is learned
    from the row."""


def standardized(rewards: Tensor, found: Moments) -> Advantages:
    """(reward - mean) / standard deviation, for rewards [rows] and the moments of all that they are compared with."""
    if found.variance == 0:
        return Advantages(torch.zeros_like(rewards), torch.ones_like(rewards, dtype=torch.bool))
    # Of rewards that are not finite the variance is NaN, and so is the gradient: the step is skipped.
    return Advantages((rewards - found.mean) / found.std, torch.zeros_like(rewards, dtype=torch.bool))


def batch_advantages(
    world: World, rollout: MicroBatches, reward: str = "reward", where: str | None = None
) -> list[Advantages]:
    """Rewards compared with those of the whole global batch, for each micro-batch of this rank:

    (reward - mean) / standard deviation. Rewards are by row, or by token with `where`, the name of a mask of the same
    shape: then mean and deviation are of what it marks. Collective: all ranks call it alike.
    """
    found = moments(world, rollout, reward) if where is None else moments_of(world, _marked(rollout, reward, where))
    return [standardized(batch[reward], found) for batch in rollout.batches]


def group_advantages(rewards: Tensor, size: int, epsilon: float = 0.0) -> Advantages:
    """Rewards [rows] compared with those of their group, `size` rows that follow each other:

    (reward - mean of the group) / (standard deviation of the group + epsilon), where the deviation is divided by `size`
    and not by `size - 1`.
    """
    groups = rewards.view(-1, size)
    spread = groups.std(1, correction=0, keepdim=True)
    equal = (groups == groups[:, :1]).all(1, keepdim=True)  # exactly: a spread of equal numbers may be rounded above 0
    centred = groups - groups.mean(1, keepdim=True)
    values = torch.where(equal, 0.0, centred / (torch.where(equal, 1.0, spread) + epsilon))
    return Advantages(values.flatten(), equal.expand_as(groups).flatten())


def ratio(now: Tensor, before: Tensor) -> Tensor:
    """How much likelier something is now than when it was sampled: exp(now - before)."""
    return (now - before).exp()


class Clipped(NamedTuple):
    """What is to be made larger, and where a bound was reached; both shaped as the log-probabilities."""

    objective: Tensor
    is_clipped: Tensor
    """Whether the ratio is outside of its bounds, on either side."""


def clipped_objective(
    now: Tensor, before: Tensor, advantages: Tensor, clip: float, clip_above: float | None = None
) -> Clipped:
    """The clipped objective of PPO and GRPO, which a loss is minus the mean of:

    min(r x advantage, bounded(r) x advantage) for r = exp(now - before), bounded to 1 - clip and 1 + clip, or to
    1 + clip_above if that is given. It has no gradient where r has already moved beyond a bound in the direction that
    the advantage asks for.
    """
    moved, advantage = ratio(now, before), _by_row(advantages, now)
    bounded = moved.clamp(1 - clip, 1 + (clip if clip_above is None else clip_above))
    return Clipped(torch.minimum(moved * advantage, bounded * advantage), (moved != bounded).detach())


def reinforce_objective(now: Tensor, advantages: Tensor) -> Tensor:
    """The objective of REINFORCE: advantage x log-probability. It is right for one update on a rollout."""
    return _by_row(advantages, now) * now


def kl_k1(now: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(now || reference) from samples of `now`: now - reference.

    Its mean is the divergence; single values may be negative.
    """
    return now - reference


def kl_k2(now: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(now || reference) from samples of either: (now - reference)^2 / 2.

    Never negative, with little variance; its mean is the divergence to second order in how far they are apart.
    """
    return (now - reference).square() / 2


def kl_k3(now: Tensor, reference: Tensor) -> Tensor:
    """An estimate of KL(now || reference) from samples of `now`: exp(x) - x - 1 for x = reference - now.

    Never negative, and its mean is the divergence.
    """
    apart = reference - now
    return apart.exp() - apart - 1


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p || q), exactly: the sum of p x (log p - log q) over the last dimension, of log-probabilities.

    What p never chooses, with a log-probability of minus infinity, has no part in it.
    """
    p = log_p.exp()
    return (p * torch.where(p > 0, log_p - log_q, 0.0)).sum(-1)


def entropy(log_probs: Tensor) -> Tensor:
    """-sum of p x log p over the last dimension, of log-probabilities; what is never chosen has no part in it."""
    p = log_probs.exp()
    return -(p * torch.where(p > 0, log_probs, 0.0)).sum(-1)


def moments_of(world: World, values: Tensor) -> Moments:
    """Mean and variance over the values [any number] of all ranks, which may have different numbers of them; on every
    rank and at any number of ranks bit for bit the same. Collective."""
    mine = values.detach().double().flatten().tolist() if world.dp_counted else []
    largest = int(max(count for (count,) in world.async_gather.submit([float(len(mine))]).by_rank()))
    return exact_moments(world, mine, largest)


def _marked(rollout: MicroBatches, reward: str, where: str) -> Tensor:
    """The rewards that a mask marks, of this rank's own rows."""
    found = []
    for number, batch in enumerate(rollout.batches):
        if reward not in batch or where not in batch or batch[reward].shape != batch[where].shape:
            shapes = ", ".join(f"{name!r} {list(value.shape)}" for name, value in batch.items())
            raise UserError(f"give rewards {reward!r} and a mask {where!r} of one shape; the rows have {shapes}")
        found.append(batch[reward][batch[where].bool() & (not rollout.is_filler(number))])
    return torch.cat(found)


def _by_row(advantages: Tensor, log_probs: Tensor) -> Tensor:
    """Advantages [rows] in the shape of what they weigh, [rows] or [rows, tokens]."""
    return advantages.view(-1, *[1] * (log_probs.dim() - 1))
