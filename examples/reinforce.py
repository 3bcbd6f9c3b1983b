"""REINFORCE: a policy learns to balance a pole on a cart, from episodes that it plays inside the step. Try it with

samestep train examples/reinforce.py
samestep train examples/reinforce.py --nproc 2
samestep verify examples/reinforce.py
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Config, Metrics, Recipe, Stage, Tick, evaluate, policy


@dataclass(frozen=True)
class CartPole(Config):
    """Balance a pole on a cart by pushing it to the left or to the right."""

    moves: int = 200
    """Moves of an episode: the best return there is."""


def starts(count: int, seed: int) -> list[Batch]:
    """Place and speed of the cart, angle and angular speed of the pole: all nearly 0."""
    states = torch.rand(count, 4, generator=torch.Generator().manual_seed(seed))
    return [{"start": state} for state in 0.1 * states - 0.05]


def moved(state: Tensor, push: Tensor) -> Tensor:
    """0.02 s later, after a push of 10 N to the left (0) or to the right (1)."""
    _, speed, angle, spin = state.unbind(1)  # the cart has 1 kg, the pole 0.1 kg and 1 m
    force = 20.0 * push - 10.0 + 0.05 * spin.square() * angle.sin()
    spins_up = (9.8 * angle.sin() - angle.cos() * force / 1.1) / (2 / 3 - 0.05 * angle.cos().square() / 1.1)
    speeds_up = (force - 0.05 * spins_up * angle.cos()) / 1.1
    return state + 0.02 * torch.stack((speed, speeds_up, spin, spins_up), 1)


class Balance:
    def __init__(self, bench: Bench) -> None:
        self.bench, self.moves = bench, bench.config.moves
        self.policy = bench.learner(nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2)))
        self.feed, self.held_out = bench.feed(starts(1024, seed=1)), bench.evaluation_feed(starts(64, seed=2))
        self.draws = bench.draws("push")  # a function of step, episode and move: the same on any number of ranks
        self.length, self.state = self.feed.length, {"model": self.policy}

    def play(self, net: nn.Module, batch: Batch, step: int, temperature: float) -> Batch:
        state, stands, seen = batch["start"], torch.ones_like(batch["live"]), []
        for move in range(self.moves):  # all of them on every rank, also when its poles have fallen
            push = self.draws.pick(net(state), step=step, ids=batch["ids"], position=move, temperature=temperature)
            seen.append((state, push, stands))
            state = torch.where(stands[:, None], moved(state, push), state)
            stands = stands & (state[:, 0].abs() < 2.4) & (state[:, 2].abs() < 0.2095)
        states, pushes, stood = (torch.stack(part, 1) for part in zip(*seen))
        return {"state": states, "push": pushes, "stands": stood, "to_go": to_go(stood)}

    def step(self, tick: Tick) -> Metrics:
        def rollout(batch: Batch) -> Batch:
            with self.policy.inference() as net:
                return self.play(net, batch, tick.step, temperature=1.0)

        rows = self.bench.produced(
            self.feed[tick.step], rollout, count=lambda batch: {"policy": batch["stands"].sum(1)}
        )
        for batch, found in zip(rows.batches, policy.batch_advantages(self.bench.world, rows, "to_go", "stands")):
            batch["advantage"] = found.values  # compared with all moves of the global batch
        return self.policy.update(rows, loss, mix={"policy": 1.0})  # the return is only logged

    def validate(self, tick: Tick) -> dict[str, float]:
        def greedy(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
            return {"return": self.play(net, batch, 0, temperature=0.0)["stands"].sum(1).double()}

        return {"val/return": evaluate(self.policy, self.held_out, greedy)["return"]}


def to_go(stands: Tensor, discount: float = 0.98) -> Tensor:
    """The reward from each move on: 1 for every move at which the pole stands, the later the less."""
    return (1 - discount ** stands.flip(1).cumsum(1).flip(1)) / (1 - discount)


def loss(net: nn.Module, batch: Batch) -> dict[str, Tensor]:
    chosen = net(batch["state"]).log_softmax(2).gather(2, batch["push"][..., None])[..., 0]
    lost = -torch.where(batch["stands"], batch["advantage"] * chosen, 0.0).sum(1)
    return {"policy": lost, "return": batch["stands"].sum(1).to(lost)}


stages = [Stage("balance", Balance, Balance.validate, ("val/return", "max"), shown=["return", "val/return"])]
small = {"global_batch_size": 7, "batch_size": 3, "max_steps": 5, "moves": 12}
default = {"global_batch_size": 32, "batch_size": 32, "max_steps": 60, "learning_rate": 0.01, "validate_every": 10}
recipe = Recipe(config=CartPole, stages=lambda config: stages, presets={"default": default, "verify": small})
