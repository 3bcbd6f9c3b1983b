"""Hanging ranks under every launcher, with a table: is the right rank named, how soon, and does everything exit?

PYTHONPATH=tests python -m faults.hangs [--launchers samestep torchrun mpich openmpi srun plain]
                                        [--faults data forward held save before skip spin stopped] [--ranks 0 1]
                                        [--device cuda:0] [--first-word]

The watchdog's limit is ten seconds. With `--first-word` limits are the defaults, and the table says how soon a run that
seems to hang is reported, and whether the right rank and line are named; runs are killed then. `plain` is a loop
written by hand, under torchrun, observed for a minute. Several runs share the machine, since all they do is wait. Exits
non-zero when a culprit is not named, or a process stays behind.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from faults import hang_faults, plain_hang
from samestep.core.json_files import read_json, write_json
from samestep.core.rundir import RunDir
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from system.cluster import Cluster

LIMIT = 10.0
FAULTS = ("data", "forward", "held", "save", "before", "skip", "spin", "stopped")
PARALLEL_RUNS = 4
TIMEOUT = 120.0
PLAIN_TIMEOUT = 60.0
"""Seconds after the fault until the plain loop is killed: without a watchdog it would hang for much longer."""
FIRST_WORD = 30.0
"""Seconds within which a hang must be reported."""
_MARK = "SAMESTEP_HANG"


@dataclass(frozen=True)
class Launcher:
    """How to start a command on two ranks."""

    args: Sequence[str]
    env: Mapping[str, str]
    last_args: Sequence[str] = ()
    """Args after all others."""


@dataclass
class Outcome:
    """The result of one fault."""

    launcher: str
    fault: str
    rank: int
    named: bool = False
    verdict_after: float | None = None
    """Seconds from the fault to the watchdog's verdict."""
    ended_after: float | None = None
    """Seconds from the fault to the launcher's exit; None: it had to be killed."""
    exit_code: int | None = None
    orphans: int = 0
    why: str = ""
    """The verdict of `samestep why`."""
    sentence: str = ""

    @property
    def good(self) -> bool:
        """Whether all went as promised; nothing is promised for the plain loop."""
        ended = self.exit_code not in (None, 0) and not self.orphans
        return self.launcher == "plain" or (self.named and ended and self.why == "hung")

    def row(self) -> str:
        """A row of the Markdown table."""
        seconds = ["-" if s is None else f"{s:.0f} s" for s in (self.verdict_after, self.ended_after)]
        code = "killed by us" if self.exit_code is None else self.exit_code
        named = "yes" if self.named else "no"
        cells = [self.launcher, self.fault, self.rank, named, *seconds, code, self.orphans, self.why or "-"]
        return f"| {' | '.join(map(str, cells))} |"


@contextmanager
def launchers(names: Sequence[str], folder: Path) -> Iterator[dict[str, Launcher]]:
    """The launchers by name; if `names` has srun, a SLURM cluster runs until the context is left."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    train = [sys.executable, "-m", "samestep", "train", hang_faults.NAME]
    known = {
        "samestep": Launcher(train, env, ["--nproc=2"]),
        "mpich": Launcher(["mpiexec.mpich", "-n", "2", *train], env),
        "openmpi": Launcher(["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "-n", "2", *train], env),
    }
    with ExitStack() as stack:
        if "srun" in names:
            place = folder / "slurm"
            place.mkdir()
            cluster = stack.enter_context(Cluster(place).running())
            own = {**cluster.env, **env, "SLURM_CONF": cluster.env["SLURM_CONF"], "MASTER_ADDR": "127.0.0.1"}
            args = ["srun", "--nodes=2", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=1", *train]
            known["srun"] = Launcher(args, own)
        yield known


def torchrun(*args: str) -> list[str]:
    """The command line of torchrun for two ranks, with a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}", *args]


@dataclass
class FirstWord:
    """What a run with the default limits says of a rank that hangs."""

    launcher: str
    fault: str
    rank: int
    after: float | None = None
    """Seconds from the fault to the report."""
    sentence: str = ""

    @property
    def named(self) -> bool:
        """Whether the right rank is named, with the line at which it hangs."""
        lines = Path(hang_faults.__file__).read_text().splitlines()
        mark = f"# hang: {self.fault}" if self.fault != "stopped" else "no more than where it was last seen"
        at = next((number for number, line in enumerate(lines, 1) if mark in line), 0)
        return f": rank {self.rank} on " in self.sentence and (not at or f"hang_faults.py:{at} " in self.sentence)

    @property
    def good(self) -> bool:
        """Whether the report came soon and is right; a save may take as long as it will."""
        return self.fault == "save" or (self.after is not None and self.after < FIRST_WORD and self.named)

    def row(self) -> str:
        """A row of the Markdown table."""
        after = "-" if self.after is None else f"{self.after:.0f} s"
        return f"| {self.launcher} | {self.fault} | {self.rank} | {after} | {'yes' if self.named else 'no'} |"


