"""The launcher of a host that the first host started by ssh: `python -m samestep.launching.remote`.

It reads what to do, and the secret of the launch, from standard input. When that ends, the ssh or the launcher that
started it is gone, so it stops its ranks in good order and ends.
"""

import json
import os
import signal
import sys
import threading
from typing import BinaryIO

from samestep.core import launch_env
from samestep.core.errors import EXIT_USER, UserError, print_error
from samestep.core.typed_json import from_json
from samestep.launching.launcher import Launcher, parse_nproc
from samestep.launching.nodes.ssh import Request


def main() -> int:
    """Run this host's ranks; returns the exit code."""
    source = _take_standard_input()
    try:
        request = from_json(Request, json.loads(source.readline()))
    except ValueError:
        print_error("the first host sent no request; it has another version of samestep: install the same on all")
        return EXIT_USER
    threading.Thread(target=_stop_at_end, args=(source,), name="watch ssh", daemon=True).start()
    os.environ[launch_env.SECRET] = request.secret
    try:
        return Launcher(request.args, parse_nproc(request.nproc), grace=request.grace, nodes=request.nodes).run()
    except UserError as error:
        print_error(str(error))
        return EXIT_USER


def _take_standard_input() -> BinaryIO:
    """Standard input, which the ranks do not inherit."""
    source = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return os.fdopen(source, "rb")


def _stop_at_end(source: BinaryIO) -> None:
    source.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
