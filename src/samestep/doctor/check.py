"""One check: what every rank measures, and what follows from all measurements together; and how checks are run: rank 0
leads from check to check, and the other ranks follow."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import torch

from samestep.core.errors import RunFailed, UserError
from samestep.core.output import plural
from samestep.doctor.findings import Finding, Measured, RankReport, RankReports, describe_ranks, failed, ok, skipped
from samestep.doctor.rendezvous import (
    SLACK,
    CheckContext,
    StoreChannel,
    TimeLimitExceeded,
    exit_after,
    missing_ranks,
    rank_0_timeout,
    run_within,
    wait_for_rank_0,
)

_SOURCE = re.compile(r"^\[[^\]]*\]\s*")


@dataclass(frozen=True)
class Check:
    """`measure` runs on every rank and may fail or hang. `compare`, a pure function of all reports, runs on rank 0."""

    name: str
    measure: Callable[[CheckContext], Measured]
    compare: Callable[[RankReports], list[Finding]]
    hint: str
    """Why a rank might not complete it, and what to do then."""
    together: bool = False
    """Whether ranks need each other for it: then it is skipped once one of them is missing."""


@dataclass(frozen=True)
class RankOutcome:
    """The outcome of a check on one rank: measurements, an error, or neither, because it did not finish."""

    measured: Measured | None = None
    error: str = ""
    where: str = ""
    """The source line it had reached, when it exceeded its time limit but the rank itself still answers."""
    seconds: float = 0.0


def run_check(check: Check, context: CheckContext) -> RankOutcome:
    """On this rank, within the time limit."""
    began = time.monotonic()
    try:
        return RankOutcome(run_within(context.timeout, lambda: _measure(check, context)))
    except TimeLimitExceeded as late:
        return RankOutcome(where=late.where)
    except Exception as error:
        return RankOutcome(error=_one_line(error), seconds=time.monotonic() - began)


def _one_line(error: Exception) -> str:
    """The error's first line: with its type when it is unexpected, and without the source file of a C++ error."""
    text = _SOURCE.sub("", (str(error).strip().splitlines() or [""])[0])
    return text if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: {text}"


def _measure(check: Check, context: CheckContext) -> Measured:
    device = context.world.device if context.world else torch.device("cpu")
    if device.type != "cpu":  # the current device is set per thread, and this is a new thread
        getattr(torch, device.type).set_device(device)
    return check.measure(context)


def failure_sentence(check: Check, hosts: Mapping[int, str], outcomes: Mapping[int, RankOutcome], limit: float) -> str:
    """Which ranks did not complete the check, and why; empty when all did.

    A rank that does not answer at all explains one that is late, one that is late explains an error of the others, and
    the first error explains the later ones.
    """
    silent = [rank for rank in hosts if rank not in outcomes]
    late = {rank: outcome.where for rank, outcome in outcomes.items() if outcome.where}
    wrong = sorted((outcome.seconds, rank) for rank, outcome in outcomes.items() if outcome.error)
    if silent:
        seen = f"{_ranks(silent, hosts)} did not answer within {limit:g} s and died or hangs"
    elif late:
        seen = f"{_late(late, hosts)} after {limit:g} s"
    elif wrong:
        first = outcomes[wrong[0][1]].error
        alike = [rank for _, rank in wrong if outcomes[rank].error == first]
        seen = f"{_ranks(alike, hosts)} failed with {first}"
    else:
        return ""
    return f"{seen}; likely cause: {check.hint}"


def _late(late: Mapping[int, str], hosts: Mapping[int, str]) -> str:
    """Where late ranks were. A rank that is where no other is comes first: the others wait for it."""
    places: dict[str, list[int]] = {}
    for rank, where in late.items():
        places.setdefault(where, []).append(rank)
    first, *rest = sorted(places, key=lambda where: len(places[where]))
    others = f", {_ranks([r for where in rest for r in places[where]], hosts)} at {rest[-1]}" if rest else ""
    verb = "were" if len(late) > 1 else "was"
    return f"{_ranks(places[first], hosts)} at {first}{others} {verb} still not done"


def _ranks(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    return describe_ranks([RankReport(rank, hosts[rank], {}) for rank in ranks])


_MEETING = "ranks meet"
_LAUNCHERS = {"local": "samestep"}


@dataclass
class CheckRunner:
    """Runs checks on rank 0. `reports` has the measurements of all ranks, for each check that all completed."""

    context: CheckContext
    channel: StoreChannel
    show: Callable[[str], None] = lambda name: None
    findings: list[Finding] = field(default_factory=list)
    reports: dict[str, RankReports] = field(default_factory=dict)
    current: str = _MEETING
    stopped: bool = False
    """Whether a signal ended it."""
    broken: str = ""
    """Why checks that need all ranks cannot run any more."""
    _turn: int = 0

    def report_ranks(self) -> None:
        missing, rank_info = missing_ranks(self.context), self.context.rank_info
        if missing:
            self.findings.append(failed(_MEETING, missing))
            self.broken = "not all ranks arrived"
        else:
            hosts = len(set(self.context.hosts))
            launcher = _LAUNCHERS.get(rank_info.launcher, rank_info.launcher)
            by = f", started by {launcher}" if rank_info.grouped else ", this process alone"
            self.findings.append(ok(_MEETING, f"{plural(rank_info.size, 'rank')} on {plural(hosts, 'host')}{by}"))

    def run(self, checks: Sequence[Check]) -> None:
        for check in checks:
            if check.together and self.broken:
                self.findings.append(skipped(check.name, self.broken))
            else:
                self.current = check.name
                self.show(check.name)
                self._run(check)
        self.current = ""

    def announce_end(self) -> None:
        self.channel.put(f"turn/{self._turn}", None)

    def _run(self, check: Check) -> None:
        context = self.context
        self.channel.put(f"turn/{self._turn}", check.name)
        end = time.monotonic() + context.timeout + SLACK
        outcomes = {0: _run_here(check, context, self.channel)}
        hosts = {rank: host for rank, host in enumerate(context.hosts) if host is not None}
        for rank in list(hosts)[1:]:
            try:
                received = self.channel.wait_for(f"outcome/{self._turn}/{rank}", max(0.0, end - time.monotonic()))
                outcomes[rank] = RankOutcome(**received)
            except TimeoutError:
                context.hosts[rank] = None  # later checks do not wait for it
        self._turn += 1
        problem = failure_sentence(check, hosts, outcomes, context.timeout)
        if not problem:
            reports = [RankReport(rank, hosts[rank], found.measured or {}) for rank, found in outcomes.items()]
            self.reports[check.name] = reports
            self.findings += check.compare(reports)
            return
        self.findings.append(failed(check.name, problem))
        if check.together or len(outcomes) < len(hosts):
            self.broken = f"not all ranks completed {check.name!r}"


def follow(context: CheckContext, channel: StoreChannel, checks: Mapping[str, Check]) -> None:
    """Run the checks that rank 0 names, until it announces the end. On every other rank."""
    turn = 0
    while True:
        name = wait_for_rank_0(context, channel, f"turn/{turn}")
        if name is None:
            return
        outcome = _run_here(checks[name], context, channel)
        channel.put(f"outcome/{turn}/{context.rank}", asdict(outcome))
        turn += 1


def _run_here(check: Check, context: CheckContext, channel: StoreChannel) -> RankOutcome:
    exit_after(2 * rank_0_timeout(context))
    outcome = run_check(check, context)
    if outcome.where:  # the thread that hangs may still use the connection
        context.channel = channel.new_connection()
        context.stuck = True
    return outcome
