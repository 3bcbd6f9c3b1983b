"""Files are written without waiting for the disk, in the process of the tests and in workers forked for them.

A save waits some milliseconds for each of its files, hundreds of times in a short run. What is written can be read at
once without that, also after the process was killed: only a machine that loses power could tell, and no test takes that
away. Commands that tests start as a shell does wait as always.
"""

import os


def skip_disk_waits() -> None:
    """From here on `os.fsync` only refuses what is no open file."""
    os.fsync = _is_open


def _is_open(file: int) -> None:
    os.fstat(file)
