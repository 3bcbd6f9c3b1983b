"""Runs the command in a folder of its own, as the tests of the command line do; and W&B in a process of its own."""

from collections.abc import Iterator

import pytest

from cli.conftest import shell

__all__ = ["own_wandb", "shell"]


@pytest.fixture
def own_wandb() -> Iterator[None]:
    """Ends the process of W&B that this one has started: later tests would share it, and find ids of runs in use."""
    yield
    import wandb

    wandb.teardown()
