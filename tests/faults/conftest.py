"""One `FaultRuns` for the whole suite, so that the uninterrupted runs are made only once."""

from pathlib import Path

import pytest

from faults.fault_runs import FaultRuns


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> FaultRuns:
    return FaultRuns(Path(tmp_path_factory.mktemp("faults")))
