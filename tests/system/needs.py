"""What real components a test needs: without them it is skipped, or fails where they must be."""

import os
from collections.abc import Sequence
from shutil import which
from typing import NoReturn

import pytest

INSTALL = "scripts/install-system-deps"
"""The command that brings them."""


def require(what: str, programs: Sequence[str], *, root: bool = False) -> None:
    """Skip where a program is missing; fail with SAMESTEP_REQUIRE_SYSTEM=1."""
    missing = [name for name in programs if which(name) is None]
    if missing:
        do_without(what, f"{', '.join(missing)} not found; {INSTALL} brings it")
    if root and os.geteuid() != 0:
        do_without(what, "needs root")


def do_without(what: str, reason: str) -> NoReturn:
    """What a test needs cannot be had."""
    if os.environ.get("SAMESTEP_REQUIRE_SYSTEM") == "1":
        pytest.fail(f"{what} is required here, but: {reason}")
    pytest.skip(f"{what}: {reason}")
