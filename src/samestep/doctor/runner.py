"""Runs the checks: rank 0 leads from check to check, and the other ranks follow."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from samestep.core.output import plural
from samestep.doctor.check import Check, RankOutcome, check_findings, run_check
from samestep.doctor.findings import Finding, RankReport, RankReports, failed, ok, skipped
from samestep.doctor.rendezvous import (
    SLACK,
    CheckContext,
    StoreChannel,
    missing_ranks,
    rank_0_timeout,
    wait_for_rank_0,
)
from samestep.doctor.time_limit import exit_after

_MEETING = "ranks meet"
_LAUNCHERS = {"local": "samestep"}


@dataclass
class CheckRunner:
    """Runs checks on rank 0. `reports` has the measurements of all ranks, for each check that all completed."""

    context: CheckContext
    channel: StoreChannel
    show: Callable[[str], None] = lambda name: None
    """Shows the name of the check that runs."""
    findings: list[Finding] = field(default_factory=list)
    reports: dict[str, RankReports] = field(default_factory=dict)
    current: str = _MEETING
    """The check that runs."""
    stopped: bool = False
    """Whether a signal ended it."""
    broken: str = ""
    """Why checks that need all ranks cannot run any more."""
    _turn: int = 0

    def report_ranks(self) -> None:
        """Add the finding about which ranks arrived."""
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
        """Run the checks, as far as they can run."""
        for check in checks:
            if check.together and self.broken:
                self.findings.append(skipped(check.name, self.broken))
            else:
                self.current = check.name
                self.show(check.name)
                self._run(check)
        self.current = ""

    def announce_end(self) -> None:
        """Let the other ranks stop."""
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
        self.findings += check_findings(check, hosts, outcomes, context.timeout)
        if _complete(hosts, outcomes):
            measured = {rank: outcome.measured or {} for rank, outcome in outcomes.items()}
            self.reports[check.name] = [RankReport(rank, hosts[rank], found) for rank, found in measured.items()]
        elif check.together or len(outcomes) < len(hosts):
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


def _complete(hosts: Mapping[int, str], outcomes: Mapping[int, RankOutcome]) -> bool:
    return all(rank in outcomes and outcomes[rank].measured is not None for rank in hosts)
