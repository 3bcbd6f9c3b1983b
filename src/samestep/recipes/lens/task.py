"""The stages that train: decoder and encoder learn to explain activations and to rebuild them.

`warm_start`: the decoder learns to repeat the last tokens of the context of an activation, the encoder to rebuild the
activation from them. Training alone begins with texts that have nothing to do with the activation, and drawn tokens
give gradients with much noise. Here the texts are given: a step costs a fraction of one with drawn tokens, and training
begins with explanations that say something.

`encoder`: the encoder alone learns to rebuild activations from texts that the decoder draws.

`train`: both learn from drawn tokens.

`grpo`: the decoder learns from rewards (GRPO), which are higher the better an activation can be rebuilt. In each step
several explanations of each activation are drawn. One that is better than the others of its group becomes likelier. The
encoder goes on learning from the same explanations. The decoder may be held close to what it was at the beginning.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samestep import (
    Batch,
    Bench,
    Frozen,
    LanguageModel,
    Learner,
    Lora,
    Metric,
    Metrics,
    Tick,
    UserError,
    World,
    evaluate,
    gather_rows,
    policy,
    samples,
)
from samestep.recipes.lens.activations import ActivationRows, frozen_model, open_activations, training_samples
from samestep.recipes.lens.config import LensConfig, ValueSchedule
from samestep.recipes.lens.language_model import LANGUAGE_MODEL, context_of, open_model, prompt_tokens
from samestep.recipes.lens.measuring import explained_variance, variance_of
from samestep.recipes.lens.network import Lens, relative_error
from samestep.recipes.lens.parts import Kind, LensShape
from samestep.train.learner.lora import to_type
from samestep.train.logging.metrics import MetricValues
from samestep.train.weights.run_checkpoints import choose_together
from samestep.train.weights.sources import NamedWeights

LEARNER = "model"
FVE = "fve"
_TERMS = ("kl", "lm", "entropy", "mse")
_CHECKED_ROWS = 4
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""How far logits may be from each other, as a share of the largest, by the type they are computed in."""


