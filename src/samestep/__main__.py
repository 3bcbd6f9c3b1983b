"""`python -m samestep`, and what torchrun starts: `torchrun ... -m samestep train ...`."""

import sys

from samestep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
