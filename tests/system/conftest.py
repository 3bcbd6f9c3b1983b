"""One keeper and one SLURM cluster for all tests that need them."""

from collections.abc import Iterator

import pytest

from system.cluster import Cluster
from system.keeper import MARK, Keeper


@pytest.fixture(scope="session", autouse=True)
def keeper() -> Iterator[None]:
    keeper = Keeper()
    yield
    keeper.end()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp(f"slurm-{MARK}-")).running() as cluster:
        yield cluster
