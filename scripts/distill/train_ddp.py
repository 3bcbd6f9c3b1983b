#!/usr/bin/env python
"""Distil a large retriever into a small one: `samestep train distill` under its older name, with familiar flags.

    python scripts/distill/train_ddp.py --nproc 4 --teacher_model infly/inf-retriever-v1-pro \\
        --student_model sentence-transformers/all-mpnet-base-v2 --use_projection True --batch_size 64 \\
        --phase1_epochs 1 --phase2_epochs 3 --phase1_lr 2e-5 --phase2_lr 5e-6 --output_dir ./checkpoints \\
        --max_samples_phase1 100000 --max_samples_phase2 500000 --save_to_artifacts --artifacts_dir ./artifacts \\
        --train_data records.jsonl

Also --skip_phase1, --skip_phase2, --config ddp_config.json with the same names, --preset retriever|tiny (retriever),
and every setting of `samestep config distill`. In place of --nproc N, `torchrun --nproc_per_node=N
scripts/distill/train_ddp.py ...` works as well, and so do srun and mpiexec.
"""

import sys

from samestep.cli.main import main

DEFAULTS = ["--preset", "retriever"]

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["train", "distill", *DEFAULTS, *sys.argv[1:]]))
