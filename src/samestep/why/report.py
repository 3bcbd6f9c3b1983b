"""Prints a diagnosis with its evidence and the commands to type next: as text for people, as JSON for programs."""

import time
from collections.abc import Iterator, Sequence

from samestep.core.durations import ago
from samestep.core.exit_report import ExitReport
from samestep.core.json_files import Json
from samestep.train.record.liveness import Heartbeat
from samestep.why.diagnose import gigabytes
from samestep.why.records import Diagnosis, Evidence, Record

_MOST = 6
"""How many ranks are shown in each group; there may be thousands."""
_WIDE = 140
FileText = tuple[str, str]
"""A file or command, and what it says."""


def evidence_lines(evidence: Evidence, diagnosis: Diagnosis) -> Iterator[FileText]:
    """The evidence that is worth showing."""
    if evidence.status:
        yield "status.json", _status(evidence.status)
    yield from _events(evidence)
    if evidence.save_failed and diagnosis.verdict == "disk":
        yield "events.jsonl", f"the last save failed: {_brief(evidence.save_failed)}"
    yield from _exit_reports(evidence, diagnosis.ranks)
    yield from _stall(evidence)
    beats = sorted(evidence.heartbeats, key=lambda beat: (beat.rank not in diagnosis.ranks, beat.rank))
    for beat in beats[:_MOST]:
        yield f"watch/rank_{beat.rank}.json", _heartbeat(beat)
    job = evidence.job
    if job is not None and job.state:
        yield job.source, f"job {job.number} is {job.state}"
    if evidence.kernel_message:
        yield "dmesg", _brief(evidence.kernel_message)
    if diagnosis.verdict == "disk":
        yield "df", f"{gigabytes(evidence.disk_free)} are free on the disk of the run"
    for file, why in evidence.damage.items():
        yield file, f"damaged, and left out here: {why}"
    yield "lock", _lock(evidence)
    newest = evidence.checkpoint
    if newest is None:
        yield "checkpoints", evidence.unreadable_checkpoints or "no checkpoint yet"
    else:
        yield f"checkpoints/{newest[0]}", f"the newest is that of step {newest[1]}"


def _status(status: Record) -> str:
    known = ("stage", "step", "steps", "reason", "after", "kind")
    names = {"step": "step" if status.get("status") in ("done", "preempted") else "begun at step"}
    rest = [f"{names.get(name, name)} {status[name]}" for name in known if name in status]
    return ", ".join([str(status.get("status", "?")), *rest])


def _events(evidence: Evidence) -> Iterator[FileText]:
    launch, ended = evidence.launch, evidence.ended
    if launch is not None:
        ranks = f"{evidence.world} rank{'s' if evidence.world > 1 else ''}"
        yield "events.jsonl", f"launched with {ranks} {_when(evidence, launch.get('time'))}"
    if (longer := evidence.extended) is not None:
        steps = f"from {longer.get('before')} to {longer.get('after')} steps, after step {longer.get('step')}"
        yield "events.jsonl", f"stage {longer.get('stage')} was extended {steps}"
    if ended is not None:
        rank = "" if ended.get("rank") is None else f"rank {ended['rank']} on {ended.get('host')}: "
        code = "" if ended.get("code") is None else f" (exit code {ended['code']})"
        text = _brief(str(ended.get("text") or "stopped"))
        yield "events.jsonl", f"ended {_when(evidence, ended.get('time'))}: {rank}{text}{code}"
    elif evidence.last_change:
        file, stamp = evidence.last_change
        yield file, f"changed last, {_when(evidence, stamp)}"


def _exit_reports(evidence: Evidence, ranks: Sequence[int]) -> Iterator[FileText]:
    """Each text once, from the first rank that reported it."""
    by_text: dict[str, ExitReport] = {}
    for report in sorted(evidence.exit_reports, key=lambda report: (report.rank not in ranks, report.rank)):
        by_text.setdefault(report.text, report)
    for report in list(by_text.values())[:_MOST]:
        yield evidence.source(report.rank), _brief(report.text)


def _brief(text: str) -> str:
    first_line = (text.splitlines() or [""])[0]
    return first_line if len(first_line) <= _WIDE else f"{first_line[:_WIDE]}..."


def _stall(evidence: Evidence) -> Iterator[FileText]:
    stall = evidence.stall or {}
    if stall:
        yield "watch/stall.json", f"written {_when(evidence, stall.get('time'))}"
    for report in list(stall.get("reports") or [])[:_MOST]:
        activity = f"{report.get('activity', '?')} for {float(report.get('seconds') or 0):.0f} s"
        yield (
            "watch/stall.json",
            f"rank {report.get('rank')}: {activity}, {report.get('where') or 'source line unknown'}",
        )


def _heartbeat(beat: Heartbeat) -> str:
    doing = f"step {beat.step}, {beat.activity}" + (f" for {beat.seconds:.0f} s" if beat.seconds >= 1 else "")
    held = f"; holds {gigabytes(beat.memory)}, {gigabytes(beat.free)} free on {beat.host}" if beat.memory else ""
    return f"last heartbeat {ago(beat.age)} ago, {doing}{held}"


def _lock(evidence: Evidence) -> str:
    lock = evidence.lock
    if lock.held is None and not lock.host:
        return "no readable lock"
    who = f"process {lock.pid} on {lock.host}" if lock.host else "an unknown process"
    if lock.held:
        return f"held by {who}"
    if lock.held is None or lock.host not in ("", evidence.here):
        return f"last held by {who}; {evidence.here} cannot see whether it still is"
    return f"free; last held by {who}"


def _when(evidence: Evidence, stamp: Json) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(float(stamp or 0)))
    return f"{moment} ({ago(evidence.now - float(stamp or 0))} ago)"


_LINES = 24
"""Lines of a traceback that are shown; the file has all of them."""


def as_text(evidence: Evidence, diagnosis: Diagnosis) -> str:
    """The diagnosis as text for people."""
    trace = diagnosis.traceback.rstrip().splitlines()
    shown = ["..."] * (len(trace) > _LINES) + trace[-_LINES:]
    lines = list(evidence_lines(evidence, diagnosis))
    width = max((len(file) for file, _ in lines), default=0)
    return "\n".join(
        [
            f"{evidence.run}: {diagnosis.verdict.replace('_', ' ')}",
            f"  {diagnosis.sentence}",
            *([""] + [f"  {line}" for line in shown] if shown else []),
            "",
            "evidence",
            *(f"  {file:{width}}  {text}" for file, text in lines),
            "",
            "next",
            *(f"  {command}" for command in diagnosis.next),
        ]
    )


def as_json(evidence: Evidence, diagnosis: Diagnosis) -> dict[str, Json]:
    """The diagnosis for programs: `verdict` is one of `VERDICTS`."""
    return {
        "run": str(evidence.run),
        "verdict": diagnosis.verdict,
        "sentence": diagnosis.sentence,
        "ranks": list(diagnosis.ranks),
        "host": diagnosis.host,
        "reason": diagnosis.reason,
        "stage": evidence.status.get("stage"),
        "step": evidence.step,
        "checkpoint": list(evidence.checkpoint) if evidence.checkpoint else None,
        "traceback": diagnosis.traceback,
        "evidence": [{"file": file, "text": text} for file, text in evidence_lines(evidence, diagnosis)],
        "next": list(diagnosis.next),
    }
