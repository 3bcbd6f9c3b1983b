#!/usr/bin/env python
"""Train a generator against a judge: `samestep train gan` under its older name, with familiar flags.

    python scripts/gan/train_ddp.py --nproc 4 --model_name FOLDER --data_path stories.csv --domain stories \\
        --batch_size 4 --epochs 20 --learning_rate 1e-5 --max_story_length 2000 --use_ppo true --run_name first \\
        --save_checkpoints --checkpoint_freq 20

Also --min_story_length, --max_agent_tokens, --max_judge_tokens, --clip_eps, --entropy_coef, --project_name,
--preset test|small|full (small), and every setting of `samestep config gan`. In place of --nproc N,
`torchrun --nproc_per_node=N scripts/gan/train_ddp.py ...` works as well.
"""

import sys

from samestep.cli.main import main

DEFAULTS = ["--preset", "small"]

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["train", "gan", *DEFAULTS, *sys.argv[1:]]))
