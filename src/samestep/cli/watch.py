"""`samestep watch RUN`: a run in the terminal while it trains, on any machine that sees its folder.

Torch is not imported, no lock is taken and nothing is written, so it can be left running beside the run.
"""

import sys
import time
from collections.abc import Sequence

from samestep.cli.args import all_of, parse_run
from samestep.cli.help import asks_for_help
from samestep.core.console import PlainConsole
from samestep.core.durations import parse_duration
from samestep.core.errors import EXIT_DONE, UserError
from samestep.core.near_names import did_you_mean
from samestep.core.output import is_terminal, print_text
from samestep.report.live_run import LiveRun
from samestep.report.live_view import LiveView
from samestep.report.series import matching_names
from samestep.train.record.run_record import find_run
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose

COMMAND = "samestep watch RUN [--metric NAME] [--last STEPS] [--every 2s] [--once]"
HELP = f"""{COMMAND}

Shows a run in the terminal while it trains: the curves of what its best value is of and of losses, what each rank does,
how long it will still take, the last events. The run may have been started elsewhere, on a disk that this machine sees
too. Nothing is written, and the run does not notice. Ends when the run has ended, or with Ctrl-C; the run goes on.

--metric NAME   a metric to draw, or a pattern such as 'val/*'; may be given several times
--last STEPS    draw the last steps only
--every 2s      how often it is read
--once          print what is known now, and end; so it is too where the output is no terminal"""
ENDED = ("done", "failed", "killed", "preempted")
PATIENCE = 10.0
"""Seconds for which a run that has ended, but is not done, may be begun again by its launcher."""
LEAST_EVERY = 0.2
_WIDTH, _HEIGHT = 100, 40
"""Of what is printed where there is no terminal."""


def run(args: Sequence[str]) -> int:
    """Show the run until it has ended."""
    if asks_for_help(args):
        print_text(HELP)
        return EXIT_DONE
    patterns, args = all_of("metric", args, "watch")
    name, options = parse_run(args, COMMAND, ["last", "every"], ["once"])
    rundir = find_run(name, damaged=True)
    is_shown = is_terminal(sys.stdout)
    live, console = LiveRun(rundir), PlainConsole() if is_shown else PlainConsole(width=_WIDTH, height=_HEIGHT)
    _require_metrics(live, patterns)
    fine = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    view = LiveView(live, patterns, _last(options), fine=fine)
    every = _every(options)
    if is_shown and "once" not in options:
        try:
            _follow(live, view, console, every)
        except KeyboardInterrupt:
            return EXIT_DONE
    console.print(view.drawn(*console.size))
    if live.summary.state in ENDED[1:]:
        print_text(diagnose(collect_evidence(rundir)).sentence)
    return EXIT_DONE


def _follow(live: LiveRun, view: LiveView, console: PlainConsole, every: float) -> None:
    """Draw again and again until the run has ended."""
    from rich.live import Live

    ended = 0.0
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as screen:
        while live.summary.state != "done" and ended < PATIENCE:
            screen.update(view.drawn(*console.size), refresh=True)
            time.sleep(every)
            live.read()
            ended = ended + every if live.summary.state in ENDED else 0.0


def _require_metrics(live: LiveRun, patterns: Sequence[str]) -> None:
    """Refuse a metric that the run does not have; one that has not begun may still get it."""
    known = list(dict.fromkeys(name for curves in live.curves.values() for name in curves))
    for pattern in patterns if known else []:
        if not matching_names(pattern, known):
            near = did_you_mean(pattern, known)
            raise UserError(f"there is no metric {pattern!r}{near}; so far there are {', '.join(known)}")


def _every(options: dict[str, str]) -> float:
    every = parse_duration(options.get("every", "2s"))
    if every < LEAST_EVERY:
        raise UserError(f"--every {options['every']} is too short; give at least {LEAST_EVERY}s")
    return every


def _last(options: dict[str, str]) -> int | None:
    text = options.get("last")
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--last is a number of steps, such as 1000, and not {text!r}")
    return int(text)
