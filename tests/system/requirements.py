"""Programs that a test requires: without them it is skipped, or fails with SAMESTEP_REQUIRE_SYSTEM=1."""

import os
from collections.abc import Sequence
from pathlib import Path
from shutil import which
from typing import NoReturn

import pytest

import samestep

MODULES = os.pathsep.join([str(Path(__file__).parents[1]), str(Path(samestep.__file__).parents[1])])
"""PYTHONPATH of what a test starts by its own command: the tests, and samestep as the tests themselves have it."""

INSTALL = "scripts/install-system-deps"
"""The command that installs them."""


def require(what: str, programs: Sequence[str], *, root: bool = False) -> None:
    """Skip the test where a program is missing; fail with SAMESTEP_REQUIRE_SYSTEM=1."""
    missing = [name for name in programs if which(name) is None]
    if missing:
        skip_or_fail(what, f"{', '.join(missing)} not found; {INSTALL} installs it")
    if root and os.geteuid() != 0:
        skip_or_fail(what, "needs root")


def skip_or_fail(what: str, reason: str) -> NoReturn:
    """Skip the test; fail with SAMESTEP_REQUIRE_SYSTEM=1."""
    if os.environ.get("SAMESTEP_REQUIRE_SYSTEM") == "1":
        pytest.fail(f"{what} is required here, but: {reason}")
    pytest.skip(f"{what}: {reason}")
