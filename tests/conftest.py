"""Workers of all tests come from one server process that has everything imported: a launch costs milliseconds.

Nothing is collected as garbage until all tests are imported: none of it is any, and looking takes half of that time.
At the end, the tests that were skipped are listed by what they miss.
"""

import gc
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from samestep.core.compile_caches import HEADERS, TORCH, TRITON
from samestep.core.logs import stop_logging

settings.register_profile("suite", deadline=None)  # for a machine that others use too
settings.load_profile("suite")
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts by `&`
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup this one
os.environ["XDG_CONFIG_HOME"] = SETTINGS = tempfile.mkdtemp()  # the user's own is not to be written
torch.set_num_threads(1)  # small tensors on few cores: more threads only wait for each other


def pytest_configure(config: pytest.Config) -> None:
    """Start the server where tests run, and wait for no disk there: not in the process that only hands them out."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    from disk_waits import skip_disk_waits

    skip_disk_waits()
    gc.disable()
    multiprocessing.get_context("forkserver").set_forkserver_preload(["preloaded"])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # the server does not get sys.path
        forkserver.ensure_running()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is proved on 3 ranks has its proof on 2 ranks among the long tests. What needs a GPU is skipped without."""
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
    calls = [(item, item.callspec.params) for item in items if hasattr(item, "callspec")]
    on_3_ranks = {(item.path, item.originalname) for item, params in calls if params.get("nproc") == 3}
    for item, params in calls:
        if params.get("nproc") == 2 and (item.path, item.originalname) in on_3_ranks:
            item.add_marker(pytest.mark.long)


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def default_type() -> Iterator[None]:
    """A run in the tests' own process sets torch's default type; the next test has its own."""
    before = torch.get_default_dtype()
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """A run in the tests' own process logs to its terminal, which is closed by the next test."""
    stop_logging()
    yield
    stop_logging()


IMPORTS = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH", TORCH, TRITON, HEADERS)}


@pytest.fixture(autouse=True)
def own_imports() -> Iterator[None]:
    """A command in the tests' own process protects what it starts from modules of the working directory, and chooses
    folders for compiled code; the next test may start what it likes, also where a fixture of its module ran one."""
    _restore_imports()
    yield
    _restore_imports()


def _restore_imports() -> None:
    for name, value in IMPORTS.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.fixture(scope="module")
def proofs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A module's CASES on real ranks, for its `test_on_ranks`."""
    from toys import Proofs

    return Proofs(tmp_path_factory.mktemp("ranks"), request.module.CASES)


def pytest_unconfigure() -> None:
    shutil.rmtree(SETTINGS, ignore_errors=True)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    _list_skipped(terminalreporter)
    _list_reports(terminalreporter, config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]


def _list_reports(terminalreporter: pytest.TerminalReporter, folder: Path) -> None:
    """Which runs were reported as unusually slow: those that hang on purpose, and no other."""
    # Unlike glob, this goes on where another run of pytest removes an old folder.
    every = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    logs = sorted(path for path in every if path.match("rank_*.log") and path.is_file())
    reported = [path for path in logs if "which is unusual" in path.read_text(errors="replace")]
    if logs:
        terminalreporter.section("reports of slow runs")
        terminalreporter.line(f"in {len(reported)} of the logs of {len(logs)} ranks")
    for path in reported:
        terminalreporter.line(f"    {path.relative_to(folder)}")


def _list_skipped(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests were skipped, by the reason."""
    reasons: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons.setdefault(reason.removeprefix("Skipped: "), []).append(report.nodeid.rpartition("/")[2])
    if reasons:
        terminalreporter.section("not tested here")
    for reason, tests in sorted(reasons.items()):
        terminalreporter.line(f"{reason} ({len(tests)} test{'s' * (len(tests) > 1)})")
        for line in textwrap.wrap(", ".join(tests), 116, break_long_words=False, break_on_hyphens=False):
            terminalreporter.line(f"    {line}")
