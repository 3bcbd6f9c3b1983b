#!/usr/bin/env python
"""Is DDP set up well? `samestep doctor --test ddp`: the basic checks, all-reduce values, gradients as one process has.

    python scripts/test_ddp_setup.py                       two ranks, or one for each GPU
    torchrun --nproc_per_node=4 scripts/test_ddp_setup.py

Also --nproc N, --device cpu, and every option of `samestep doctor --help`.
"""

import sys

from samestep.cli.main import main

if __name__ == "__main__":
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
    else:
        sys.exit(main(["doctor", "--test", "ddp", *sys.argv[1:]]))
