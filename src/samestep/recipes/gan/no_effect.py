"""Settings that have no effect beside others."""

from samestep import NoEffect

NO_EFFECT = (
    NoEffect(
        ("judging.answer_tokens", "judging.temperature", "judging.unparsed_fools"),
        lambda c: c.judging.mode == "verdict",
        "with judging.mode=verdict the judge writes nothing; set judging.mode=generative, or leave it out",
    ),
    NoEffect(
        "judging.training",
        lambda c: c.judging.mode == "generative",
        "a generative judge always learns by policy gradient; set judging.mode=verdict, or leave it out",
    ),
    NoEffect(
        "objective.clip_eps",
        lambda c: c.objective.kind not in ("ppo", "grpo"),
        "only ppo and grpo clip; set objective.kind to one of them (--use_ppo), or leave it out",
    ),
    NoEffect(
        ("objective.entropy_coef", "objective.kl_coef"),
        lambda c: c.objective.kind == "spin",
        "spin has no such term; choose another objective.kind, or leave it out",
    ),
    NoEffect(
        ("objective.inner_epochs", "objective.parts"),
        lambda c: c.objective.kind == "spin" and c.objective.inner_epochs * c.objective.parts > 1,
        "spin makes one update a step; choose another objective.kind, or leave it out",
    ),
    NoEffect(
        "objective.spin_beta",
        lambda c: c.objective.kind != "spin",
        "it is for objective.kind=spin; set that, or leave it out",
    ),
    NoEffect(
        "mle_learning_rate",
        lambda c: not c.mle_epochs,
        "there is no stage that learns the human texts; set mle_epochs, or leave it out",
    ),
    NoEffect(
        "replay.*", lambda c: not c.replay.keep, "no earlier opponents are kept; set replay.keep, or leave it out"
    ),
    NoEffect(
        "benchmark.*", lambda c: not c.benchmark.size, "there is no benchmark; set benchmark.size, or leave it out"
    ),
    NoEffect(
        "validate_every",
        lambda c: not c.benchmark.size and not c.mle_epochs,
        "there is no benchmark to run; set benchmark.size, or leave it out",
    ),
    NoEffect(
        "generator.network.*",
        lambda c: bool(c.generator.model or c.model_name),
        "it is the shape of the built-in network, and a model is named; leave out one of the two",
    ),
    NoEffect(
        "judge.network.*",
        lambda c: bool(c.judge.model or c.model_name),
        "it is the shape of the built-in network, and a model is named; leave out one of the two",
    ),
    NoEffect(
        "model_name",
        lambda c: bool(c.generator.model and c.judge.model),
        "both players name a model of their own; leave out generator.model, judge.model or this",
    ),
)
"""Settings that have no effect beside others."""
