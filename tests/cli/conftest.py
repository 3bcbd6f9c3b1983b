"""Runs the command as a user would, in a folder of its own."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.launching import local

EXAMPLE = Path(__file__).parents[2] / "examples" / "sine.py"
SMALL = ["--preset", "verify", "--log.every", "1", "--no-log.tensorboard"]


@dataclass
class Shell:
    """A working directory in which commands run on any number of ranks."""

    folder: Path
    launches: int = 0

    def start(self, *args: str, ranks: int = 1, env: dict[str, str] | None = None) -> local.Workers:
        """Begin `samestep ARGS` on so many ranks."""
        self.launches += 1
        preload = ["samestep.train.session.session"]
        return local.start(main, ranks, args, logs=self.folder / f"out_{self.launches}", env=env, preload=preload)

    def __call__(
        self, *args: str, ranks: int = 1, env: dict[str, str] | None = None
    ) -> tuple[Sequence[int | None], str]:
        """Run it to its end: the exit codes, and what rank 0 printed."""
        workers = self.start(*args, ranks=ranks, env=env)
        return workers.wait(60), workers.output(0)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(tmp_path)


Run = Callable[..., tuple[Sequence[int | None], str]]
