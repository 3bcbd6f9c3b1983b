"""Shows the checks: a table on a terminal, one line a check elsewhere, so that `grep` finds it."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samestep.doctor.check import Check

_RESULTS = {True: ("ok", "green"), False: ("FAILED", "bold red"), None: ("not run", "dim")}


@contextmanager
def at_work(terminal: bool) -> Iterator[Callable[[str], None]]:
    """Something to tell what is going on, which a terminal shows until it is over."""
    if not terminal:
        yield lambda text: None
        return
    with Console(stderr=True).status("starting") as status:
        yield lambda text: status.update(f"verifying: {text}")


def show(checks: Iterable[Check], title: str) -> list[Check]:
    """Show all checks, on a terminal when the last one is done; returns them."""
    if not sys.stdout.isatty():
        return _print_lines(checks, title)
    done = list(checks)
    Console().print(table(done, title))
    return done


def table(checks: Iterable[Check], title: str) -> Table:
    """The table; sentences are wrapped, names and results are not."""
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    drawn.add_column("check", max_width=34)
    drawn.add_column("result", no_wrap=True)
    drawn.add_column("evidence", overflow="fold")
    for check in checks:
        word, style = _RESULTS[check.passed]
        drawn.add_row(Text(check.name), Text(word, style=style), Text(check.sentence))
    return drawn


def _print_lines(checks: Iterable[Check], title: str) -> list[Check]:
    print(title, flush=True)
    done = []
    for check in checks:
        print(f"{_RESULTS[check.passed][0]:8}{check.name}: {check.sentence}", flush=True)
        done.append(check)
    return done
