"""What is refused before a run is recorded: with the mistake corrected, the same command then works."""

from pathlib import Path

from samestep import UserError
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.train.config import named_source

WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def resolve_config(config: GanConfig) -> GanConfig:
    """The configuration as it is, if its data can be read and its first weights are for one of the two models."""
    source = named_source(config)
    if source and Path(source).suffix in WEIGHT_FILES:
        raise UserError(
            f"Say which model begins with {source}: generator.init_from={source} or judge.init_from={source}; a weight "
            "file holds one of the two."
        )
    load(config.data, config.seed)
    return config
