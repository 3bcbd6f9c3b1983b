"""Two language models, each in a stage of its own, that other runs can begin with by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from planted.parts import VERIFY, Batch, Small
from samestep import (
    Bench,
    CausalConfig,
    Fit,
    LanguageModel,
    Recipe,
    Stage,
    TrainedModelSettings,
    World,
    completion_log_probs,
    open_language_model,
)

SHAPE = {"d_model": 16, "n_layers": 1, "n_heads": 2, "mlp_hidden_size": 24, "vocab_size": 259, "init_std": 0.1}


@dataclass(frozen=True)
class TwoConfig(TrainedModelSettings, Small):
    """Both models have the same settings."""

    model_name: str | None = None
    """The model that both begin with."""
    network: CausalConfig = field(default_factory=lambda: CausalConfig(**SHAPE, max_sequence_length=256))
    """The shape of the built-in one."""


def open_model(config: TwoConfig, world: World) -> LanguageModel:
    return open_language_model(config.model_name, world, shape=config.network, dtype=config.weights_dtype)


def build(bench: Bench, learner: str) -> Fit:
    model = open_model(bench.config, bench.world)
    policy = bench.learner(model.network, name=learner, lora=bench.config.lora)
    texts = [(model.begin("say it:"), model.encode(f" {learner} {number}")) for number in range(8)]
    rows = [{"prompt": torch.tensor(first), "written": torch.tensor(then)} for first, then in texts]

    def count(batch: Batch) -> Mapping[str, Tensor]:
        return {"nats": torch.full((len(batch["written"]),), batch["written"].shape[1])}

    return Fit(policy, bench.feed(rows, count=count), nats)


def nats(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    prompt, written = batch["prompt"], batch["written"]
    seen = [torch.ones_like(tokens, dtype=torch.bool) for tokens in (prompt, written)]
    return {"nats": -completion_log_probs(network, prompt, seen[0], written, seen[1]).log_probs.sum(1)}


def language_models(config: TwoConfig) -> dict[str, Callable[[World], LanguageModel]]:
    return {name: partial(open_model, config) for name in ("early", "late")}


recipe = Recipe(
    TwoConfig,
    lambda config: [Stage(name, partial(build, learner=name)) for name in ("early", "late")],
    presets={"verify": VERIFY},
    language_models=language_models,
    model_settings=dict.fromkeys(("early", "late"), "model_name"),
)
