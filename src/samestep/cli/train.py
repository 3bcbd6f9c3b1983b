"""`samestep train RECIPE ...` and `samestep train --resume RUN`, in this process or, with --nproc, in several.

Training is imported only when it begins in this process: a launcher of workers does not need it, and Ctrl-C during the
import of torch should not print a traceback.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from samestep.cli.help import asks_for_help
from samestep.core import launch_env
from samestep.core.config import split_options
from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED, UserError
from samestep.core.imports import uncollected_imports
from samestep.core.open_files import PER_RANK, require_open_files
from samestep.core.output import is_terminal, print_safely, print_text
from samestep.core.parent import terminate_with_parent
from samestep.core.stop_signals import heeded
from samestep.world.rank_discovery import RankInfo, discover

HELP = """samestep train RECIPE [--nproc N] [--preset NAME] [--config FILE] [key=value | --key value ...]
samestep train RECIPE --nproc N --nodes M --rdzv HOST:PORT [--node-rank K] ...       (the same on each of M machines)
samestep train RECIPE --nproc N --hosts THIS,OTHER,...                               (starts the other machines by ssh)
samestep train --resume RUN [--nproc N] [--recipe RECIPE] [settings that may change, such as max_time=2h]
samestep train --resume RUN max_steps=2000 [--extend]           (more steps or epochs, also for a run that has finished)

RECIPE is a recipe's name, the import path of your own (my_package.my_recipe), or a file (my_recipe.py).
`samestep config RECIPE` lists every setting.

--recipe        with --resume: the run's recipe. Needed on a machine that cannot read the run, and for a recipe that has
                moved, or that neither ships with samestep nor was started by you before
--config        settings from a file, .yaml or .json; or --config-path FOLDER --config-name NAME
--allow-env     environment variables that this file may read with ${oc.env:NAME}, as NAME,NAME; none by default
--nproc         number of processes on this machine; auto: one for each GPU, or two on a CPU. Without it: this process
                alone. `torchrun --nproc_per_node=2 -m samestep train RECIPE ...` works as well
--max-restarts  with --nproc: how often a failed run starts again from its last checkpoint (0); one that ran out of
                memory always does, with half the batch_size and the same global batch
--grace         with --nproc: seconds that a run has to stop and save after Ctrl-C or SIGTERM (30)
--hosts         this machine and others, with commas in between: starts those by ssh with your keys, in the same folder
                with the same Python. They reach this one by the first name; --nproc (auto) is for each of them
