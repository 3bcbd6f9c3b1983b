"""Whether somebody has a run, asked in a way that nobody notices: no lock is taken, not even for a moment."""

import fcntl
import json
import os
import struct
import sys
from pathlib import Path

from samestep.core.records import Json
from samestep.doctor.why.evidence import Lock

_FLOCK = "hhqqi4x"  # type, whence, start, length, process: `struct flock` of 64-bit Linux


def look(path: Path) -> Lock:
    """Who holds the lock at `path`, or held it last."""
    try:
        with open(path, "rb") as file:
            known = _holder(file.read().decode(errors="replace"))
            return Lock(_is_held(file.fileno()), str(known.get("host", "")), int(known.get("pid", 0)))
    except OSError:
        return Lock()


def _is_held(handle: int) -> bool | None:
    """None where the file system or the operating system does not tell."""
    if sys.platform != "linux":
        return None
    wanted = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(handle, fcntl.F_GETLK, wanted)
    except OSError:
        return None
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _holder(text: str) -> Json:
    try:
        return json.loads(text)
    except ValueError:  # whoever wrote it was killed at that very moment
        return {}