class LensStage:
    """What all of them have: the network, the activations, the validation."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.config: LensConfig = bench.config
        self.model = frozen_model(bench)
        # Before the activations are read, so that a trained network can be loaded where they are not at hand.
        self.learner = make_learner(bench, self.model, self.model.network())
        rows = open_activations(bench, self.model)
        self.feed, self._validation = bench.feed(rows.train), bench.evaluation_feed(rows.validation)
        self.length = self.feed.length
        self.state: Mapping[str, Any] = {LEARNER: self.learner}
        self._variance: float | None = None
        trained = ", ".join(self.config.trainable_components.trained)
        bench.banner |= {"explanation": f"{self.config.t_text} tokens", "trained": trained, "loss": self.formula()}
        check_reinsertion(bench, self.learner, rows)
        bench.screen.print(f"{len(rows.train):,} activations, {len(rows.validation):,} for validation")

    def formula(self) -> str:
        """The loss of the stage."""
        raise NotImplementedError

    def validate(self, tick: Tick) -> MetricValues:
        """Means of all terms over the validation rows, and the share of the activations' variance that is
        explained."""
        found = evaluate(self.learner, self._validation, _measure, tick.step)
        if self._variance is None:
            self._variance = variance_of(gather_rows(self.learner, self._validation, _activation)["activation"])
        explained = {FVE: explained_variance(found.pop("error"), self._variance)}
        if count := self.bench.sample_count:
            self.bench.log_samples("explanations", *self._explained(self._validation.first_rows(count)))
        return {f"val/{name}": value for name, value in (explained | found).items()}

    def _explained(self, rows: Batch) -> list[samples.Explanation]:
        """Drawn explanations of some rows, on every rank."""
        with self.learner.inference() as network:
            activation = network(rows, Lens.activation)["activation"]
            found = network({**rows, "activation": activation}, Lens.explain)
        errors = relative_error(activation, found["rebuilt"]).tolist()
        given = zip(rows["tokens"].tolist(), rows["position"].tolist(), found["tokens"].tolist(), errors, strict=True)
        shown = []
        for tokens, position, written, error in given:
            context = context_of(self.model, tokens, position)
            shown.append(samples.Explanation(context["before"], context["token"], self.model.spell(written), error))
        return shown

    def draw(self, batch: Batch) -> tuple[Batch, dict[str, Tensor]]:
        """What a batch has beside its keys with the activations, and drawn explanations of them; without gradients."""
        self.bench.check_stop()
        with self.learner.inference() as network:
            activation = network(batch, Lens.activation)["activation"]
            found = network({**batch, "activation": activation}, Lens.explain)
        given = {name: value for name, value in batch.items() if name not in ("ids", "live")}
        return {**given, "activation": activation, "written": found["tokens"]}, found


def _formula(mix: Mapping[str, float]) -> str:
    return " + ".join(f"{weight:g} {term}" for term, weight in mix.items() if weight).replace("+ -", "- ")


def _measure(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    """The terms of validation. What is drawn does not depend on the temperature, only gradients do."""
    found = network({**batch, "tau": _like(batch, 1.0)})
    return {**{name: found[name] for name in _TERMS}, "error": found["mse"] * found["square"]}


def _activation(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    found: Mapping[str, Tensor] = network(batch, Lens.activation)
    return found


def check_reinsertion(bench: Bench, learner: Learner, rows: ActivationRows) -> None:
    """Refuse to train where putting an activation back does not give the model's own output: then it was read at
    another place than where it is exchanged, or with another model. Collective."""
    given = rows.validation.rows(np.arange(min(_CHECKED_ROWS, len(rows.validation))))
    stored = given["activation"].dtype if "activation" in given else None
    floats, device = torch.get_default_dtype(), bench.world.device
    batch = {name: value.to(device, floats if value.is_floating_point() else None) for name, value in given.items()}
    with learner.inference() as network:
        found = network(batch, Lens.reinsertion)
    plain, inserted = found["plain"].double(), found["inserted"].double()
    apart = float((plain - inserted).abs().max() / plain.abs().max())
    types = {found["plain"].dtype, *([stored] if stored else [])}
    allowed = max(_TOLERANCE[dtype] for dtype in types)

    def check() -> None:
        if not apart <= allowed:
            raise UserError(
                f"Dump the activations of this model again: putting them back into layer {bench.config.layer_l} does "
                f"not give the model's own logits (they are {apart:.1e} of the largest apart, and {allowed:.0e} would "
                "be rounding)."
            )

    bench.world.run_on_all_ranks("putting activations back", check)


class LensWarmStart(LensStage):
    """Decoder and encoder learn from the context itself."""

    def formula(self) -> str:
        return _formula(warm_start_mix(self.config))

    def step(self, tick: Tick) -> Metrics:
        given = self.feed[tick.step].changed(self._with_written)
        return self.learner.update(given, _given_text, warm_start_mix(self.config))

    def _with_written(self, batch: Batch) -> Batch:
        return {**batch, "written": last_tokens(batch["tokens"], batch["position"], self.config.t_text)}


def warm_start_mix(config: LensConfig) -> dict[str, float]:
    """The coefficients of the terms of a warm start."""
    return {"nats": 1.0, "mse": config.warm_start.mse_weight}


def last_tokens(tokens: Tensor, position: Tensor, count: int) -> Tensor:
    """The last `count` tokens of texts [rows, columns] up to a position [rows], which is the last of them; the first
    token is repeated where there are fewer."""
    columns = position[:, None] + torch.arange(1 - count, 1, device=tokens.device)
    return tokens.gather(1, columns.clamp_min(0))


def _given_text(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    found = network(batch, Lens.score)
    return {"nats": -found["log_probs"].mean(1), "mse": found["error"]}


class LensEncoder(LensStage):
    """The encoder learns from drawn explanations. The decoder is constant (`freeze_until`), so its term counts for
    nothing; it is there because every parameter needs a gradient."""

    mix: Mapping[str, float] = {"mse": 1.0, "nats": 0.0}

    def formula(self) -> str:
        return _formula(self.mix)

    def step(self, tick: Tick) -> Metrics:
        drawn = self.bench.produced(self.feed[tick.step], lambda batch: self.draw(batch)[0])
        return self.learner.update(drawn, _given_text, self.mix)


class LensTraining(LensStage):
    """Both learn through the straight-through Gumbel-softmax."""

    def formula(self) -> str:
        alpha = self.config.alpha_schedule
        if alpha.type == "constant":
            return _formula(training_mix(self.config, alpha.start))
        formula = _formula(training_mix(self.config, 1.0)).replace(" lm", " alpha lm")
        return f"{formula} (alpha from {alpha.start:g} to {alpha.end:g})"

    def step(self, tick: Tick) -> Metrics:
        tau = self._at_step(self.config.gumbel_tau_schedule, tick.step)
        # A tensor, since a number would be compiled in.
        rows = self.feed[tick.step].changed(lambda batch: {**batch, "tau": _like(batch, tau)})
        metrics = self.learner.update(rows, _terms, self.mix(tick.step))
        alpha = self._at_step(self.config.alpha_schedule, tick.step)
        return {**metrics, "tau": Metric(tau, same=True), "alpha": Metric(alpha, same=True)}

    def validate(self, tick: Tick) -> MetricValues:
        """Also the loss that is trained, with the weights of the step."""
        found = super().validate(tick)
        return {**found, "val/loss": sum(weight * found[f"val/{term}"] for term, weight in self.mix(tick.step).items())}

    def mix(self, step: int) -> dict[str, float]:
        """The coefficients of the terms that are trained, at a step."""
        return training_mix(self.config, self._at_step(self.config.alpha_schedule, step))

    def _at_step(self, schedule: ValueSchedule, step: int) -> float:
        plan = self.bench.known_plan
        assert plan is not None
        return schedule.at(step, plan.steps_per_epoch, plan.steps)


def training_mix(config: LensConfig, alpha: float) -> dict[str, float]:
    """The coefficients of the terms that are trained through drawn tokens."""
    weights = {"kl": config.kl_base_weight, "lm": config.lm_base_weight * alpha, "entropy": -config.entropy_weight}
    return trained_mix({**weights, "mse": config.mse_weight})


def _terms(network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    found = network(batch)
    return {name: found[name] for name in _TERMS}


def _like(batch: Batch, value: float) -> Tensor:
    return torch.full(batch["live"].shape, value, dtype=torch.get_default_dtype(), device=batch["live"].device)


def trained_mix(weights: Mapping[str, float]) -> dict[str, float]:
    """The terms to train: those with a weight, and `mse` always, since all of the encoder gets a gradient from it, and
    what gets none is refused."""
    return {term: weight for term, weight in weights.items() if weight or term == "mse"}


def rewards_mix(config: LensConfig) -> dict[str, float]:
    """The coefficients of the terms that are trained with rewards."""
    own = config.grpo
    return trained_mix({"policy": 1.0, "mse": own.mse_weight, "kl": own.kl_weight, "entropy": -own.entropy_weight})


class LensRewards(LensStage):
    """Decoder and encoder learn from drawn explanations."""

    def __init__(self, bench: Bench, began_with: str) -> None:
        """`began_with` is the stage whose best weights this one begins with."""
        super().__init__(bench)
        self._grpo = self.config.grpo
        self._reference = (
            trained_lens(bench, self.model, began_with, name="reference") if self._grpo.kl_weight else None
        )

    def formula(self) -> str:
        return _formula(rewards_mix(self.config))

    def step(self, tick: Tick) -> Metrics:
        rollout = self.bench.produced(self.feed[tick.step], self._rewarded, copies=self._grpo.group_size)
        reward = self.bench.moments(rollout, "reward")
        metrics: Metrics = {}
        for _ in range(self._grpo.inner_epochs):
            metrics = self.learner.update(rollout, self._loss, rewards_mix(self.config))
        return {**metrics, "reward": Metric(reward.mean, same=True), "reward_std": Metric(reward.std, same=True)}

    def _rewarded(self, batch: Batch) -> Batch:
        """Explanations of the activations of a batch; those of one activation follow each other."""
        rows, found = self.draw(batch)
        error = relative_error(rows["activation"], found["rebuilt"])
        advantage = policy.group_advantages(-error, self._grpo.group_size, epsilon=1e-6).values
        rows = {**rows, "before": found["log_probs"], "reward": -error, "advantage": advantage}
        if self._reference is not None:
            rows["reference"] = self._reference(rows, Lens.score)["log_probs"]
        return rows

    def _loss(self, network: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
        found = network(batch, Lens.score)
        now = found["log_probs"]
        clipped = policy.clipped_objective(now, batch["before"], batch["advantage"], self._grpo.clip_eps)
        terms = {
            "policy": -clipped.objective.mean(1),
            "clipped": clipped.is_clipped.to(clipped.objective.dtype).mean(1),
            "mse": found["error"],
            "entropy": found["entropy"].mean(1),
        }
        if "reference" in batch:
            terms["kl"] = policy.kl_k3(now, batch["reference"]).mean(1)
        return terms


def make_learner(bench: Bench, model: LanguageModel, network: nn.Module) -> Learner:
    """Decoder and encoder around the frozen model, as one network."""
    config: LensConfig = bench.config
    lens = make_lens(config, model, network)
    parts, groups = config.trainable_components, {}
    if parts.freeze_until:
        plan = bench.plan(training_samples(bench))
        groups = parts.groups(plan.steps_per_epoch, plan.steps)
        if any(group.train_from >= plan.steps for group in groups.values()):
            bench.screen.print(f"freeze_until: a part stays frozen in all {plan.steps:,} steps of this stage")
    elif parts.learning_rate_multipliers:
        groups = parts.groups(1, 1)
    return bench.learner(lens, name=LEARNER, groups=groups or None)


def make_lens(config: LensConfig, model: LanguageModel, network: nn.Module) -> Lens:
    """The network; `network` is that of the frozen model."""
    return Lens(network, lens_shape(config, model.bos), prompt_tokens(model, config.decoder_prompt))


def trained_lens(bench: Bench, model: LanguageModel, stage: str, name: str) -> Frozen:
    """The lens with the best weights of an earlier stage, which are not trained any more. Collective."""
    config: LensConfig = bench.config
    lens = make_lens(config, model, model.network())
    to_type(lens, getattr(torch, config.distributed.dtype))
    # Before it is frozen as a whole: only what trained is in a checkpoint.
    best = choose_together(bench.world, bench.rundir, "best", learner=LEARNER, stage=stage)
    NamedWeights(best, bench.world, bench.shared).fill_for(LEARNER)(lens)
    return bench.frozen(lens, name=name, shard=config.distributed.strategy == "fsdp")


def lens_shape(config: LensConfig, bos: int | None) -> LensShape:
    """The shape of the network that a configuration asks for."""
    parts = config.trainable_components
    kinds: dict[bool | str, Kind] = {False: "frozen", True: "full", "lora": "lora"}
    return LensShape(
        layer=config.layer_l,
        t_text=config.t_text,
        encoder_layer=parts.encoder.layer,
        kv_cache=config.kv_cache,
        stop_gradient=config.stop_gradient_delta,
        decoder=kinds[parts.decoder.base_model],
        encoder=kinds[parts.encoder.base_model],
        trains_decoder_projection=parts.decoder.projection_layer,
        trains_prompt=parts.decoder.prompt,
        trains_head=parts.decoder.output_head,
        trains_encoder_projection=parts.encoder.projection_layer,
        lora=parts.lora or Lora(),
        bos=bos,
        seed=config.seed,
    )


def language_models(config: LensConfig) -> dict[str, Callable[[World], LanguageModel]]:
    """The built-in one, which the first stage trains."""
    return {} if config.model_name is not None else {LANGUAGE_MODEL: partial(open_model, config)}


def build_networks(config: LensConfig) -> dict[str, Callable[[], nn.Module]]:
    """For an exported lens, which has the weights of the frozen model too."""

    def build() -> nn.Module:
        model = open_model(config, World.single())
        return make_lens(config, model, model.network())

    return {LEARNER: build}
