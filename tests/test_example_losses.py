"""What examples compute, beside the same written down once more: from a paper's formulas, or for a whole batch."""

import math
import runpy
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samestep import noise
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import ByHand, Case, close, default_dtype, feed_of, in_order, learner_of, made, on_ranks, rate, weights_of

EXAMPLES = Path(__file__).parents[1] / "examples"
PLAIN = OptimSettings(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, clip=0.5)


def example(name: str) -> Any:
    """What an example defines."""
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / f"{name}.py")))


def clip_compares_every_image_with_every_caption(world: World, strategy: str) -> None:
    """Two cross-entropies of the whole matrix of similarities, mean over the batch, by autograd in one process."""
    clip = example("clip")
    with torch.random.fork_rng():
        torch.manual_seed(3)
        rows = [clip.drawn(scene) for scene in clip.SCENES[::125]][:14]
    hand = ByHand(made(lambda: clip.Towers(6)), [], PLAIN)
    learner = learner_of(made(lambda: clip.Towers(6)), world, strategy, settings=PLAIN)
    feed, accumulator = feed_of(rows, world, 7, 2, steps=2, order=in_order(rows, 7)), MetricAccumulator(world)
    for step in range(2):
        batch = {name: torch.stack([row[name] for row in rows[7 * step : 7 * step + 7]]) for name in rows[0]}
        found = hand.module(batch)
        scores, truth = found["image"] @ found["text"].T, torch.arange(7)
        loss = (nn.functional.cross_entropy(scores, truth) + nn.functional.cross_entropy(scores.T, truth)) / 2
        norm = hand.update(loss, rate(step))
        accumulator.add(learner.update_coupled(feed[step], lambda net, batch: net(batch), clip.couple))
        means = accumulator.read()
        assert means["loss"] == pytest.approx(float(loss), rel=1e-10)
        assert means["grad_norm"] == pytest.approx(norm, rel=1e-9)
    close(weights_of(learner), hand.module.state_dict(), tolerance=1e-9)


CASES: list[Case] = [clip_compares_every_image_with_every_caption]

test_on_ranks = on_ranks(CASES, [(3, "lone"), (3, "ddp")])


@pytest.fixture
def float64() -> Any:
    with default_dtype(torch.float64):
        yield


class Guessing(nn.Module):
    """Guesses nearly right, in which it depends on what it sees, and keeps what it was asked."""

    def __init__(self, clean: Tensor, betas: list[float]) -> None:
        super().__init__()
        self.clean, self.asked = clean, []
        self.kept = torch.tensor([math.prod(1 - beta for beta in betas[:time]) for time in range(len(betas) + 1)])

    def forward(self, image: Tensor, time: Tensor, digit: Tensor) -> Tensor:
        self.asked.append(image)
        return self.clean + 0.1 * (image + time[:, None]).sin()


def betas_of(ddpm: Any) -> list[float]:
    """By how much the variance of the image shrinks in each step, from which the paper begins."""
    return [1 - float(after / before) for before, after in pairwise(ddpm.KEPT)]


@pytest.mark.usefixtures("float64")
def test_the_loss_of_the_diffusion_model_is_that_of_the_paper() -> None:
    """Ho et al. 2020, equation 4 and the text after equation 8: the clean image is guessed from the noisy one, which
    has lost a little of its variance in each of the steps."""
    ddpm = example("ddpm")
    rows = [{**row, "image": row["image"].double()} for row in ddpm.images()[:200:40]]
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    batch["ids"] = torch.tensor([[2, number] for number in (3, 1, 4, 1, 5)])
    net, kept = ddpm.Denoiser().double().requires_grad_(False), 1.0
    found = ddpm.loss(net, batch, seed=7)["error"]
    steps = {0: 1.0}
    for time, beta in enumerate(betas_of(ddpm), 1):
        kept *= 1 - beta
        steps[time] = kept
    for row, (epoch, index) in enumerate(batch["ids"].tolist()):
        time = 1 + int(noise.integers(100, 7, noise.purpose("time"), epoch, index))
        added = torch.stack([noise.normal(7, noise.purpose("added"), epoch, index, pixel) for pixel in range(64)])
        noisy = math.sqrt(steps[time]) * batch["image"][row] + math.sqrt(1 - steps[time]) * added
        guess = net(noisy[None], torch.tensor([time]), batch["digit"][row : row + 1])[0]
        assert float(found[row]) == pytest.approx(float((batch["image"][row] - guess).square().mean()), rel=1e-9)


