"""Turns comparisons into checks, and prints them: as a live table on a terminal, elsewhere one line for each check."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from samestep.core.console import PlainConsole
from samestep.core.output import is_terminal, plural, print_text
from samestep.core.pages.tables import Column, Styled, Table
from samestep.verify.compare import Comparison
from samestep.verify.tolerance import STRICT, SUBJECTS, TOLERANCE, CheckResult, Floor, ProofStatus
from samestep.verify.trace import Trace

ORDER = ("samples", "tokens", "losses", "ranks", "gradients", "validation")
"""Subjects in the order of cause and effect: a difference in one causes differences in those after it."""
REACHED = "every parameter gets a gradient"
_TITLES = {
    "samples": "samples at 1, 2, 3 ranks",
    "tokens": "sampled tokens at 1, 2, 3 ranks",
    "losses": "row losses at 1, 2, 3 ranks",
    "ranks": "parameters equal on all ranks",
    "gradients": "gradients at 1, 2, 3 ranks",
    "validation": "validation at 1, 2, 3 ranks",
}


def comparison_checks(comparisons: Sequence[Comparison], floor: Floor = STRICT) -> list[CheckResult]:
    """One check for each subject, up to the first that fails: later differences only follow from it."""
    checks: list[CheckResult] = []
    for subject in ORDER:
        wrong = [found.difference for found in comparisons if found.difference and found.difference.check == subject]
        if wrong:
            return [*checks, CheckResult(_TITLES[subject], ProofStatus.FAILED, wrong[0].sentence)]
        if subject == "tokens" and not any(found.tokens or found.tie for found in comparisons):
            continue
        checks.append(apply_floor(floor, {subject: largest_seen(comparisons, subject)}, _passed(subject, comparisons)))
    return checks


def apply_floor(floor: Floor, seen: Mapping[str, float], check: CheckResult) -> CheckResult:
    """The check unchanged, or unverifiable where a large difference in `seen` passed only because of the floor."""
    unproved = [subject for subject in floor.unverifiable if seen.get(subject, 0.0) > TOLERANCE]
    if check.result is not ProofStatus.OK or not unproved:
        return check
    amounts = ", ".join(f"{SUBJECTS[subject]} by {floor.measured[subject]:.1e}" for subject in unproved)
    sentence = f"{check.sentence}; it proves nothing, since another order and scale alone change {amounts}"
    return CheckResult(check.name, ProofStatus.UNVERIFIABLE, sentence)


def largest_seen(comparisons: Sequence[Comparison], subject: str) -> float:
    """The largest difference of a subject in some comparisons."""
    return max((found.stats.largest.get(subject, 0.0) for found in comparisons), default=0.0)


def _passed(subject: str, comparisons: Sequence[Comparison]) -> CheckResult:
    least = min(comparisons, key=lambda found: found.steps)
    stats, name = least.stats, _TITLES[subject]
    until = "; compared up to a tie between sampled tokens" if least.tie else ""
    difference = f"largest difference {largest_seen(comparisons, subject):.1e}"
    if subject == "samples":
        sentence = f"{plural(least.steps, 'step')}, {plural(stats.updates, 'update')}, {plural(stats.rows, 'row')}"
    elif subject == "tokens":
        ties = [found.tie for found in comparisons if found.tie]
        sentence = plural(least.tokens, "token") + (f"; {ties[0]}" if ties else "")
        until = ""
    elif subject == "ranks":
        sentence = f"a hash after each of {plural(stats.updates, 'update')} and of every step's state"
    elif subject == "validation":
        if "validation" not in stats.largest:
            return CheckResult(
                name, ProofStatus.NOT_RUN, f"no validation{until}" if until else "the recipe validates nothing"
            )
        sentence = f"{plural(least.validations, 'row')} once each, {difference}" if least.validations else difference
    else:
        sentence = (
            f"{plural(stats.rows, 'row') if subject == 'losses' else plural(stats.updates, 'update')}, {difference}"
        )
    if subject == "gradients" and stats.updates and not any(found.stats.uneven for found in comparisons):
        until += "; all shares were equal, so a mean of means would not show: use another global_batch_size"
    return CheckResult(name, ProofStatus.OK, sentence + until)


def every_parameter_reached(trace: Trace, unused: Sequence[str]) -> CheckResult:
    """A parameter whose gradient is missing or zero in every update learns nothing; a pattern in `unused` allows it."""
    reached: dict[str, bool] = {}
    for steps in trace.values():
        for line in (line for step in steps for line in step.updates):
            for name, found in line["gradients"].items():
                full_name = f"{line['learner']}.{name}"
                reached[full_name] = reached.get(full_name, False) or bool(found and found[0] > 0)
    idle = [name for name, once in reached.items() if not once and not _allowed(name, unused)]
    if idle:
        more = f" and {len(idle) - 3} more" if len(idle) > 3 else ""
        return CheckResult(
            REACHED,
            ProofStatus.FAILED,
            f"{', '.join(idle[:3])}{more} never got one: use it, freeze it (requires_grad_(False)), or declare it in "
            "the recipe's `unused`",
        )
    allowed = sum(not once for once in reached.values())
    return CheckResult(
        REACHED,
        ProofStatus.OK,
        f"{plural(len(reached), 'parameter')}" + (f", {allowed} declared unused" if allowed else ""),
    )


def _allowed(name: str, unused: Sequence[str]) -> bool:
    """A pattern may name the parameter with or without its learner."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name.partition(".")[2], pattern) for pattern in unused)


_STYLES = {
    ProofStatus.OK: "green",
    ProofStatus.FAILED: "bold red",
    ProofStatus.UNVERIFIABLE: "bold yellow",
    ProofStatus.UNKNOWN: "dim",
    ProofStatus.NOT_RUN: "dim",
}


class ProofTable:
    """Prints checks as they are done; on a terminal also which run is under way."""

    def __init__(self, title: str) -> None:
        self.checks: list[CheckResult] = []
        self._title, self._progress = title, "starting"
        self._terminal = is_terminal(sys.stdout)
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._terminal:
            self._live = self._stack.enter_context(
                Live(get_renderable=self._draw, console=PlainConsole(), refresh_per_second=4)
            )
        else:
            print_text(self._title, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress = ""
        self._stack.close()

    def show_progress(self, text: str) -> None:
        self._progress = f"now: {text}"

    def add(self, check: CheckResult) -> None:
        self.checks.append(check)
        if not self._terminal:
            print_text(f"{check.result:7} {check.name}: {check.sentence}", flush=True)

    def _draw(self) -> RenderableType:
        checks = table(self.checks, self._title).drawn()
        return Group(checks, Text(self._progress, style="dim")) if self._progress else checks


def table(checks: Iterable[CheckResult], title: str) -> Table:
    """The table; sentences are wrapped, results are not."""
    columns = (Column("check", wraps=True, width=34), Column("result"), Column("evidence", wraps=True))
    rows = [(check.name, Styled(check.result, _STYLES[check.result]), check.sentence) for check in checks]
    return Table(columns, rows, title)
