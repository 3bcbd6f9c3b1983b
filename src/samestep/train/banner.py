"""The resolved set-up in a few lines, shown before the first step."""

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from samestep.train.session import Session, StageRun


def banner_lines(session: "Session", stage: "StageRun", resumed: str) -> dict[str, str]:
    """Name to value, in reading order."""
    config, world, plan = session.config, session.world, stage.bench.known_plan
    lines = {"run": str(session.rundir.path), "stage": stage.stage.name}
    if session.recipe.describe:
        lines |= session.recipe.describe(config)
    lines["device"] = _device(world.device)
    lines["backend"] = world.backend or "none (single process)"
    lines["world size"] = str(world.size)
    lines["precision"] = _precision(config.distributed)
    for learner in stage.bench.learners:
        label = "parameters" if len(stage.bench.learners) == 1 else f"parameters of {learner.name}"
        lines[label] = f"{sum(p.numel() for p in learner.parameters()):,}"
    if plan is not None:
        micro = min(config.batch_size, -(-plan.global_batch // world.size))
        share = -(-plan.global_batch // world.size)
        lines["batch per device"] = (
            f"{share} ({-(-share // micro)} micro-batches of at most {micro})" if share > micro else f"{share}"
        )
        lines["global batch"] = f"{plan.global_batch}"
        lines["steps"] = f"{plan.steps:,} ({plan.steps / plan.steps_per_epoch:.3g} epochs of {plan.steps_per_epoch:,})"
        lines["learning rate"] = _rate(config, plan.learning_rate, plan.warmup_steps)
    else:
        lines["steps"] = f"{stage.task.length:,}"
    if resumed:
        lines["resumed from"] = f"{resumed}, step {stage.progress.step:,}"
    return lines


def _device(device: torch.device) -> str:
    return f"{device} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _precision(distributed: object) -> str:
    dtype, mixed = distributed.dtype, distributed.mixed_precision  # type: ignore[attr-defined]
    strategy = distributed.strategy  # type: ignore[attr-defined]
    return f"{dtype}{'' if mixed == 'none' else f' with {mixed} arithmetic'}, {strategy}"


def _rate(config: object, rate: float, warmup: int) -> str:
    scaling = config.lr_scaling  # type: ignore[attr-defined]
    text = f"{rate:g}, {config.schedule}"  # type: ignore[attr-defined]
    if warmup:
        text += f", {warmup} warm-up steps"
    if scaling != "none":
        text += f" ({config.learning_rate:g} scaled {scaling} from batch {config.base_batch_size})"  # type: ignore[attr-defined]
    return text