@pytest.mark.usefixtures("float64")
def test_it_draws_as_in_the_paper() -> None:
    """The same, algorithm 2, which needs the noise that a guess of the image amounts to; with the variance of equation
    7."""
    ddpm, count = example("ddpm"), 3
    betas = betas_of(ddpm)
    net, number = Guessing(torch.linspace(-1, 1, count * 64).view(count, 64), betas), torch.arange(count)
    drawn = ddpm.drawn(net, 7, number)

    def fresh(time: int) -> Tensor:
        return noise.normal(7, noise.purpose("drawn"), time, number[:, None], torch.arange(64))

    image = fresh(100)
    for time in range(100, 0, -1):
        beta, kept, before = betas[time - 1], net.kept[time], net.kept[time - 1]
        clean = net(image, torch.full((count,), time), number)
        guess = (image - kept.sqrt() * clean) / (1 - kept).sqrt()
        mean = (image - beta / (1 - kept).sqrt() * guess) / math.sqrt(1 - beta)
        image = mean + (beta * (1 - before) / (1 - kept)).sqrt() * fresh(time - 1)
    torch.testing.assert_close(drawn, image, rtol=1e-9, atol=1e-9)
    for mine, other in zip(net.asked[:100], net.asked[100:]):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("float64")
def test_the_cart_moves_as_in_the_paper() -> None:
    """Barto, Sutton and Anderson 1983, without friction; one number after another."""
    reinforce = example("reinforce")
    state = torch.tensor([[0.1, -0.2, 0.15, 0.3], [0.0, 0.5, -0.2, -1.0]])
    for push in (1, 0, 0, 1, 1, 1):
        wanted = []
        for x, v, angle, spin in state.tolist():
            force, sine, cosine = (10.0 if push else -10.0), math.sin(angle), math.cos(angle)
            spins_up = (9.8 * sine + cosine * (-force - 0.1 * 0.5 * spin**2 * sine) / (1.0 + 0.1)) / (
                0.5 * (4 / 3 - 0.1 * cosine**2 / (1.0 + 0.1))
            )
            speeds_up = (force + 0.1 * 0.5 * (spin**2 * sine - spins_up * cosine)) / (1.0 + 0.1)
            wanted.append([x + 0.02 * v, v + 0.02 * speeds_up, angle + 0.02 * spin, spin + 0.02 * spins_up])
        state = reinforce.moved(state, torch.tensor([push, push]))
        torch.testing.assert_close(state, torch.tensor(wanted), rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_objective_is_advantage_times_log_probability() -> None:
    reinforce = example("reinforce")
    random = torch.Generator().manual_seed(1)
    net = nn.Linear(4, 2)
    batch = {
        "state": torch.randn(3, 5, 4, generator=random),
        "push": torch.randint(2, (3, 5), generator=random),
        "stands": torch.arange(5) < torch.tensor([[5], [2], [1]]),
        "advantage": torch.randn(3, 5, generator=random),
    }
    found = reinforce.loss(net, batch)
    policy = torch.distributions.Categorical(logits=net(batch["state"]))
    scores = policy.log_prob(batch["push"]) * batch["advantage"]
    for row, length in enumerate((5, 2, 1)):
        assert float(found["policy"][row].detach()) == pytest.approx(-float(scores[row, :length].sum()), rel=1e-12)
        assert found["return"][row] == length


def test_later_moves_count_less() -> None:
    """The reward to go of a move, added up by hand."""
    reinforce = example("reinforce")
    stands = torch.arange(6) < torch.tensor([[6], [2], [0]])
    rewards = reinforce.to_go(stands, discount=0.9)
    for row, length in enumerate((6, 2, 0)):
        for move in range(length):
            wanted = sum(0.9**later for later in range(length - move))
            assert float(rewards[row, move]) == pytest.approx(wanted, rel=1e-6)
