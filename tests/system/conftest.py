"""One SLURM cluster for all tests that need it."""

from collections.abc import Iterator

import pytest

from system.cluster import PROGRAMS, Cluster
from system.needs import require


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("SLURM", PROGRAMS, root=True)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
