"""Imports what the verbs import, once: each trial is a fork of this process."""

import importlib

MODULES = (
    *(f"samestep.cli.{verb}" for verb in ("train", "submit", "sample", "export", "data", "checkpoints", "why")),
    *(f"samestep.recipes.{recipe}" for recipe in ("mdlm", "gan", "dpo", "distill", "lens")),
    "samestep.cli.args",
    "samestep.train.session.entry",
    "samestep.train.trained.trained_model",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "rich.live",
    "safetensors.torch",
)


def everything() -> None:
    """Import all of it."""
    for name in MODULES:
        importlib.import_module(name)
