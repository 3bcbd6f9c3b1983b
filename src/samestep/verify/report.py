"""Turns comparisons into rows of a table, and shows them: a live table on a terminal, one line a check elsewhere."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samestep.core.output import plural
from samestep.verify.compare import Comparison
from samestep.verify.tolerance import STRICT, SUBJECTS, TOLERANCE, CheckResult, Floor, ProofStatus

ORDER = ("samples", "tokens", "losses", "ranks", "gradients", "validation")
"""Checks in the order in which one thing causes the next."""
_TITLES = {
    "samples": "samples at 1, 2, 3 ranks",
    "tokens": "sampled tokens at 1, 2, 3 ranks",
    "losses": "row losses at 1, 2, 3 ranks",
    "ranks": "parameters equal on all ranks",
    "gradients": "gradients at 1, 2, 3 ranks",
    "validation": "validation at 1, 2, 3 ranks",
}


def judge(comparisons: Sequence[Comparison], floor: Floor = STRICT) -> list[CheckResult]:
    """One check a subject; after the first that fails nothing further is said, since it would only follow from it."""
    checks: list[CheckResult] = []
    for subject in ORDER:
        wrong = [found.difference for found in comparisons if found.difference and found.difference.check == subject]
        if wrong:
            return [*checks, CheckResult(_TITLES[subject], ProofStatus.FAILED, wrong[0].sentence)]
        if subject == "tokens" and not any(found.tokens or found.tie for found in comparisons):
            continue
        checks.append(held_against(floor, {subject: largest(comparisons, subject)}, _passed(subject, comparisons)))
    return checks


def held_against(floor: Floor, seen: Mapping[str, float], check: CheckResult) -> CheckResult:
    """The check as it is, or as proving nothing where a difference that was `seen` passed though it is large."""
    lost = [subject for subject in floor.unverifiable if seen.get(subject, 0.0) > TOLERANCE]
    if check.result is not ProofStatus.OK or not lost:
        return check
    amounts = ", ".join(f"{SUBJECTS[subject]} by {floor.measured[subject]:.1e}" for subject in lost)
    sentence = f"{check.sentence}; it proves nothing, since another order and scale alone change {amounts}"
    return CheckResult(check.name, ProofStatus.UNVERIFIABLE, sentence)


def largest(comparisons: Sequence[Comparison], subject: str) -> float:
    """The largest difference that was seen."""
    return max((found.seen.largest.get(subject, 0.0) for found in comparisons), default=0.0)


def _passed(subject: str, comparisons: Sequence[Comparison]) -> CheckResult:
    least = min(comparisons, key=lambda found: found.steps)
    seen, name = least.seen, _TITLES[subject]
    until = "; compared up to a tie between sampled tokens" if least.tie else ""
    difference = f"largest difference {largest(comparisons, subject):.1e}"
    if subject == "samples":
        sentence = f"{plural(least.steps, 'step')}, {plural(seen.updates, 'update')}, {plural(seen.rows, 'row')}"
    elif subject == "tokens":
        ties = [found.tie for found in comparisons if found.tie]
        sentence = plural(least.tokens, "token") + (f"; {ties[0]}" if ties else "")
        until = ""
    elif subject == "ranks":
        sentence = f"a hash after each of {plural(seen.updates, 'update')} and of every step's state"
    elif subject == "validation":
        if "validation" not in seen.largest:
            return CheckResult(
                name, ProofStatus.NOT_RUN, f"no validation{until}" if until else "the recipe validates nothing"
            )
        sentence = f"{plural(least.validations, 'row')} once each, {difference}" if least.validations else difference
    else:
        sentence = (
            f"{plural(seen.rows, 'row') if subject == 'losses' else plural(seen.updates, 'update')}, {difference}"
        )
    if subject == "gradients" and seen.updates and not any(found.seen.uneven for found in comparisons):
        until += "; all shares were equal, so a mean of means would not show: use another global_batch_size"
    return CheckResult(name, ProofStatus.OK, sentence + until)


_STYLES = {
    ProofStatus.OK: "green",
    ProofStatus.FAILED: "bold red",
    ProofStatus.UNVERIFIABLE: "bold yellow",
    ProofStatus.UNKNOWN: "dim",
    ProofStatus.NOT_RUN: "dim",
}


class Board:
    """Where checks appear, and on a terminal also what is going on."""

    def __init__(self, title: str) -> None:
        self.checks: list[CheckResult] = []
        self._title, self._doing = title, "starting"
        self._terminal = sys.stdout.isatty()
        self._stack = ExitStack()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self._terminal:
            self._live = self._stack.enter_context(Live(get_renderable=self._draw, refresh_per_second=4))
        else:
            print(self._title, flush=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._doing = ""
        self._stack.close()

    def say(self, text: str) -> None:
        """What is going on now."""
        self._doing = f"now: {text}"

    def add(self, check: CheckResult) -> None:
        """One more check is done."""
        self.checks.append(check)
        if not self._terminal:
            print(f"{check.result:7} {check.name}: {check.sentence}", flush=True)

    def _draw(self) -> Group | Table:
        drawn = table(self.checks, self._title)
        return Group(drawn, Text(self._doing, style="dim")) if self._doing else drawn


def table(checks: Iterable[CheckResult], title: str) -> Table:
    """The table; sentences are wrapped, results are not."""
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    drawn.add_column("check", max_width=34)
    drawn.add_column("result", no_wrap=True)
    drawn.add_column("evidence", overflow="fold")
    for check in checks:
        drawn.add_row(Text(check.name), Text(check.result, style=_STYLES[check.result]), Text(check.sentence))
    return drawn
