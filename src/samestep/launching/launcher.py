"""Launches on this machine, or on this one among several: start the ranks, show the first failure, restart.

An attempt (attempt.py) runs the ranks of this node once. The restart policy (restart_policy.py) decides what follows
from its end: here when there is one node, on the first node for all when there are several (nodes/).
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core import launch_env
from samestep.core.child_python import import_variables
from samestep.core.errors import EXIT_PREEMPTED, UserError
from samestep.core.imports import uncollected_imports
from samestep.core.parent import terminate_with_parent
from samestep.core.secret import find_secret, new_secret
from samestep.core.store_server import LOCALHOST, serve_store
from samestep.launching.assignment import AttemptDeadline, NodeAssignment
from samestep.launching.node_runner import NodeRunner
from samestep.launching.nodes.options import NodeOptions
from samestep.launching.restart_policy import AttemptEnd, Decision, RestartPolicy
from samestep.launching.stop_requests import StopRequests

GRACE = 30.0
"""Seconds that workers have to stop in good order."""
_FORCED = 15.0
"""Seconds beyond the grace time after which a launcher whose own parent is gone must have ended everything."""


@dataclass(frozen=True)
class Launcher:
    """A Python command line to run as the ranks of one run, as often as it takes."""

    args: Sequence[str]
    """What comes after `python`."""
    nproc: int
    max_restarts: int = 0
    grace: float = GRACE
    folder: Path | None = None
    """For exit reports and output of the ranks; by default a temporary folder, kept only when it is needed."""
    nodes: NodeOptions | None = None
    """How many nodes there are and where they meet; None: only this one."""
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self) -> int:
        """All attempts; returns the exit code of the whole: 0 done, 2 user error, 75 preempted and resumable."""
        folder = self.folder or Path(tempfile.mkdtemp(prefix="samestep-launch-"))
        parent = os.environ.get(launch_env.PARENT)
        with StopRequests(self.grace) as stop, _environment_set(self._environment(folder)):
            if parent is not None:  # another program started this one, and may end before it
                terminate_with_parent(int(parent), self.grace + _FORCED, by_kernel=False)
            runner = NodeRunner(self.args, self.nproc, folder, stop)
            try:
                code = self._attempts(runner)
            finally:
                if self.folder is None and not runner.needs_folder:
                    shutil.rmtree(folder, ignore_errors=True)
        return code

    def _attempts(self, runner: NodeRunner) -> int:
        policy = RestartPolicy(self.max_restarts, self.grace)
        if self.nodes is None:
            return _run_single_node(runner, policy, self.launch_id)
        from samestep.launching.nodes.member import run_node

        return run_node(self.nodes, runner, policy, self.launch_id)

    def _environment(self, folder: Path) -> Mapping[str, str]:
        return {
            **import_variables(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, _cores() // self.nproc)),
            "PYTHONFAULTHANDLER": os.environ.get("PYTHONFAULTHANDLER") or "1",  # a crash shows where
            "TORCHELASTIC_SIGNALS_TO_HANDLE": "",  # the launcher handles signals, not the agent
            launch_env.LAUNCHER: "local" if self.nodes is None else "samestep",
            launch_env.FOLDER: str(folder),
            launch_env.PARENT: str(os.getpid()),
            launch_env.GRACE: str(self.grace),
            launch_env.SECRET: self._secret(),
        }

    def _secret(self) -> str:
        """New if this launcher starts all processes of the launch; else that of the user."""
        is_new = self.nodes is None or self.nodes.hosts
        return new_secret() if is_new else os.fsdecode(find_secret(os.environ))


def _run_single_node(runner: NodeRunner, policy: RestartPolicy, launch_id: str) -> int:
    """Try until it is done or there is no point in another attempt."""
    with uncollected_imports():
        import torch._C._distributed_c10d  # noqa: F401

    decision = Decision(None)
    while decision.code is None:
        stop = runner.stop
        if stop.reason is not None:
            runner.show(Decision(EXIT_PREEMPTED))  # before anything was started
            return EXIT_PREEMPTED
        store = serve_store(only_here=True)
        assignment = NodeAssignment(LOCALHOST, store.port, launch_id, runner.nproc)
        failures = runner.attempt(assignment, decision.batch_size, AttemptDeadline())
        decision = policy.decide(AttemptEnd(failures, stop.reason is not None, stop.at_once))
        runner.show(decision)
    return decision.code


def parse_nproc(text: str) -> int:
    """How many workers `--nproc` asks for; `auto` is one for each GPU, or two on a CPU of several cores."""
    if text == "auto":
        import torch

        return torch.cuda.device_count() or torch.xpu.device_count() or min(2, _cores())
    if not text.isdigit() or int(text) < 1:
        raise UserError(f"--nproc must be auto or a whole number of at least 1, not {text!r}")
    return int(text)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _environment_set(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables that the workers inherit; afterwards this process has its own again."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
