"""`samestep train RECIPE ...` and `samestep train --resume RUN`, in this process or, with --nproc, in several.

Training is imported only once it begins here: whoever launches workers does not need it, and Ctrl-C while torch is
being imported should not end in a traceback.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from samestep.core import launch_env
from samestep.core.config.command_line import take
from samestep.core.errors import EXIT_DONE, EXIT_PREEMPTED, UserError
from samestep.core.parent import stop_with
from samestep.world.rank_discovery import RankInfo, discover

HELP = """samestep train RECIPE [--nproc N] [--preset NAME] [--config FILE] [key=value | --key value ...]
samestep train RECIPE --nproc N --nodes M --rdzv HOST:PORT [--node-rank K] ...       (the same on each of M machines)
samestep train --resume RUN [--nproc N] [settings that may change, such as max_time=2h]

RECIPE is a recipe's name, the import path of your own (my_package.my_recipe), or a file (my_recipe.py).
`samestep config RECIPE` lists every setting.

--nproc         so many processes on this machine; auto: one for each GPU, or two on a CPU. Without it: this process
                alone. `torchrun --nproc_per_node=2 -m samestep train RECIPE ...` works as well
--max-restarts  with --nproc: how often a failed run starts again from its last checkpoint (0); one that ran out of
                memory always does, with half the batch_size and the same global batch
--grace         with --nproc: seconds that a run has to stop and save after Ctrl-C or SIGTERM (30)
--nodes         so many machines, or LEAST:MOST, which may then leave and join; --nproc (auto) is for each of them
--rdzv          with --nodes: where they meet, HOST:PORT; HOST is the first machine
--node-rank     with --nodes: place of this machine among them, the first is 0; without it any order will do
--join-timeout  with --nodes: seconds that they wait for each other (300)"""
LAUNCHING = ("nproc", "max-restarts", "grace", "nodes", "rdzv", "node-rank", "join-timeout")
TORCHRUN_GRACE = 30.0
"""Seconds to stop in good order after torchrun itself was killed; it allows as many when it is stopped."""


def run(words: Sequence[str]) -> int:
    """Train; exit code 0 done, 2 user error, 75 preempted and resumable."""
    if not words or words[0] in ("-h", "--help"):
        print(HELP)
        return EXIT_DONE
    options, rest = take(words, LAUNCHING)
    with _leaving_quietly():
        return _launch(options, rest) if options else _work(rest)


def _launch(options: Mapping[str, str], words: Sequence[str]) -> int:
    """Start workers that run the same command without the launching options."""
    from samestep.launch.launcher import GRACE, Launcher, parse_nproc
    from samestep.launch.nodes.options import parse_nodes

    nodes = parse_nodes(options)
    if not options.keys() & {"nproc", "nodes"}:
        raise UserError(f"--{next(iter(options))} is for launching several processes; add --nproc N, or leave it out")
    _require_no_launcher("--nodes" if "nodes" in options else "--nproc")
    folder = os.environ.get(launch_env.FOLDER)  # of the program that called this one, if one did
    launch = Launcher(
        ["-m", "samestep", "train", *words],
        parse_nproc(options.get("nproc", "auto")),
        max_restarts=int(_number(options, "max-restarts", 0)),
        grace=_number(options, "grace", GRACE),
        folder=Path(folder) if folder else None,
        nodes=nodes,
    )
    return launch.run()


def _require_no_launcher(word: str) -> None:
    """Refuse to launch from what is a rank already: every rank would start a run of its own, or its nodes once more."""
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        raise UserError(f"this process is one of several that a launcher has started; leave out {word}")
    place = discover(os.environ)
    if place.size > 1:
        raise UserError(
            f"{place.launcher} has started {place.size} of these processes, and each is a rank of the run already; "
            f"leave out {word}, or start a single one"
        )


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, str(default))
    if not text.replace(".", "", isinstance(default, float)).isdigit():
        kind = "number" if isinstance(default, float) else "whole number"
        raise UserError(f"--{name} must be a {kind} of at least 0, not {text!r}")
    return float(text)


def _work(words: Sequence[str]) -> int:
    """Train in this process: alone, or as one of the ranks that a launcher started."""
    _stop_with_launcher(os.environ)
    from samestep.cli.args import chosen
    from samestep.train.session.entry import enter

    code = enter(lambda: chosen(words))
    if code not in (EXIT_DONE, EXIT_PREEMPTED) and "RANK" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # the group of a failed rank is broken: parting from it in good order could take for ever
    return code


@contextmanager
def _leaving_quietly() -> Iterator[None]:
    """Until somebody else listens, a request to stop just ends this process: there is nothing to save yet."""
    try:
        place = discover(os.environ)  # now: ranks add to the environment, and then it looks like another launcher's
    except UserError:
        place = RankInfo("unknown")
    leave = partial(_leave, place)
    before = {number: signal.signal(number, leave) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(place: RankInfo, number: int, frame: FrameType | None) -> None:
    if place.rank == 0:
        with suppress(OSError):
            os.write(2, b"samestep: stopped before training began\n")
    # srun and mpiexec tell of the largest code: with 75, a rank that is stopped because another one failed would make
    # the failure look like a stop. There, as under torchrun, the run directory tells that the run is not done.
    os._exit(EXIT_DONE if place.job else launch_env.preempted_code(os.environ))


def _stop_with_launcher(env: Mapping[str, str]) -> None:
    """No rank outlives the process that started it, if that was a launcher of this machine."""
    if launch_env.PARENT in env:
        stop_with(int(env[launch_env.PARENT]), float(env[launch_env.GRACE]))
    elif "TORCHELASTIC_RUN_ID" in env:
        stop_with(os.getppid(), TORCHRUN_GRACE)
