"""What is refused before a run is recorded: with the mistake corrected, the same command then works."""

from pathlib import Path

from samestep import UserError
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import load
from samestep.train.record.config import named_source
from samestep.train.record.run_record import run_path

WEIGHT_FILES = (".pt", ".pth", ".bin", ".ckpt", ".safetensors")


def resolve_config(config: GanConfig) -> GanConfig:
    """The configuration as it is, if it can be trained with: its data can be read, and its first weights are found and
    are for one model."""
    source = named_source(config)
    if source and Path(source).suffix in WEIGHT_FILES:
        raise UserError(
            f"Say which model begins with {source}: generator.init_from={source} or judge.init_from={source}; a weight "
            "file holds one of the two."
        )
    for name, player in (("generator", config.generator), ("judge", config.judge)):
        if player.init_from and not Path(run_path(player.init_from, config.out)).exists():
            raise UserError(
                f"Set {name}.init_from to a run, a checkpoint or a weight file; {player.init_from} does not exist."
            )
    if config.writing.temperature == 0 and config.objective.kind != "spin":
        raise UserError(
            f"Set writing.temperature above 0: {config.objective.kind} learns from completions that are drawn, and at "
            "0 there is only one for each prompt."
        )
    load(config.data, config.seed)
    return config
