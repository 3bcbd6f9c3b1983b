"""Which failure ended a run: of all that ranks and their launcher reported, the one that caused the rest."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samestep.core.errors import EXIT_INTERRUPTED, EXIT_MEMORY, EXIT_PREEMPTED, EXIT_STALLED, EXIT_USER
from samestep.core.exit_report import ExitReport, parse_exit_report
from samestep.launching.failure import signal_name
from samestep.why.records import Evidence

_VERDICT_BY_KIND = {
    "user": "user_error",
    "failed": "failed",
    "diverged": "diverged",
    "disk": "disk",
    "hung": "hung",
    "memory": "out_of_memory",
    "interrupted": "killed",
    "crashed": "crashed",
}
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals that a process causes itself."""
SECOND_CTRL_C = "Ctrl-C twice"
LOST_NODE = "a node was lost"
_CODES = {EXIT_USER: "user", EXIT_MEMORY: "memory", EXIT_STALLED: "hung", EXIT_INTERRUPTED: "interrupted"}
_TEXTS = {  # in exit reports whose kind is not specific
    "No space left on device": "disk",
    "Disk quota exceeded": "disk",
    "out of memory": "memory",
    "was not finite": "diverged",
    "failed: Diverged: ": "diverged",
    "failed: DiskFailed: ": "disk",
    "failed: Stalled: ": "hung",
}
_LOST = ("gloo/transport", "DistNetworkError", "ncclRemoteError", "TCPStore")
"""In the exit report of a rank whose peer ended: it does not say why the peer ended."""
_ECHO = re.compile(r"rank (\d+) on (\S+) failed: (.*)", re.DOTALL)


@dataclass(frozen=True)
class Cause:
    """What ended the run."""

    verdict: str
    text: str
    ranks: Sequence[int] = ()
    """The ranks it happened to, as far as is known."""
    host: str = ""
    reason: str = ""
    traceback: str = ""
    source: str = ""
    """The file that it is known from."""
    retry_batch_size: int | None = None


def first_failure(evidence: Evidence) -> Cause | None:
    """The failure that is known to have come first; None when nothing reports one."""
    ended = evidence.ended
    if ended is not None and ended.get("code") != EXIT_PREEMPTED:
        cause = _from_launcher(evidence)
        return _hung(evidence) or cause if cause.verdict == "hung" else cause
    reports = [report for report in evidence.exit_reports if not _lost_a_peer(report)]
    own = [report for report in reports if not report.echo]
    stalled = float((evidence.stall or {}).get("time", float("inf")))
    before = [report for report in own if report.kind != "hung" and report.time <= stalled]
    echoes = [report for report in reports if report.echo]
    return (
        _first(evidence, before)
        or _hung(evidence)
        or _first(evidence, own)
        or _first(evidence, echoes)
        or _only_lost_peers(evidence)
        or _from_status(evidence)
    )


def _from_status(evidence: Evidence) -> Cause | None:
    """The failure that rank 0 wrote for all ranks, when nothing else is left."""
    status = evidence.status
    if status.get("status") != "failed":
        return None
    report = ExitReport(str(status.get("text", "")), 1, kind=str(status.get("kind", "failed")))
    return _cause_from_report(report, "status.json")


def _from_launcher(evidence: Evidence) -> Cause:
    """Our launcher saw how every rank ended, also ranks that left no exit report."""
    ended, source = evidence.ended, "events.jsonl"
    assert ended is not None
    code, rank, text = ended.get("code") or 0, ended.get("rank"), str(ended.get("text", ""))
    report = parse_exit_report(ended.get("word"))
    if rank is None:
        return Cause("killed", text, reason=SECOND_CTRL_C if code == EXIT_INTERRUPTED else LOST_NODE, source=source)
    if report is not None and report.code > 0:
        return _cause_from_report(report, source)
    trace = report.traceback if report else ""
    name = signal_name(-code) if code < 0 else f"exit code {code}"
    verdict = "crashed" if code >= 0 or -code in _CRASHES else "killed"
    return Cause(verdict, text, [rank], str(ended.get("host", "")), name, trace, source)


def _cause_from_report(report: ExitReport, source: str) -> Cause:
    """The cause in a rank's exit report; an echo names the rank that failed first."""
    text, rank, host = report.text, report.rank, report.host
    match = _ECHO.match(text)
    if match:
        rank, host, text = int(match[1]), match[2], match[3]
    kind = _kind(report) if not match else _kind(replace(report, kind="crashed"))
    reason = SECOND_CTRL_C if kind == "interrupted" else ""
    return Cause(
        _VERDICT_BY_KIND.get(kind, "failed"),
        text,
        [rank],
        host,
        reason,
        report.traceback,
        source,
        report.retry_batch_size,
    )


def _kind(report: ExitReport) -> str:
    if report.kind not in ("crashed", "failed"):
        return report.kind
    by_text = next((kind for phrase, kind in _TEXTS.items() if phrase in report.text), None)
    return _CODES.get(report.code) or by_text or report.kind


def _first(evidence: Evidence, reports: Sequence[ExitReport]) -> Cause | None:
    """The earliest report; ranks with the same text failed together."""
    if not reports:
        return None
    first = min(reports, key=lambda report: (report.time, report.rank))
    cause = _cause_from_report(first, evidence.source(first.rank))
    together = sorted(report.rank for report in reports if report.text == first.text and not report.echo)
    return replace(cause, ranks=together) if len(together) > 1 else cause


def _hung(evidence: Evidence) -> Cause | None:
    """What the watchdog found; a rank whose process was gone did not hang."""
    stall = evidence.stall
    if stall is None:
        return None
    ranks = [] if stall.get("rank") is None else [int(stall["rank"])]
    host, where = str(stall.get("host") or ""), str(stall.get("where") or "")
    gone = [report["rank"] for report in stall.get("reports") or () if report.get("state") == "gone"]
    if ranks and ranks[0] in gone:
        return Cause("killed", "is gone without an exit report", ranks, host, source="watch/stall.json")
    return Cause("hung", str(stall.get("sentence", "")), ranks, host, where, source="watch/stall.json")


def _lost_a_peer(report: ExitReport) -> bool:
    """Whether this failure, or the one it echoes, only happened because another rank was gone."""
    return (report.echo or report.kind == "crashed") and any(mark in report.text for mark in _LOST)


def _only_lost_peers(evidence: Evidence) -> Cause | None:
    """All reporting ranks only lost their peers, so the ranks without an exit report ended first."""
    if evidence.exit_reports and evidence.silent:
        heartbeat, report = evidence.heartbeat(evidence.silent[0]), evidence.exit_reports[0]
        host = heartbeat.host if heartbeat else ""
        source = evidence.source(report.rank)
        return Cause("killed", "ended without an exit report", evidence.silent, host, source=source)
    return _first(evidence, evidence.exit_reports)
