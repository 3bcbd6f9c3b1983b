"""`samestep` as a shell starts it, for trials that no fork can stand for: what it imports, inherits and may open."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.command import SENTENCE, TIMEOUT, TRACEBACK
from samestep.core.json_files import read_json

RECIPE = str(Path(__file__).parents[2] / "examples" / "sine.py")
TRAIN = ("train", RECIPE, "--preset", "verify", "--no-log.tensorboard", "--name", "a", "--distributed.device", "cpu")
COMMAND = "import sys; sys.argv[0] = 'samestep'; from samestep.cli.main import main; sys.exit(main())"


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it left."""

    code: int
    """Negative: the signal that ended it, which is SIGKILL for one that hung."""
    output: str
    status: str
    """What the run says of itself; empty without a run."""

    @property
    def sentences(self) -> list[str]:
        """What it told the user."""
        return [line for line in self.output.splitlines() if line.startswith(SENTENCE)]

    @property
    def problem(self) -> str:
        """What no command may do, however it ends; empty: it has not done that."""
        for text in (TRACEBACK, "frame #", "Exception ignored"):
            if text in self.output:
                return f"it prints {text!r}"
        if self.code == -signal.SIGKILL:
            return "it hung"
        return "its status stays running" if self.status == "running" else ""


def run(
    args: Sequence[str],
    folder: Path,
    *,
    code: str = COMMAND,
    around: Sequence[str] = (),
    before: Callable[[], object] | None = None,
) -> Ended:
    """Run `python -c CODE ARGS` in `folder`; `around` is a command that starts it, `before` is done in its process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    env.pop("XDG_CONFIG_HOME", None)
    process = subprocess.Popen(
        [*around, sys.executable, "-P", "-c", code, *args],
        cwd=folder,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        preexec_fn=before,
        start_new_session=True,
        text=True,
        errors="replace",
    )
    try:
        output, _ = process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()  # its ranks end with it
        output, _ = process.communicate()
    status = read_json(folder / "runs" / "a" / "status.json") or {}
    return Ended(process.returncode, output, str(status.get("status", "")))
