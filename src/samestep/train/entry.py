"""Where every worker enters: meet the other ranks, train, and end with the right word and exit code."""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from samestep.core.config import build
from samestep.core.errors import EXIT_DONE, EXIT_FAILURE, EXIT_PREEMPTED, RunFailed, UserError, complain
from samestep.core.logging import FAILURES, start_logging
from samestep.train.finding import find_recipe
from samestep.train.loop import Outcome
from samestep.train.recipe import Recipe
from samestep.train.session import Session
from samestep.world.world import PeerFailed, World

logger = logging.getLogger(FAILURES)


def enter(choose: Callable[[], tuple[str, Recipe, Any]]) -> int:
    """Train what `choose` names, on every rank; exit code 0 done, 2 user error, 75 preempted and resumable."""
    start_logging(None, show=None)  # until there is a run directory to log to
    world = World.single()
    try:
        world = World.meet()
        with world.together("reading the configuration"):
            name, recipe, config = choose()
        world.connect(config.distributed.device, config.distributed.backend, config.distributed.timeout)
        outcome = Session(name, recipe, config, world).train()
        world.leave()
    except BaseException as error:
        return _failed(error, world)
    return EXIT_DONE if outcome is Outcome.DONE else preempted_code(os.environ)


def train_with(recipe: str, config: Mapping[str, Any]) -> int:
    """Train with a configuration given as plain data: for workers that another program starts."""
    found = find_recipe(recipe)
    return enter(lambda: (recipe, found, build(found.config, config)))


def preempted_code(env: Mapping[str, str]) -> int:
    """75, but 0 under stock torchrun, which takes any other code for a failure and restarts the run."""
    return EXIT_DONE if "TORCHELASTIC_RUN_ID" in env and not env.get("SAMESTEP_LAUNCHER") else EXIT_PREEMPTED


def _failed(error: BaseException, world: World) -> int:
    """The exit code of a failure, told to the peers and shown as the user needs it."""
    if not isinstance(error, UserError | RunFailed | PeerFailed):
        try:
            world.raise_peer_failure()  # a broken connection is only the echo of what a peer reported
        except PeerFailed as first:
            error = first
    world.report_failure(error)
    if isinstance(error, UserError | RunFailed | PeerFailed):
        logger.error("%s", error)
        complain(str(error))
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        complain("interrupted twice: ended at once, without a save")
        return 130
    logger.error("%s", error, exc_info=error)
    traceback.print_exception(error, file=sys.stderr)
    return EXIT_FAILURE
