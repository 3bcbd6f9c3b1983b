"""The cleanup of everything the tests start, and one SLURM cluster for all tests that need it."""

from collections.abc import Iterator

import pytest

from system.cleanup import MARK, ProcessCleanup
from system.cluster import Cluster


@pytest.fixture(scope="session", autouse=True)
def process_cleanup() -> Iterator[None]:
    cleanup = ProcessCleanup()
    yield
    cleanup.end()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp(f"slurm-{MARK}-")).running() as cluster:
        yield cluster
