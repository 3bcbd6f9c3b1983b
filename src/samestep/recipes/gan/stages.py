"""The stages: first the human texts themselves, if wanted, then generator and judge against each other."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from samestep import Batch, Bench, Every, Fit, Stage, completion_log_probs
from samestep.models.decoding import position_limit
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import TextRows, load
from samestep.recipes.gan.players import Player, PromptWriter, open_player
from samestep.recipes.gan.task import GENERATOR, Adversaries, lora_of

MLE, GAN = "mle", "gan"


def stages(config: GanConfig) -> list[Stage]:
    """One or two."""
    gan = Stage(GAN, Adversaries, hooks=hooks, start=MLE if config.mle_epochs else None)
    if not config.mle_epochs:
        return [gan]
    epochs = Stage(
        MLE,
        build_mle,
        validate=Fit.validate,
        best=("val/nats", "min"),
        unit="tokens",
        config=mle_config,
    )
    return [epochs, gan]


def mle_config(config: GanConfig) -> GanConfig:
    """The settings of the first stage."""
    rate = config.learning_rate if config.mle_learning_rate is None else config.mle_learning_rate
    return replace(config, epochs=config.mle_epochs, max_steps=None, learning_rate=rate)


def hooks(task: Adversaries, bench: Bench) -> list[Every]:
    """Rollouts to read."""
    config: GanConfig = bench.config
    every = config.log.every if config.rollouts_every is None else config.rollouts_every
    return [Every(every, task.write_rollouts)] if every else []


class HumanTexts:
    """Prompts and human texts as tokens."""

    def __init__(self, rows: TextRows, player: Player, prompts: PromptWriter, limit: int) -> None:
        self._rows, self._player, self._prompts, self._limit = rows, player, prompts, limit

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        record = self._rows.records[index]
        prompt = self._prompts(record.prompt).tokens
        human = [*self._player.encode(record.human), *self._player.eos[:1]][: self._limit]
        return {
            "prompt": torch.tensor(prompt),
            "is_prompt": torch.ones(len(prompt), dtype=torch.bool),
            "human": torch.tensor(human),
            "is_human": torch.ones(len(human), dtype=torch.bool),
        }


def build_mle(bench: Bench) -> Fit:
    """The generator, fitted to what people wrote."""
    config: GanConfig = bench.config
    texts = load(config.data, config.seed)
    player = open_player(config.generator, config.model_name, bench.world)
    learner = bench.learner(player.network, name=GENERATOR, lora=lora_of(config.generator))

    def loss(network: nn.Module, batch: Batch) -> dict[str, Tensor]:
        given = batch["prompt"], batch["is_prompt"], batch["human"], batch["is_human"]
        return {"nats": -completion_log_probs(network, *given).log_probs.sum(1)}

    def count(batch: Batch) -> dict[str, Tensor]:
        tokens = batch["is_human"].sum(1)
        return {"nats": tokens, "tokens": tokens}

    pad = {"prompt": player.pad, "human": player.pad, "is_prompt": False, "is_human": False}
    new_tokens = config.writing.max_new_tokens
    prompts = PromptWriter(player, position_limit(learner.module), new_tokens)
    train, held_out = (HumanTexts(rows, player, prompts, new_tokens) for rows in (texts.train, texts.validation))
    return Fit(
        learner,
        bench.feed(train, count=count, pad=pad),
        loss,
        validation=bench.evaluation_feed(held_out, count=count, pad=pad),
    )
