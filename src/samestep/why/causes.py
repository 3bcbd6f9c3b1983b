"""Which failure ended a run: of all that ranks and their launcher left to say, the one that the rest followed from."""

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, replace

from samestep.core.errors import EXIT_INTERRUPTED, EXIT_MEMORY, EXIT_PREEMPTED, EXIT_STALLED, EXIT_USER
from samestep.core.exit_report import ExitReport
from samestep.launch.failure import signal_name
from samestep.why.records import Evidence, as_word

KINDS = {
    "user": "user_error",
    "failed": "failed",
    "diverged": "diverged",
    "disk": "disk",
    "hung": "hung",
    "memory": "out_of_memory",
    "interrupted": "killed",
    "crashed": "crashed",
}
"""The verdict by the kind of a last word."""
CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals that a process brings about itself."""
TWICE = "Ctrl-C twice"
LOST_NODE = "a node was lost"
_CODES = {EXIT_USER: "user", EXIT_MEMORY: "memory", EXIT_STALLED: "hung", EXIT_INTERRUPTED: "interrupted"}
_TEXTS = {  # in words that do not say of what kind they are
    "No space left on device": "disk",
    "Disk quota exceeded": "disk",
    "out of memory": "memory",
    "was not finite": "diverged",
    "failed: Diverged: ": "diverged",
    "failed: DiskFailed: ": "disk",
    "failed: Stalled: ": "hung",
}
_LOST = ("gloo/transport", "DistNetworkError", "ncclRemoteError", "TCPStore")
"""In the word of a rank whose peer went away: it says nothing of why."""
_ECHO = re.compile(r"rank (\d+) on (\S+) failed: (.*)", re.DOTALL)


@dataclass(frozen=True)
class Cause:
    """What ended the run."""

    verdict: str
    text: str
    ranks: Sequence[int] = ()
    """Those it happened to, as far as is known."""
    host: str = ""
    reason: str = ""
    traceback: str = ""
    source: str = ""
    """The file that says so."""
    remedy: Sequence[str] = ()


def first_failure(evidence: Evidence) -> Cause | None:
    """What is known to have gone wrong; None: nobody said anything of the kind."""
    ended = evidence.ended
    if ended is not None and ended.get("code") != EXIT_PREEMPTED:
        cause = _told_by_launcher(evidence)
        return _hung(evidence) or cause if cause.verdict == "hung" else cause
    telling = [word for word in evidence.words if not _lost_a_peer(word)]
    own = [word for word in telling if not word.echo]
    stalled = float((evidence.stall or {}).get("time", float("inf")))
    before = [word for word in own if word.kind != "hung" and word.time <= stalled]
    echoes = [word for word in telling if word.echo]
    return (
        _first(evidence, before)
        or _hung(evidence)
        or _first(evidence, own)
        or _first(evidence, echoes)
        or _lost(evidence)
        or _of_status(evidence)
    )


def _of_status(evidence: Evidence) -> Cause | None:
    """What rank 0 said for all, where nothing else is left."""
    status = evidence.status
    if status.get("status") != "failed":
        return None
    word = ExitReport(str(status.get("text", "")), 1, kind=str(status.get("kind", "failed")))
    return of_word(word, "status.json")


def _told_by_launcher(evidence: Evidence) -> Cause:
    """Our launcher saw how every rank ended, also those that could say nothing."""
    ended, source = evidence.ended, "events.jsonl"
    assert ended is not None
    code, rank, text = ended.get("code") or 0, ended.get("rank"), str(ended.get("text", ""))
    word = as_word(ended.get("word"))
    if rank is None:
        return Cause("killed", text, reason=TWICE if code == EXIT_INTERRUPTED else LOST_NODE, source=source)
    if word is not None and word.code > 0:
        return of_word(word, source)
    trace = word.traceback if word else ""
    name = signal_name(-code) if code < 0 else f"exit code {code}"
    verdict = "crashed" if code >= 0 or -code in CRASHES else "killed"
    return Cause(verdict, text, [rank], str(ended.get("host", "")), name, trace, source)


def of_word(word: ExitReport, source: str) -> Cause:
    """What the word of a rank comes to; an echo names the rank that it comes from."""
    text, rank, host = word.text, word.rank, word.host
    match = _ECHO.match(text)
    if match:
        rank, host, text = int(match[1]), match[2], match[3]
    kind = _kind(word) if not match else _kind(replace(word, kind="crashed"))
    reason = TWICE if kind == "interrupted" else ""
    return Cause(KINDS.get(kind, "failed"), text, [rank], host, reason, word.traceback, source, word.remedy)


def _kind(word: ExitReport) -> str:
    if word.kind not in ("crashed", "failed"):
        return word.kind
    by_text = next((kind for phrase, kind in _TEXTS.items() if phrase in word.text), None)
    return _CODES.get(word.code) or by_text or word.kind


def _first(evidence: Evidence, words: Sequence[ExitReport]) -> Cause | None:
    """The earliest; ranks that say the same failed together."""
    if not words:
        return None
    first = min(words, key=lambda word: (word.time, word.rank))
    cause = of_word(first, evidence.source(first.rank))
    together = sorted(word.rank for word in words if word.text == first.text and not word.echo)
    return replace(cause, ranks=together) if len(together) > 1 else cause


def _hung(evidence: Evidence) -> Cause | None:
    """What the watchdog found; a rank that it found gone did not hang."""
    stall = evidence.stall
    if stall is None:
        return None
    ranks = [] if stall.get("rank") is None else [int(stall["rank"])]
    host, where = str(stall.get("host") or ""), str(stall.get("where") or "")
    gone = [report["rank"] for report in stall.get("reports") or () if report.get("state") == "gone"]
    if ranks and ranks[0] in gone:
        return Cause("killed", "is gone without a word", ranks, host, source="watch/stall.json")
    return Cause("hung", str(stall.get("sentence", "")), ranks, host, where, source="watch/stall.json")


def _lost_a_peer(word: ExitReport) -> bool:
    """Whether this, or what it is the echo of, only came about because a rank was gone."""
    return (word.echo or word.kind == "crashed") and any(mark in word.text for mark in _LOST)


def _lost(evidence: Evidence) -> Cause | None:
    """Ranks that only lost their peers: those that said nothing ended first."""
    if evidence.words and evidence.silent:
        beat, told = evidence.beat(evidence.silent[0]), evidence.words[0]
        host = beat.host if beat else ""
        return Cause("killed", "ended without a word", evidence.silent, host, source=evidence.source(told.rank))
    return _first(evidence, evidence.words)
