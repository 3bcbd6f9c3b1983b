"""One SLURM cluster for all tests that need it."""

from collections.abc import Iterator

import pytest

from system.cluster import PROGRAMS, Cluster
from system.needs import do_without, require


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require("SLURM", PROGRAMS, root=True)
    cluster = Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        try:
            cluster.start()
        except PermissionError as error:  # root, but in a container that may not make devices
            do_without("SLURM", str(error))
        yield cluster
    finally:
        cluster.stop()
