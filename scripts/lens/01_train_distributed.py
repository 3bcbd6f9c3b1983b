#!/usr/bin/env python
"""Explain activations of a language model: `samestep train lens` under its older name, with familiar keys.

    python scripts/lens/01_train_distributed.py --nproc 8 --config-name gpt2_frozen model_name=/models/gpt2 \\
        layer_l=6 t_text=10 batch_size=32 learning_rate=1e-4 distributed.mixed_precision.dtype=bfloat16

--config-name NAME is a file of the folder --config-path, by default conf of this repository; --config FILE works too.
Without any of them it is the small model on bytes. Stages that are finished are not done again: the same command with
the same name=... goes on. Every setting: `samestep config lens`. In place of --nproc N, `torchrun --nproc_per_node=N
scripts/lens/01_train_distributed.py ...` works as well, and so do srun and mpiexec.
"""

import sys
from pathlib import Path

from samestep.cli.main import main
from samestep.core.config import split_options
from samestep.core.errors import UserError

CONF = Path(__file__).resolve().parents[2] / "conf"


def with_config_path(args: list[str]) -> list[str]:
    """The args, with the repository's folder where a file is named and no folder."""
    try:
        options, _ = split_options(args, ["config", "config-path", "config-name"])
    except UserError:  # `main` says what is wrong
        return args
    return ["--config-path", str(CONF), *args] if set(options) == {"config-name"} else args


if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["train", "lens", *with_config_path(sys.argv[1:])]))
