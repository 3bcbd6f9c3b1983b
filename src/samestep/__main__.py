"""`python -m samestep`, and what torchrun starts: `torchrun ... -m samestep train ...`."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] == os.getcwd():
    del sys.path[0]  # `-m` puts it there; a file in the working directory could replace any module that is imported

from samestep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
