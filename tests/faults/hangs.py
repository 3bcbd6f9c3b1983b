"""Stuck ranks under every launcher, with a table: named rightly? how soon? is everything over then?

PYTHONPATH=tests python -m faults.hangs [--launchers samestep torchrun mpich openmpi srun plain]
                                        [--faults data forward held save before skip spin stopped] [--ranks 0 1]
                                        [--device cuda:0]

Each has a limit of ten seconds configured. `plain` is a hand-written loop under torchrun, looked at for a minute.
Several runs share the machine, since all they do is wait. Ends non-zero when a culprit is not named, or anything stays.
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

from faults import plain_hang, stuck
from samestep.core.records import read_json, write_json
from samestep.core.rundir import RunDir
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from system.cluster import Cluster

LIMIT = 10.0
FAULTS = ("data", "forward", "held", "save", "before", "skip", "spin", "stopped")
AT_ONCE = 4
PATIENCE = 120.0
PLAIN = 60.0
_MARK = "SAMESTEP_HANG"


@dataclass(frozen=True)
class Launcher:
    """How two ranks of a command are started."""

    words: Sequence[str]
    env: Mapping[str, str]
    after: Sequence[str] = ()
    """Words that come last."""


@dataclass
class Outcome:
    """What came of one fault."""

    launcher: str
    fault: str
    rank: int
    named: bool = False
    verdict: float | None = None
    """Seconds from the fault to the sentence."""
    over: float | None = None
    """Seconds from the fault to the launcher's end; None: it had to be killed."""
    code: int | None = None
    orphans: int = 0
    why: str = ""
    """What `samestep why` says of the run."""
    sentence: str = ""

    @property
    def good(self) -> bool:
        """As promised; of the plain loop nothing is."""
        ended = self.code not in (None, 0) and not self.orphans
        return self.launcher == "plain" or (self.named and ended and self.why == "hung")

    def row(self) -> str:
        """For a table in Markdown."""
        seconds = ["-" if s is None else f"{s:.0f} s" for s in (self.verdict, self.over)]
        code = "killed by us" if self.code is None else self.code
        named = "yes" if self.named else "no"
        cells = [self.launcher, self.fault, self.rank, named, *seconds, code, self.orphans, self.why or "-"]
        return f"| {' | '.join(map(str, cells))} |"


@contextmanager
def launchers(names: Sequence[str], folder: Path) -> Iterator[dict[str, Launcher]]:
    """Those that were asked for; a SLURM cluster is up meanwhile if srun is among them."""
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    train = [sys.executable, "-m", "samestep", "train", stuck.NAME]
    found = {
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
            words = ["srun", "--nodes=2", "--ntasks-per-node=1", "--overlap", "--kill-on-bad-exit=1", *train]
            found["srun"] = Launcher(words, own)
        yield found


def torchrun(*words: str) -> list[str]:
    """torchrun's words, with a port of their own."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={port}", *words]


def attempt(name: str, fault: str, rank: int, device: str, folder: Path, known: Mapping[str, Launcher]) -> Outcome:
    """One fault under one launcher."""
    place = folder / f"{name}-{fault}-{rank}"
    place.mkdir()
    moment, mark = place / "moment", f"{place.name}-{os.getpid()}"
    settings = stuck.settings(place, LIMIT, fault=fault, at_rank=rank, name="run", moment=str(moment))
    settings["watch"] = {"limit": LIMIT, "start": 60.0}
    settings["distributed"]["device"] = device
    write_json(place / "config.yaml", settings)
    launcher = known.get(name) or known["samestep"]
    if name == "plain":
        words = torchrun(plain_hang.__file__, fault, str(moment))
    elif name == "torchrun":
        words = [*torchrun("-m", *launcher.words[2:]), f"--config={place / 'config.yaml'}"]
    else:
        words = [*launcher.words, f"--config={place / 'config.yaml'}", *launcher.after]
    with open(place / "printed.txt", "wb") as printed:
        env = {**launcher.env, _MARK: mark}
        process = subprocess.Popen(words, stdout=printed, stderr=printed, env=env, start_new_session=True)
    outcome = Outcome(name, fault, rank)
    outcome.code = _wait(process, moment, PLAIN if name == "plain" else PATIENCE)
    began = float(moment.read_text()) if moment.exists() else time.time()
    outcome.over = None if outcome.code is None else time.time() - began
    outcome.orphans = 0 if outcome.code is None else _orphans(mark)
    _kill(mark)
    stall = read_json(RunDir(place / "run").stall_report) or {}
    outcome.sentence, outcome.named = stall.get("sentence", ""), stall.get("rank") == rank
    outcome.verdict = stall["time"] - began if stall else None
    outcome.why = diagnose(collect_evidence(RunDir(place / "run"))).verdict if stall else ""
    return outcome


def _wait(process: subprocess.Popen[bytes], moment: Path, patience: float) -> int | None:
    """The exit code; None for one that hangs so many seconds after the fault."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and not moment.exists() and time.monotonic() < end:
        time.sleep(0.05)
    try:
        return process.wait(patience)
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
    """How many processes of an attempt live on; a second is allowed for what is being ended."""
    end = time.monotonic() + 1.0
    while (left := _marked(mark)) and time.monotonic() < end:
        time.sleep(0.05)
    return len(left)


def _kill(mark: str) -> None:
    for process in _marked(mark):
        os.kill(process, signal.SIGKILL)


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["samestep", "torchrun", "mpich", "openmpi", "srun", "plain"]
    parser.add_argument("--launchers", nargs="+", default=everything, choices=everything)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1], help="which rank is stuck")
    parser.add_argument("--device", default="cpu", help="cuda:0: the ranks share one card")
    asked = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="samestep-hangs-"))
    with launchers(asked.launchers, folder) as known, ThreadPoolExecutor(AT_ONCE) as pool:
        tries = [(name, fault, rank) for name in asked.launchers for rank in asked.ranks for fault in asked.faults]
        done = [pool.submit(attempt, *each, asked.device, folder, known) for each in tries]
        print("| launcher | fault | rank | named | verdict after | over after | exit code | orphans | why |")
        print("|---|---|---|---|---|---|---|---|---|", flush=True)
        outcomes = []
        for future in done:
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
