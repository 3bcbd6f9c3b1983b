"""The adversarial stage: in each step the generator writes, the judge learns to tell, the generator learns to pass."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Lora, Metrics, MicroBatches, Tick, completion_log_probs
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.recipes.gan.objectives import (
    batch_advantages,
    policy_mix,
    policy_terms,
    spin_terms,
)
from samestep.recipes.gan.players import PlayerConfig, open_player
from samestep.recipes.gan.rollout import Rollouts
from samestep.train.logging.metrics import Metric

GENERATOR, JUDGE = "generator", "judge"


def lora_of(config: PlayerConfig) -> Lora | None:
    """The adapters that a player is trained with, if any."""
    return Lora(rank=config.lora_rank) if config.lora_rank else None


def groups(samples: Sequence[dict[str, Any]]) -> Batch:
    """A feed's collate: only which group a sample is of, since texts are taken from the rows by their ids."""
    return {"group": torch.tensor([sample["group"] for sample in samples])}


class Balance:
    """Which side learns, by how often the judge was right in the last rollout; checkpoint state."""

    def __init__(self, config: GanConfig) -> None:
        self._config, self.accuracy = config, 0.5

    @property
    def judge_learns(self) -> bool:
        """Not while it wins too much."""
        return self.accuracy <= self._config.judge_pauses_above

    @property
    def generator_learns(self) -> bool:
        """Not while the judge knows nothing."""
        return self.accuracy >= self._config.generator_pauses_below

    def state_dict(self) -> dict[str, Any]:
        """The accuracy."""
        return {"accuracy": self.accuracy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with a saved one."""
        self.accuracy = state["accuracy"]


class Adversaries:
    """A generator and a judge that learn from each other."""

    def __init__(self, bench: Bench) -> None:
        self._config: GanConfig = bench.config
        self._bench = bench
        self.texts = load(self._config.data, self._config.seed)
        self._feed, self._more = (bench.feed(self.texts.train, collate=groups) for _ in range(2))
        self.length = self._feed.length
        self.writer = open_player(self._config.generator, self._config.model_name, bench.world)
        self.reader = open_player(self._config.judge, self._config.model_name, bench.world)
        generator, judge = self._config.generator, self._config.judge
        first = None if self._config.mle_epochs else generator.init_from  # the stage before began with it
        self.generator = bench.learner(self.writer.network, name=GENERATOR, lora=lora_of(generator), init_from=first)
        self.judge = bench.learner(self.reader.network, name=JUDGE, lora=lora_of(judge), init_from=judge.init_from)
        reference = bench.frozen(self.generator) if self._config.objective.kl_coef else None
        self._rollouts = Rollouts(
            bench, self.texts.train, self.generator, self.judge, self.writer, self.reader, reference
        )
        self._balance = Balance(self._config)
        self.state = {GENERATOR: self.generator, JUDGE: self.judge, "balance": self._balance}

    def step(self, tick: Tick) -> Metrics:
        """One rollout for each update of the judge; the generator learns from the last."""
        metrics: dict[str, Metric] = {}
        turns = self._config.judge_steps
        for turn in range(turns):
            is_last = turn == turns - 1
            prompts = self._feed[tick.step] if is_last else self._more[(turns - 1) * tick.step + turn]
            make = partial(self._rollouts.make, step=tick.step, turn=turn)
            rollout = self._bench.produced(prompts, make, copies=self._config.objective.group_size, count=self._count)
            self._balance.accuracy, _ = self._bench.moments(rollout, "right")
            if self._balance.judge_learns:
                metrics |= self.judge.update(rollout, self._judge_loss, mix={"verdict": 1.0})
        metrics |= self._rollout_metrics(rollout)
        if self._balance.generator_learns:
            metrics |= self._train_generator(rollout)
        return metrics

    def _rollout_metrics(self, rollout: MicroBatches) -> dict[str, Metric]:
        """Means over the rows of the last rollout."""

        def mean(values: Callable[[Batch], Tensor]) -> Metric:
            total = sum(torch.where(batch["live"], values(batch).double(), 0.0).sum() for batch in rollout.batches)
            return Metric(total, rollout.weight("rows"))

        return {
            "judge_accuracy": mean(lambda batch: batch["right"]),
            "judge_reward_mean": mean(lambda batch: batch["right"]),
            "generator_reward_mean": mean(lambda batch: batch["reward"]),
            "tokens_written": mean(lambda batch: batch["is_written"].sum(1)),
            "cut_at_the_limit": mean(lambda batch: ~batch["finished"]),
            "too_short_to_judge": mean(lambda batch: ~batch["is_shown"]),
        }

    def _train_generator(self, rollout: MicroBatches) -> Metrics:
        objective = self._config.objective
        if objective.kind == "spin":
            return self.generator.update(rollout, self._spin_loss, mix={"preference": 1.0})
        if objective.kind != "grpo":
            mean, variance = self._bench.moments(rollout, "reward")
            for batch in rollout.batches:
                found = batch_advantages(batch["reward"], mean, variance)
                batch["advantage"], batch["no_variance"] = found.values, found.without_variance
        metrics: Metrics = {}
        for inner in range(objective.inner_epochs):
            parts = self._bench.split(rollout, objective.parts, turn=inner) if objective.parts > 1 else [rollout]
            for part in parts:
                metrics = self.generator.update(part, self._policy_loss, mix=policy_mix(objective))
        return metrics

    def _policy_loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        given = batch["prompt"], batch["is_prompt"], batch["written"], batch["is_written"]
        temperature = self._config.writing.temperature
        found = completion_log_probs(network, *given, temperature=temperature, entropy=True)
        assert found.entropy is not None
        return policy_terms(self._config.objective, found.log_probs, found.entropy, batch)

    def _spin_loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        human = self._rollouts.log_probs(network, batch, "human").sum(1)
        own = self._rollouts.log_probs(network, batch).sum(1)
        return spin_terms(self._config.objective, human, own, batch)

    def _judge_loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        chances = self._rollouts.verdict(network, batch)
        nats = -chances.gather(1, batch["answer"][:, None])[:, 0]
        return {"verdict": torch.where(batch["is_shown"], nats, 0.0)}

    def _count(self, batch: Batch) -> Mapping[str, Tensor]:
        """A token of a completion counts as much as any other, and a pair that was not shown counts nothing."""
        counts = {"verdict": batch["is_shown"]}
        if self._config.objective.kind != "spin":
            names = ("policy", "entropy", "clipped", *(["kl"] if "reference" in batch else []))
            counts |= dict.fromkeys(names, batch["is_written"].sum(1))
        return counts
