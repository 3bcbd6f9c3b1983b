"""The stages: first the human texts themselves, if wanted, then generator and judge against each other."""

from dataclasses import replace

from torch import Tensor

from samestep import Batch, Bench, Every, Fit, Stage, Tick
from samestep.data.records.mixture import shown
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.recipes.gan.players import HumanTexts, PlayerConfig, count_nats, human_nats, open_player
from samestep.recipes.gan.task import GENERATOR, Adversaries

MLE, GAN = "mle", "gan"
SHOWN = (
    *("judge_accuracy", "generator_reward_mean", "judge/loss"),
    *("benchmark/win_rate", "benchmark/baseline_win_rate", "benchmark/accuracy", "benchmark/self_bleu"),
    *("benchmark/human_nats", "benchmark/collapsed", "pairs/win_rate", "pairs/accuracy"),
)
"""Who wins. The loss of a policy gradient says nothing of that."""


def stages(config: GanConfig) -> list[Stage]:
    """The last has the judge; the first is only there if the config asks for epochs on human texts."""
    start = MLE if config.mle_epochs else None
    gan = Stage(GAN, Adversaries, validate=Adversaries.validate, hooks=_hooks, start=start, shown=SHOWN)
    if not config.mle_epochs:
        return [gan]
    best = ("val/nats", "min")
    return [Stage(MLE, _build_mle, validate=Fit.validate, best=best, unit="tokens", config=_mle_config), gan]


def _mle_config(config: GanConfig) -> GanConfig:
    rate = config.learning_rate if config.mle_learning_rate is None else config.mle_learning_rate
    return replace(config, epochs=config.mle_epochs, max_steps=None, learning_rate=rate)


def describe(config: GanConfig) -> dict[str, str]:
    """Data, players and objective, for the banner."""

    def named(player: PlayerConfig) -> str:
        own = f"built-in, {player.network.n_layers} layers of width {player.network.d_model}, on bytes"
        adapters = f", LoRA of rank {player.lora_rank}" if player.lora_rank else ""
        return (player.model or config.model_name or own) + adapters

    return {
        "dataset": shown(config.data.path) or "pydoc_data.topics (the text inside Python)",
        "generator": named(config.generator),
        "judge": f"{named(config.judge)}, {config.judging.mode}",
        "objective": config.objective.kind,
    }


def _hooks(task: Adversaries, bench: Bench) -> list[Every]:
    config: GanConfig = bench.config
    every = config.log.every if config.rollouts_every is None else config.rollouts_every

    def write(tick: Tick) -> None:
        if tick.step == 0 or (tick.step + 1) % every == 0:
            task.write_rollouts(tick)

    return [Every(1, write)] if every else []


def _build_mle(bench: Bench) -> Fit:
    """The generator, fitted to what people wrote."""
    config: GanConfig = bench.config
    own = config.generator
    player = open_player(own, config.model_name, bench.world)
    learner = bench.learner(player.network, name=GENERATOR, lora=own.lora, init_from=own.init_from)
    texts = load(config.data, config.seed)

    def count(batch: Batch) -> dict[str, Tensor]:
        return {**count_nats(batch), "tokens": batch["is_human"].sum(1)}

    limit = config.writing.max_new_tokens
    train, held_out = (HumanTexts(rows, player, learner.module, limit) for rows in (texts.train, texts.validation))
    return Fit(
        learner,
        bench.feed(train, order=texts.train.order(), count=count, pad=train.pad),
        human_nats,
        validation=bench.evaluation_feed(held_out, count=count, pad=held_out.pad),
    )
