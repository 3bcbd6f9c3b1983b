"""Imports without garbage collection."""

import gc
import subprocess
import sys

from samestep.core.imports import uncollected_imports

FRESH = """
import gc
from samestep.core.imports import uncollected_imports
frozen = gc.get_freeze_count()
with uncollected_imports():
    assert not gc.isenabled()
    import tomllib
assert gc.isenabled()
assert gc.get_freeze_count() > frozen
"""


def test_a_fresh_process_never_looks_through_what_it_imported() -> None:
    subprocess.run([sys.executable, "-c", FRESH], check=True)


def test_objects_of_a_program_that_has_torch_are_left_alone() -> None:
    import torch  # noqa: F401

    frozen = gc.get_freeze_count()
    with uncollected_imports():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen
