"""Says what became of a run, by what that is known, and what to type next: for people and for programs."""

import time
from collections.abc import Iterator, Sequence

from samestep.core.durations import ago
from samestep.core.exit_report import ExitReport
from samestep.core.records import Json
from samestep.why.diagnose import gigabytes
from samestep.why.records import Diagnosis, Evidence, Heartbeat, Record

_MOST = 6
"""Ranks that are shown of each kind; there may be thousands."""
_WIDE = 140
Line = tuple[str, str]


def witnesses(evidence: Evidence, finding: Diagnosis) -> Iterator[Line]:
    """What was found, as far as it is telling."""
    if evidence.status:
        yield "status.json", _status(evidence.status)
    yield from _events(evidence)
    if evidence.save_failed and finding.verdict == "disk":
        yield "events.jsonl", f"the last save failed: {_brief(evidence.save_failed)}"
    yield from _words(evidence, finding.ranks)
    yield from _stall(evidence)
    for beat in sorted(evidence.beats, key=lambda beat: (beat.rank not in finding.ranks, beat.rank))[:_MOST]:
        yield f"watch/rank_{beat.rank}.json", _beat(beat)
    job = evidence.job
    if job is not None and job.state:
        yield job.source, f"job {job.number} is {job.state}"
    if evidence.kernel:
        yield "dmesg", _brief(evidence.kernel)
    if finding.verdict == "disk":
        yield "df", f"{gigabytes(evidence.disk_free)} are free on the disk of the run"
    yield "lock", _lock(evidence)
    newest = evidence.checkpoint
    if newest is None:
        yield "checkpoints", "there is none yet"
    else:
        yield f"checkpoints/{newest[0]}", f"the newest is that of step {newest[1]}"


def _status(status: Record) -> str:
    known = ("stage", "step", "steps", "reason", "after", "kind")
    names = {"step": "step" if status.get("status") in ("done", "preempted") else "begun at step"}
    rest = [f"{names.get(name, name)} {status[name]}" for name in known if name in status]
    return ", ".join([str(status.get("status", "?")), *rest])


def _events(evidence: Evidence) -> Iterator[Line]:
    launch, ended = evidence.launch, evidence.ended
    if launch is not None:
        ranks = f"{evidence.world} rank{'s' if evidence.world > 1 else ''}"
        yield "events.jsonl", f"launched with {ranks} {_when(evidence, launch.get('time'))}"
    if ended is not None:
        rank = "" if ended.get("rank") is None else f"rank {ended['rank']} on {ended.get('host')}: "
        code = "" if ended.get("code") is None else f" (exit code {ended['code']})"
        text = _brief(str(ended.get("text") or "stopped"))
        yield "events.jsonl", f"ended {_when(evidence, ended.get('time'))}: {rank}{text}{code}"
    elif evidence.last_change:
        file, stamp = evidence.last_change
        yield file, f"changed last, {_when(evidence, stamp)}"


def _words(evidence: Evidence, ranks: Sequence[int]) -> Iterator[Line]:
    """Each thing that was said once, by the first who said it."""
    said: dict[str, ExitReport] = {}
    for word in sorted(evidence.words, key=lambda word: (word.rank not in ranks, word.rank)):
        said.setdefault(word.text, word)
    for word in list(said.values())[:_MOST]:
        yield evidence.source(word.rank), _brief(word.text)


def _brief(text: str) -> str:
    first_line = (text.splitlines() or [""])[0]
    return first_line if len(first_line) <= _WIDE else f"{first_line[:_WIDE]}..."


def _stall(evidence: Evidence) -> Iterator[Line]:
    stall = evidence.stall or {}
    if stall:
        yield "watch/stall.json", f"written {_when(evidence, stall.get('time'))}"
    for report in list(stall.get("reports") or [])[:_MOST]:
        activity = f"{report.get('activity', '?')} for {float(report.get('seconds') or 0):.0f} s"
        yield "watch/stall.json", f"rank {report.get('rank')}: {activity}, {report.get('where') or 'nowhere known'}"


def _beat(beat: Heartbeat) -> str:
    doing = f"step {beat.step}, {beat.activity}" + (f" for {beat.seconds:.0f} s" if beat.seconds >= 1 else "")
    held = f"; holds {gigabytes(beat.memory)}, {gigabytes(beat.free)} free on {beat.host}" if beat.memory else ""
    return f"last sign of life {ago(beat.age)} ago, {doing}{held}"


def _lock(evidence: Evidence) -> str:
    lock = evidence.lock
    if lock.held is None and not lock.host:
        return "there is none that tells something"
    who = f"process {lock.pid} on {lock.host}" if lock.host else "nobody that is known"
    if lock.held:
        return f"held by {who}"
    if lock.held is None or lock.host not in ("", evidence.here):
        return f"last held by {who}; from {evidence.here} it cannot be told whether it still is"
    return f"free; last held by {who}"


def _when(evidence: Evidence, stamp: Json) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(stamp or 0)))
    return f"{moment} ({ago(evidence.now - float(stamp or 0))} ago)"


_LINES = 24
"""How much of a traceback is shown; the file has all."""


def as_text(evidence: Evidence, finding: Diagnosis) -> str:
    """For people."""
    trace = finding.traceback.rstrip().splitlines()
    shown = ["..."] * (len(trace) > _LINES) + trace[-_LINES:]
    lines = list(witnesses(evidence, finding))
    width = max((len(file) for file, _ in lines), default=0)
    return "\n".join(
        [
            f"{evidence.run}: {finding.verdict.replace('_', ' ')}",
            f"  {finding.sentence}",
            *([""] + [f"  {line}" for line in shown] if shown else []),
            "",
            "evidence",
            *(f"  {file:{width}}  {text}" for file, text in lines),
            "",
            "next",
            *(f"  {command}" for command in finding.next),
        ]
    )


def as_json(evidence: Evidence, finding: Diagnosis) -> dict[str, Json]:
    """For programs: `verdict` is one of a fixed set of words."""
    return {
        "run": str(evidence.run),
        "verdict": finding.verdict,
        "sentence": finding.sentence,
        "ranks": list(finding.ranks),
        "host": finding.host,
        "reason": finding.reason,
        "stage": evidence.status.get("stage"),
        "step": evidence.step,
        "checkpoint": list(evidence.checkpoint) if evidence.checkpoint else None,
        "traceback": finding.traceback,
        "evidence": [{"file": file, "text": text} for file, text in witnesses(evidence, finding)],
        "next": list(finding.next),
    }
