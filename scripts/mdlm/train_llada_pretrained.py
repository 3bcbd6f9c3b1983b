#!/usr/bin/env python
"""Fine-tune a published LLaDA model: `samestep train mdlm --preset llada-8b` under its older name, with familiar flags.

    python scripts/mdlm/train_llada_pretrained.py --model_name GSAI-ML/LLaDA-8B-Instruct \\
        --data_dir shakespeare_processed --batch_size 1 --epochs 3 --learning_rate 2e-5 --save_dir checkpoints \\
        --pt_checkpoints

Also --fp16, --no_fp16, --resume FILE.pt, --nproc N, and every setting of `samestep config mdlm`.
"""

import sys

from samestep.cli.main import main

DEFAULTS = ["--preset", "llada-8b", "--model_name", "GSAI-ML/LLaDA-8B-Instruct", "--data_dir", "shakespeare_processed"]

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["train", "mdlm", *DEFAULTS, *sys.argv[1:]]))
