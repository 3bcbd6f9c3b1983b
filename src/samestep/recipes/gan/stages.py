"""The stages: first the human texts themselves, if wanted, then generator and judge against each other."""

from dataclasses import replace

from torch import Tensor

from samestep import Batch, Bench, Fit, Stage
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.recipes.gan.human_texts import HumanTexts, count_nats, human_nats
from samestep.recipes.gan.players import open_player
from samestep.recipes.gan.task import GENERATOR, Adversaries, lora_of

MLE, GAN = "mle", "gan"


def stages(config: GanConfig) -> list[Stage]:
    """One or two."""
    gan = Stage(GAN, Adversaries, validate=Adversaries.validate, start=MLE if config.mle_epochs else None)
    if not config.mle_epochs:
        return [gan]
    epochs = Stage(
        MLE,
        build_mle,
        validate=Fit.validate,
        best=("val/nats", "min"),
        unit="tokens",
        config=lambda c: replace(c, epochs=c.mle_epochs, max_steps=None),
    )
    return [epochs, gan]


def build_mle(bench: Bench) -> Fit:
    """The generator, fitted to what people wrote."""
    config: GanConfig = bench.config
    texts = load(config.data, config.seed)
    player = open_player(config.generator, config.model_name, bench.world)
    learner = bench.learner(player.network, name=GENERATOR, lora=lora_of(config.generator))

    def count(batch: Batch) -> dict[str, Tensor]:
        return {**count_nats(batch), "tokens": batch["is_human"].sum(1)}

    train, held_out = (
        HumanTexts(rows, player, config.writing.max_new_tokens) for rows in (texts.train, texts.validation)
    )
    return Fit(
        learner,
        bench.feed(train, count=count, pad=train.pad),
        human_nats,
        validation=bench.evaluation_feed(held_out, count=count, pad=held_out.pad),
    )
