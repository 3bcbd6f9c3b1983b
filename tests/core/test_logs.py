"""Messages go to a file and to the terminal, also those from before there was a file."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from samestep.core.logs import start_logging, stop_logging

logger = logging.getLogger("samestep.planted")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    stop_logging()


def test_what_is_logged_early_is_not_lost(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rank_0.log"
    start_logging(None, show=None)
    logger.warning("3 records are left out")
    logger.info("a detail")
    assert capfd.readouterr() == ("", "")
    start_logging(file, show="warning")
    logger.warning("later")
    assert capfd.readouterr().err == "WARNING: 3 records are left out\nWARNING: later\n", "in order, by its level"
    assert [line.split(": ", 1)[1] for line in file.read_text().splitlines()] == [
        "3 records are left out",
        "a detail",
        "later",
    ]
    start_logging(file, show="warning")
    assert capfd.readouterr().err == "", "it is said once"


def test_what_is_never_read_is_not_kept_for_ever(capfd: pytest.CaptureFixture[str]) -> None:
    start_logging(None, show=None)
    for number in range(5000):
        logger.warning("message %s", number)
    start_logging(None, show="warning")
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1000 and lines[0] == "WARNING: message 0", "the first ones tell the cause"
    start_logging(None, show=None)
    logger.warning("of another run")
    stop_logging()
    start_logging(None, show="warning")
    assert capfd.readouterr().err == ""
