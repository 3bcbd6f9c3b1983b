"""The adversarial stage: in each step the generator writes, the judge learns to tell, the generator learns to pass."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    EarlierWeights,
    Metric,
    Metrics,
    MicroBatches,
    Tick,
    completion_log_probs,
    noise,
    policy,
)
from samestep.core.json_files import JsonLines
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import groups_of, load
from samestep.recipes.gan.evaluation import Benchmark, FixedPairs
from samestep.recipes.gan.judges import VERDICT, make_judge
from samestep.recipes.gan.objectives import policy_mix, policy_terms, spin_terms
from samestep.recipes.gan.players import open_player
from samestep.recipes.gan.rollout import Opponents, Rollouts

GENERATOR, JUDGE = "generator", "judge"
ROLLOUTS = "rollouts.jsonl"
_NEWEST = 0.1
"""What the newest rollout weighs in the moving average of the judge's accuracy, once there were ten."""
_REPLAY = noise.purpose("gan/replay")


class Balance:
    """Which side learns, by how often the judge was right in the last rollouts; checkpoint state."""

    def __init__(self, config: GanConfig) -> None:
        self._config, self.accuracy, self._rollouts = config, 0.5, 1

    def add(self, accuracy: float) -> None:
        """Take one more rollout into account. One alone has few rows, and would be right or wrong by chance; the first
        nine count as much as the half that it begins with."""
        self._rollouts += 1
        self.accuracy += max(_NEWEST, 1 / self._rollouts) * (accuracy - self.accuracy)

    @property
    def judge_learns(self) -> bool:
        return self.accuracy <= self._config.judge_pauses_above

    @property
    def generator_learns(self) -> bool:
        return self.accuracy >= self._config.generator_pauses_below

    def state_dict(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy, "rollouts": self._rollouts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.accuracy, self._rollouts = state["accuracy"], state["rollouts"]


@dataclass(frozen=True)
class Replay:
    """Earlier generators and judges, and which of them plays when."""

    config: GanConfig
    generators: EarlierWeights
    judges: EarlierWeights

    def after_step(self, step: int) -> None:
        """Keep both as they are, every so often. Collective."""
        if (step + 1) % self.config.replay.every == 0:
            self.generators.take(step)
            self.judges.take(step)

    def opponents(self, step: int, turn: int, is_last: bool) -> Opponents:
        """In the judge's turns before the last, an earlier generator may write; in the last, from which the generator
        learns, an earlier judge may give its rewards."""
        if not len(self.generators) or not bool(noise.below(self.config.replay.share, *self._key(step, turn, 0))):
            return Opponents()
        number = int(noise.integers(len(self.generators), *self._key(step, turn, 1)))
        if is_last:
            return Opponents(judge=partial(self.judges.in_use, number))
        return Opponents(generator=partial(self.generators.in_use, number))

    def _key(self, step: int, turn: int, number: int) -> tuple[int, ...]:
        return self.config.seed, _REPLAY, step, turn, number


class Adversaries:
    """A generator and a judge that learn from each other."""

    def __init__(self, bench: Bench) -> None:
        self._config: GanConfig = bench.config
        self._bench = bench
        self.writer = open_player(self._config.generator, self._config.model_name, bench.world)
        self.reader = open_player(self._config.judge, self._config.model_name, bench.world)
        # Before the data is read, so that a trained network can be loaded where the data is not at hand.
        generator, judge = self._config.generator, self._config.judge
        first = None if self._config.mle_epochs else generator.init_from  # the stage before began with it
        self.generator = bench.learner(self.writer.network, name=GENERATOR, lora=generator.lora, init_from=first)
        peak = self._config.judge_learning_rate
        rate = None if peak is None else partial(self._judge_rate, peak)
        # The stage starts from the one before, which has no judge.
        named = judge.init_from or (self._config.init_from if self._config.mle_epochs else None)
        self.judge = bench.learner(self.reader.network, name=JUDGE, rate=rate, lora=judge.lora, init_from=named)
        self.texts = load(self._config.data, self._config.seed)
        train = self.texts.train
        self._feed, self._more = (bench.feed(train, order=train.order(), collate=groups_of) for _ in range(2))
        self.length = self._feed.length
        self._judging = make_judge(bench, self._config.judging, self.reader)
        self.rollouts = Rollouts(
            bench,
            self.texts.train,
            self.generator,
            self.judge,
            self.writer,
            self.reader,
            self._judging,
            self._reference(),
        )
        self._balance, self._replay = Balance(self._config), self._make_replay()
        self._lines, self._are_lines_cut = JsonLines(bench.rundir.path / ROLLOUTS), False
        self.state: dict[str, Any] = {GENERATOR: self.generator, JUDGE: self.judge, "balance": self._balance}
        if self._replay is not None:
            self.state |= {"earlier_generators": self._replay.generators, "earlier_judges": self._replay.judges}
        self._benchmark: Benchmark | None = None
        if self._config.benchmark.size:
            players = self.writer, self.generator, self.judge
            self._benchmark = Benchmark(bench, self.texts, *players, self.rollouts.right)
            self.state["baseline"] = self._benchmark.baseline
        pairs = self._config.benchmark.pairs
        self._pairs = FixedPairs(bench, pairs, self.judge, self.rollouts.right) if pairs else None

    def _judge_rate(self, peak: float, step: int) -> float:
        """A learning rate of its own, over the same schedule."""
        schedule = self._bench.plan(len(self.texts.train)).schedule(self._config)
        scale = schedule.peak / self._config.learning_rate if self._config.learning_rate else 1.0  # as lr_scaling says
        return replace(schedule, peak=peak * scale)(step)

    def _reference(self) -> Callable[[], AbstractContextManager[nn.Module]] | None:
        """The generator as this stage began."""
        if not self._config.objective.kl_coef or self._config.objective.kind == "spin":
            return None
        is_sharded = self._config.distributed.strategy == "fsdp" and not self.generator.has_adapters
        return self._bench.frozen(self.generator, shard=is_sharded).inference

    def _make_replay(self) -> Replay | None:
        keep = self._config.replay.keep
        if not keep:
            return None
        return Replay(self._config, EarlierWeights(self.generator, keep), EarlierWeights(self.judge, keep))

    def step(self, tick: Tick) -> Metrics:
        """One rollout for each update of the judge; the generator learns from the last."""
        if self._benchmark:
            self._benchmark.begin()
        metrics: dict[str, Metric] = {}
        last = self._config.judge_steps - 1
        is_due = tick.step % self._config.judge_every == 0 or not self._balance.generator_learns
        for turn in range(last + 1) if is_due else [last]:
            rollout = self._rollout(tick.step, turn, is_last=turn == last)
            self._balance.add(self._moments(rollout, "right").mean)
            if is_due and self._balance.judge_learns:
                if self._config.judging.learns_by_policy_gradient:
                    self._add_advantages(rollout, "judge_reward", "judge_")
                metrics |= self.judge.update(rollout, self._judging.loss, mix={VERDICT: 1.0})
        self._last = rollout
        metrics |= self._rollout_metrics(rollout)
        if self._balance.generator_learns:
            metrics |= self._train_generator(rollout)
        if self._replay is not None:
            self._replay.after_step(tick.step)
        return {**metrics, **_known_names(metrics)}

    def _rollout(self, step: int, turn: int, is_last: bool) -> MicroBatches:
        turns = self._config.judge_steps
        # The judge's other rollouts are of later epochs, which this stage does not reach: other samples than the last.
        prompts = self._feed[step] if is_last else self._more[self.length + (turns - 1) * step + turn]
        opponents = self._replay.opponents(step, turn, is_last) if self._replay is not None else Opponents()
        make = partial(self.rollouts.make, step=step, turn=turn, opponents=opponents)
        return self._bench.produced(prompts, make, copies=self._config.objective.group_size, count=self._count)

    def _moments(self, rollout: MicroBatches, name: str) -> policy.Moments:
        """Of values of the global batch: one a row, or one in each order of the judge."""
        values = [batch[name][batch["live"]] for batch in rollout.batches]
        return policy.moments_of(self._bench.world, torch.cat(values))

    def _add_advantages(self, rollout: MicroBatches, reward: str, prefix: str = "") -> None:
        moments = self._moments(rollout, reward)
        for batch in rollout.batches:
            found = policy.standardized(batch[reward], moments)
            batch[f"{prefix}advantage"] = found.values
            batch[f"{prefix}no_variance"] = found.without_variance.view(len(batch["live"]), -1).all(1)

    def validate(self, tick: Tick) -> Mapping[str, float]:
        found = self._benchmark.measure(tick) if self._benchmark else {}
        return {**found, **(self._pairs.measure() if self._pairs else {})}

    def _rollout_metrics(self, rollout: MicroBatches) -> dict[str, Metric]:
        def mean(values: Callable[[Batch], Tensor]) -> Metric:
            by_row = (values(batch).double().view(len(batch["live"]), -1).mean(1) for batch in rollout.batches)
            total = sum(torch.where(batch["live"], row, 0.0).sum() for batch, row in zip(rollout.batches, by_row))
            return Metric(total, rollout.weight("rows"))

        return {
            "judge_accuracy": mean(lambda batch: batch["right"]),
            "judge_position_bias": mean(position_bias),
            "judge_reward_mean": mean(lambda batch: batch["judge_reward"]),
            "generator_reward_mean": mean(lambda batch: batch["reward"]),
            "tokens_written": mean(lambda batch: batch["is_written"].sum(1)),
            "cut_at_the_limit": mean(lambda batch: ~batch["finished"]),
            "prompts_cut": mean(lambda batch: batch["prompt_cut"]),
            "too_short_to_judge": mean(lambda batch: ~batch["is_shown"]),
            "judge_prompts_cut": mean(lambda batch: batch["judge_prompt_cut"]),
            "parse_failures": mean(lambda batch: ~batch["parsed"]),
            "judge_paused": Metric(float(not self._balance.judge_learns), same=True),
            "generator_paused": Metric(float(not self._balance.generator_learns), same=True),
            **({"judge_saturated": mean(self._is_saturated)} if self._config.judging.mode == "verdict" else {}),
        }

    def _is_saturated(self, batch: Batch) -> Tensor:
        """Whether the judge is so sure about a pair that a better text would hardly be rewarded."""
        return batch["is_shown"] & (batch["log_odds"].abs() >= self._config.reward_clip)

    def _train_generator(self, rollout: MicroBatches) -> Metrics:
        objective = self._config.objective
        if objective.kind == "spin":
            return self.generator.update(rollout, self._spin_loss, mix={"preference": 1.0})
        if objective.kind != "grpo":
            self._add_advantages(rollout, "reward")
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
        return {
            **policy_terms(self._config.objective, found.log_probs, found.entropy, batch),
            "no_variance": batch["no_variance"].to(found.log_probs.dtype),
        }

    def _spin_loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        human = self.rollouts.log_probs(network, batch, "human").sum(1)
        own = self.rollouts.log_probs(network, batch).sum(1)
        return spin_terms(self._config.objective, human, own, batch)

    def _count(self, batch: Batch) -> Mapping[str, Tensor]:
        """A token of a completion counts as much as any other, and a pair that was not shown counts nothing."""
        counts = {VERDICT: self._judging.count(batch)}
        if self._config.objective.kind != "spin":
            names = ("policy", "entropy", "clipped", *(["kl"] if "reference" in batch else []))
            counts |= dict.fromkeys(names, batch["is_written"].sum(1))
        return counts

    def write_rollouts(self, tick: Tick) -> None:
        """Some rows of the last rollout, for people to read; after a resume, what is written again replaces it."""
        found = self.rollouts.examples(self._last)
        if not self._bench.world.is_main:
            return
        if not self._are_lines_cut:
            self._lines.keep(lambda row: int(str(row["step"])) <= tick.step)
            self._are_lines_cut = True
        for row in found:
            self._lines.append({"step": tick.step + 1, **row})


def position_bias(batch: Batch) -> Tensor:
    """How much more often the judge named the first text than half of the time; an answer that cannot be read names
    neither."""
    more = torch.where(batch["parsed"], batch["right"] - 0.5, 0.0)
    return (more[:, 0] - more[:, 1]) / 2


def _known_names(metrics: Metrics) -> dict[str, Metric]:
    """The losses once more, under the names that older programs log them by."""
    return {
        name.replace("/loss", "_loss", 1): metric
        for name, metric in metrics.items()
        if name.startswith((f"{GENERATOR}/loss", f"{JUDGE}/loss"))
    }