--nodes         number of machines, or LEAST:MOST, which may then leave and join; --nproc (auto) is for each of them
--rdzv          with --nodes: address of the rendezvous, HOST:PORT; HOST is the first machine
--node-rank     with --nodes: rank of this machine, 0 is the first; without it ranks are given in any order
--join-timeout  with --nodes or --hosts: seconds that machines wait for each other (300)"""
LAUNCH_OPTIONS = ("nproc", "max-restarts", "grace", "hosts", "nodes", "rdzv", "node-rank", "join-timeout")
TORCHRUN_GRACE = 30.0
"""Seconds to stop and save after torchrun itself was killed; torchrun allows the same when it is stopped."""


def run(args: Sequence[str]) -> int:
    """Train; exit code 0 done, 2 user error, 75 preempted and resumable."""
    if not args or asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    options, rest = split_options(args, LAUNCH_OPTIONS)
    _say_that_it_starts()
    with _exit_on_stop_request():
        return _launch(options, rest) if options else _train(rest)


def _say_that_it_starts() -> None:
    """To somebody who looks at the terminal, since the import of torch takes a while; once for all processes."""
    was_said = {"RANK", launch_env.PARENT} <= os.environ.keys()  # by the launcher of this rank
    if is_terminal(sys.stderr) and is_first_process(os.environ) and not was_said:
        print_safely("starting; torch is loaded first, which may take a while", sys.stderr)


def is_first_process(env: Mapping[str, str]) -> bool:
    """Whether this process is rank 0, or is alone."""
    try:
        return discover(env).rank == 0
    except UserError:  # what is wrong is said where ranks find each other
        return True


def _launch(options: Mapping[str, str], args: Sequence[str]) -> int:
    """Start workers that run the same command without the launch options."""
    from samestep.launching.launcher import GRACE, Launcher, parse_nproc
    from samestep.launching.nodes.options import parse_nodes

    nodes = parse_nodes(options)
    if not options.keys() & {"nproc", "nodes", "hosts"}:
        raise UserError(f"--{next(iter(options))} is for launching several processes; add --nproc N, or leave it out")
    _require_no_launcher(next(f"--{name}" for name in ("hosts", "nodes", "nproc") if name in options))
    nproc = parse_nproc(options.get("nproc", "auto"))
    require_open_files(PER_RANK * nproc, f"--nproc {nproc}")
    folder = os.environ.get(launch_env.FOLDER)  # set if another program launched this launcher
    launch = Launcher(
        ["-m", "samestep", "train", *args],
        nproc,
        max_restarts=int(_number(options, "max-restarts", 0)),
        grace=_number(options, "grace", GRACE),
        folder=Path(folder) if folder else None,
        nodes=nodes,
    )
    return launch.run()


def _require_no_launcher(option: str) -> None:
    """Refuse to launch from a process that is already a rank: every rank would start its own run or its own nodes."""
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        raise UserError(f"this process is one of several that a launcher has started; leave out {option}")
    rank_info = discover(os.environ)
    if rank_info.size > 1:
        raise UserError(
            f"{rank_info.launcher} has started {rank_info.size} of these processes, and each is already a rank of "
            f"the run; leave out {option}, or start a single one"
        )


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, str(default))
    if not text.replace(".", "", isinstance(default, float)).isdigit():
        kind = "number" if isinstance(default, float) else "whole number"
        raise UserError(f"--{name} must be a {kind} of at least 0, not {text!r}")
    return float(text)


def _train(args: Sequence[str]) -> int:
    """Train in this process: alone, or as one of the ranks that a launcher started."""
    _stop_with_launcher(os.environ)
    with uncollected_imports():
        import torch.distributed

        from samestep.cli.args import read_start
        from samestep.train.session.entry import enter

    code = enter(lambda: read_start(args))
    has_left = code in (EXIT_DONE, EXIT_PREEMPTED) and not torch.distributed.is_initialized()
    if not has_left and "RANK" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the process group of a failed rank is broken: a clean shutdown could hang
    return code


@contextmanager
def _exit_on_stop_request() -> Iterator[None]:
    """Until training installs its signal handlers, a stop request just ends this process: there is nothing to save."""
    try:
        rank_info = discover(os.environ)  # now, because ranks later add variables that look like another launcher's
    except UserError:
        rank_info = RankInfo("unknown")
    exit_early = partial(_exit_before_training, rank_info)
    before = {number: signal.signal(number, exit_early) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_before_training(rank_info: RankInfo, number: int, frame: FrameType | None) -> None:
    if rank_info.rank == 0 and launch_env.FOLDER not in os.environ:  # a launcher says it itself
        name = signal.Signals(number).name
        with suppress(OSError):
            os.write(2, f"\nsamestep: stopped by {name} before training began; there is no run yet\n".encode())
    # srun and mpiexec return the largest exit code: with 75, a rank that is stopped because another one failed would
    # make the failure look like a stop. There, as under torchrun, the run directory shows that the run is not done.
    os._exit(EXIT_DONE if rank_info.job else launch_env.preempted_code(os.environ))


def _stop_with_launcher(env: Mapping[str, str]) -> None:
    """End this rank when the launcher that started it on this machine ends."""
    if launch_env.PARENT in env:
        terminate_with_parent(int(env[launch_env.PARENT]), float(env[launch_env.GRACE]))
    elif "TORCHELASTIC_RUN_ID" in env:
        terminate_with_parent(os.getppid(), TORCHRUN_GRACE)
