"""One yard for the whole suite, so that the uninterrupted runs are made once."""

from pathlib import Path

import pytest

from faults.yard import Yard


@pytest.fixture(scope="session")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Yard:
    return Yard(Path(tmp_path_factory.mktemp("faults")))
