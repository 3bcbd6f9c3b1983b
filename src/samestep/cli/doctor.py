"""`samestep doctor`: checks whether this machine or cluster is fit for training. By hand or under any launcher."""

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from samestep.cli.help import asks_for_help
from samestep.core import launch_env
from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.json_files import read_json, write_json
from samestep.core.output import print_text
from samestep.world.rank_discovery import discover

HELP = """samestep doctor [--test basic|ddp|all] [--nproc N] [--out FOLDER] [--device D] [--timeout S] [--json FILE]

Checks the machines that it runs on and prints one table; the exit code is 1 when any check failed. By hand it checks
this machine; started by torchrun, srun or mpiexec it checks every host and the network between them:
`torchrun --nproc_per_node=2 -m samestep doctor`, `srun samestep doctor`, `mpiexec -n 2 samestep doctor`.

--test      basic  versions, code, devices, host names, ports, clocks, limits, the disk where runs go (the default)
            ddp    and all-reduce values, and the gradient of DDP against that of one process
            all    and speed by message size, copies between devices, a checkpoint round trip, slow ranks
--nproc     number of ranks to start here; auto: one for each GPU, or two on a CPU. Without it basic runs in this
            process alone, and the others as with auto
--out       where runs go (runs, or the working directory)
--device    auto, cpu, cuda, cuda:N or xpu (auto)
--timeout   seconds that ranks wait for each other, and time limit of each check (60)
--json      a file for the results and measurements; without it the measurements of `all` go to
            ~/.cache/samestep/machine.json, for later planning"""
TESTS = ("basic", "ddp", "all")
OPTIONS = ("test", "nproc", "out", "device", "timeout", "json")
_EXIT_CODE_FILE = "doctor.json"


def run(args: Sequence[str]) -> int:
    """Run the checks; exit code 0 when nothing failed, 1 when something did, 2 user error."""
    if asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    options, rest = split_options(args, OPTIONS)
    if rest:
        raise UserError(f"samestep doctor does not know {rest[0]!r}; it takes --{', --'.join(OPTIONS)}")
    test = options.get("test", "basic")
    if test not in TESTS:
        raise UserError(f"--test must be {', '.join(TESTS[:-1])} or {TESTS[-1]}, not {test!r}")
    is_launched = discover(os.environ).grouped
    if is_launched and "nproc" in options:
        raise UserError("this process is one of several that a launcher has started; leave out --nproc")
    if not is_launched and ("nproc" in options or test != "basic"):
        return _launch(options)
    return _check(options, test)


def _launch(options: Mapping[str, str]) -> int:
    """Start ranks here that do the same without --nproc. Rank 0 prints to this terminal, and writes its exit code."""
    from samestep.launching.launcher import Launcher, parse_nproc

    rank_args = [f"--{name}={value}" for name, value in options.items() if name != "nproc"]
    folder = Path(tempfile.mkdtemp(prefix="samestep-doctor-"))
    code = Launcher(
        ["-m", "samestep", "doctor", *rank_args], parse_nproc(options.get("nproc", "auto")), folder=folder
    ).run()
    result = read_json(folder / _EXIT_CODE_FILE)
    if result is not None:
        shutil.rmtree(folder, ignore_errors=True)
    return code or (result["code"] if result else EXIT_DONE)


def _check(options: Mapping[str, str], test: str) -> int:
    """Run the checks in this process, which may be one of several ranks."""
    timeout = _seconds(options.get("timeout", "60"))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # the table shows what fails, not C++ stack traces
    from samestep.doctor.doctor import Request, run_doctor

    out = options.get("out") or ("runs" if Path("runs").is_dir() else ".")
    keep = Path(options["json"]) if "json" in options else None
    code = run_doctor(Request(test, Path(out), options.get("device", "auto"), timeout, keep))
    if launch_env.FOLDER in os.environ and discover(os.environ).rank == 0:
        # Our launcher would report the exit of a failed rank as a crash and point to logs; the table is enough.
        write_json(Path(os.environ[launch_env.FOLDER]) / _EXIT_CODE_FILE, {"code": code})
        return EXIT_DONE
    return code


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= 3600:
        raise UserError(f"--timeout must be a number of seconds from 1 to 3600, not {text!r}")
    return seconds