def first_word(name: str, fault: str, rank: int, device: str, folder: Path, known: Mapping[str, Launcher]) -> FirstWord:
    """Run one fault with the default limits until it is reported."""
    place, moment, process = _start(name, fault, rank, device, folder, known, default_limits=True)
    found, printed = FirstWord(name, fault, rank), place / "printed.txt"
    end = time.monotonic() + TIMEOUT
    while process.poll() is None and time.monotonic() < end and not found.sentence:
        time.sleep(0.1)
        lines = printed.read_text(errors="replace").splitlines()
        found.sentence = next((line for line in lines if "no progress for" in line), "")
    if found.sentence:
        found.after = time.time() - float(moment.read_text())
    _kill(f"{place.name}-{os.getpid()}")
    process.wait()
    return found


def run_fault(name: str, fault: str, rank: int, device: str, folder: Path, known: Mapping[str, Launcher]) -> Outcome:
    """Run one fault under one launcher."""
    place, moment, process = _start(name, fault, rank, device, folder, known)
    mark = f"{place.name}-{os.getpid()}"
    outcome = Outcome(name, fault, rank)
    outcome.exit_code = _wait(process, moment, PLAIN_TIMEOUT if name == "plain" else TIMEOUT)
    began = float(moment.read_text()) if moment.exists() else time.time()
    outcome.ended_after = None if outcome.exit_code is None else time.time() - began
    outcome.orphans = 0 if outcome.exit_code is None else _orphans(mark)
    _kill(mark)
    stall = read_json(RunDir(place / "run").stall_report) or {}
    outcome.sentence, outcome.named = stall.get("sentence", ""), stall.get("rank") == rank
    outcome.verdict_after = stall["time"] - began if stall else None
    outcome.why = diagnose(collect_evidence(RunDir(place / "run"))).verdict if stall else ""
    return outcome


def _start(
    name: str,
    fault: str,
    rank: int,
    device: str,
    folder: Path,
    known: Mapping[str, Launcher],
    *,
    default_limits: bool = False,
) -> tuple[Path, Path, subprocess.Popen[bytes]]:
    """Start a run with a fault; its folder, the file with the time of the fault, and its process."""
    place = folder / f"{name}-{fault}-{rank}"
    place.mkdir()
    moment, mark = place / "moment", f"{place.name}-{os.getpid()}"
    settings = hang_faults.settings(place, LIMIT, fault=fault, at_rank=rank, name="run", moment=str(moment))
    settings["distributed"]["device"] = device
    if default_limits:
        del settings["watch"]
    write_json(place / "config.yaml", settings)
    launcher = known.get(name) or known["samestep"]
    if name == "plain":
        args = torchrun(plain_hang.__file__, fault, str(moment))
    elif name == "torchrun":
        args = [*torchrun("-m", *launcher.args[2:]), f"--config={place / 'config.yaml'}"]
    else:
        args = [*launcher.args, f"--config={place / 'config.yaml'}", *launcher.last_args]
    with open(place / "printed.txt", "wb") as printed:
        env = {**launcher.env, _MARK: mark}
        return place, moment, subprocess.Popen(args, stdout=printed, stderr=printed, env=env, start_new_session=True)


def _wait(process: subprocess.Popen[bytes], moment: Path, timeout: float) -> int | None:
    """The exit code; None if the process still hangs `timeout` seconds after the fault and had to be killed."""
    end = time.monotonic() + TIMEOUT
    while process.poll() is None and not moment.exists() and time.monotonic() < end:
        time.sleep(0.05)
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def _marked(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{_MARK}={mark}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def _orphans(mark: str) -> int:
    """How many processes of a run are still alive, after a second for those that are exiting."""
    end = time.monotonic() + 1.0
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return len(left)


def _kill(mark: str) -> None:
    for process in _marked(mark):
        os.kill(process, signal.SIGKILL)


def main() -> int:
    """Run all faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["samestep", "torchrun", "mpich", "openmpi", "srun", "plain"]
    parser.add_argument("--launchers", nargs="+", default=everything, choices=everything)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1], help="the ranks that hang, one after the other")
    parser.add_argument("--device", default="cpu", help="cuda:0: the ranks share one card")
    parser.add_argument("--first-word", action="store_true", help="how soon a hang is reported, with default limits")
    options = parser.parse_args()
    run = first_word if options.first_word else run_fault
    columns = ["launcher", "fault", "rank"]
    columns += (
        ["first word after", "rank and line"]
        if options.first_word
        else ["named", "verdict after", "over after", "exit code", "orphans", "why"]
    )
    folder = Path(tempfile.mkdtemp(prefix="samestep-hangs-"))
    with launchers(options.launchers, folder) as known, ThreadPoolExecutor(PARALLEL_RUNS) as pool:
        cases = [
            (name, fault, rank) for name in options.launchers for rank in options.ranks for fault in options.faults
        ]
        futures = [pool.submit(run, *case, options.device, folder, known) for case in cases]
        print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
        outcomes: list[Outcome | FirstWord] = []
        for future in futures:
            outcomes.append(future.result())
            print(outcomes[-1].row(), flush=True)
    print()
    for outcome in outcomes:
        print(f"{outcome.launcher} {outcome.fault} {outcome.rank}: {outcome.sentence}")
    bad = [outcome for outcome in outcomes if not outcome.good]
    print(f"{len(bad)} of {len(outcomes)} not as promised; everything is in {folder}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
