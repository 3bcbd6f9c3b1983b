"""`python -m samestep`, and what torchrun starts: `torchrun ... -m samestep train ...`."""

import os
import sys

try:
    if not sys.flags.safe_path and sys.path[0] == os.getcwd():
        del sys.path[0]  # `-m` puts it there; a file in the working directory could replace any module that is imported
except FileNotFoundError:  # a working directory that is gone holds no files; the command refuses it with a sentence
    pass

from samestep.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
