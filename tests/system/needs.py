"""What real components a test needs: without them it is skipped, or fails where they must be."""

import os
from collections.abc import Sequence
from shutil import which
from typing import NoReturn

import pytest


def require(what: str, programs: Sequence[str], *, root: bool = False) -> None:
    """Skip where a program is missing; fail with SAMESTEP_REQUIRE_SYSTEM=1."""
    missing = [name for name in programs if which(name) is None]
    reason = f"{', '.join(missing)} not installed (scripts/install-system-deps)" if missing else ""
    if not reason and root and os.geteuid() != 0:
        reason = "needs root"
    if reason:
        do_without(what, reason)


def do_without(what: str, reason: str) -> NoReturn:
    """What a test needs cannot be had."""
    if os.environ.get("SAMESTEP_REQUIRE_SYSTEM") == "1":
        pytest.fail(f"{what} is required here, but: {reason}")
    pytest.skip(f"{what}: {reason}")
