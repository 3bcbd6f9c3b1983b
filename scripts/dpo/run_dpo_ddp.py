#!/usr/bin/env python
"""Train on preference pairs: `samestep train dpo` under its older name, with familiar flags.

    python scripts/dpo/run_dpo_ddp.py --nproc 4 --train_data pairs.json --val_data held_out.json \\
        --base_model_name v_48_020 --base_model_dir vanilla_model_weights --output_dir runs --num_epochs 10 \\
        --batch_size 4 --lr 1e-5 --beta 0.1 --temperature 1.0 --weight_decay 0.0 --max_length 2048

Also --learning_rate, --scale_lr, --backend auto|nccl|gloo|ccl|xpu, --no_cuda, --diversity_lambda, --skip_invalid,
--preset proteinmpnn|text|tiny|text-tiny (proteinmpnn), and every setting of `samestep config dpo`. In place of
--nproc N, `torchrun --nproc_per_node=N scripts/dpo/run_dpo_ddp.py ...` works as well, and so do srun and mpiexec.
"""

import sys

from samestep.cli.main import main

DEFAULTS = ["--preset", "proteinmpnn"]

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["train", "dpo", *DEFAULTS, *sys.argv[1:]]))
