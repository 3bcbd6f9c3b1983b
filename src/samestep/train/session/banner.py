"""The resolved set-up in a few lines, printed before the first step."""

import torch

from samestep.data.streams.source import ENDLESS
from samestep.train.api.bench import Bench
from samestep.train.api.recipe import Recipe
from samestep.train.learner.learner import Learner
from samestep.train.record.config import Config, Distributed, named_source
from samestep.train.record.plan import Plan
from samestep.world.device import why_no_gpu
from samestep.world.world import World


def banner_lines(recipe: Recipe, bench: Bench, steps: int, resumed: str) -> dict[str, str]:
    """Name to value, in reading order, under the names that people know from other training scripts."""
    config, world, plan = bench.config, bench.world, bench.known_plan
    lines = {"stage": bench.stage, **(recipe.describe(config) if recipe.describe else {}), **bench.banner}
    for learner in bench.learners:
        label = "parameters" if len(bench.learners) == 1 else f"parameters of {learner.name}"
        lines[label] = _parameters(learner)
    if not resumed:
        lines |= _first_weights(bench)
    lines |= _planned(bench, plan) if plan else {"steps": f"{steps:,}"}
    lines |= _rates(bench, config, plan, steps)
    lines["mixed precision"] = _precision(config.distributed)
    lines["number of GPUs"] = _devices(world, config.distributed.device)
    lines["backend"] = world.backend or "none (single process)"
    lines["save directory"] = str(bench.rundir.path)
    if resumed:
        lines["resumed from"] = f"{resumed}, step {bench.progress.step:,}"
    return lines


def _parameters(learner: Learner) -> str:
    total = sum(p.numel() for p in learner.parameters())
    trained = sum(p.numel() for p in learner.parameters() if p.requires_grad)
    return f"{total:,}" if trained == total else f"{_short(trained)} trained of {_short(total)}"


def _short(number: int) -> str:
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if number >= unit:
            return f"{number / unit:.1f}{letter}"
    return str(number)


def _planned(bench: Bench, plan: Plan) -> dict[str, str]:
    """What the first launch fixed, or fixes now."""
    batch, micro_batch = bench.stage_plan.global_batch, bench.config.batch_size
    per_rank = -(-batch // bench.world.dp_size)
    micro_batches = -(-per_rank // micro_batch)
    notes = [f"{micro_batches} micro-batches of at most {micro_batch}"] if micro_batches > 1 else []
    notes += [bench.stage_plan.batch_size_note] if bench.stage_plan.batch_size_note else []
    all_rows = f" (every step takes all {plan.samples} rows)" if batch > plan.samples else ""
    return {
        "batch size per GPU": f"{per_rank} ({'; '.join(notes)})" if notes else str(per_rank),
        "total batch size": f"{batch}{all_rows}",
        **({"steps": f"{plan.steps:,}"} if plan.samples == ENDLESS else {"epochs": _epochs(plan)}),
    }


def _first_weights(bench: Bench) -> dict[str, str]:
    """Where weights come from, if any learner's come from elsewhere than the seed."""
    descriptions, source = bench.first_weights.descriptions, named_source(bench.config)
    if not source and bench.start is None and not bench.first_weights.has_any():
        return {}
    only = len(descriptions) == 1
    return {"first weights" if only else f"first weights of {name}": text for name, text in descriptions.items()}


def _rates(bench: Bench, config: Config, plan: Plan | None, steps: int) -> dict[str, str]:
    """The planned learning rate where a learner follows it, and the rates that the recipe gave."""
    lines = {}
    if plan and len(bench.stage_plan.given_rates) < len(bench.learners):
        lines["learning rate"] = _rate(config, plan.learning_rate, plan.warmup_steps)
    for name, rate in bench.stage_plan.given_rates.items():
        label = "learning rate" if len(bench.learners) == 1 else f"learning rate of {name}"
        lines[label] = f"given by the recipe: {rate(0):g} at first, {rate(steps - 1):g} at last"
    return lines


def _epochs(plan: Plan) -> str:
    return f"{plan.steps / plan.steps_per_epoch:.3g} ({plan.steps:,} steps, {plan.steps_per_epoch:,} an epoch)"


def _devices(world: World, wanted: str) -> str:
    if world.device.type == "cpu":
        why = f"; {reason}" if (reason := why_no_gpu(wanted)) else ""
        return f"0 ({world.size} {'process' if world.size == 1 else 'processes'} on the CPU{why})"
    return f"{world.size} ({device_name(world)})"


def device_name(world: World) -> str:
    """What this rank computes on, as people call it."""
    return torch.cuda.get_device_name(world.device) if world.device.type == "cuda" else str(world.device)


def _precision(distributed: Distributed) -> str:
    return f"{distributed.mixed_precision} (parameters in {distributed.dtype}, {distributed.strategy})"


def _rate(config: Config, rate: float, warmup: int) -> str:
    text = f"{rate:g}, {config.schedule}"
    if warmup:
        text += f", {warmup:,} warm-up {'step' if warmup == 1 else 'steps'}"
    if config.lr_scaling != "none":
        text += f" ({config.learning_rate:g} scaled {config.lr_scaling} from batch {config.base_batch_size})"
    return text
