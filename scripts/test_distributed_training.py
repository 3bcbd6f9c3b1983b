#!/usr/bin/env python
"""Are these machines fit for distributed training? `samestep doctor` under the name and the flags people know.

    python scripts/test_distributed_training.py --test basic
    torchrun --nproc_per_node=4 scripts/test_distributed_training.py --test all

Also --nproc N, --device cpu, and every option of `samestep doctor --help`.
"""

import sys

from samestep.cli.main import main

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["doctor", *sys.argv[1:]]))
