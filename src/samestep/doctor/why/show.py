"""Says what became of a run, by what that is known, and what to type next: for people and for programs."""

from samestep.core.records import Json
from samestep.doctor.why.evidence import Evidence
from samestep.doctor.why.finding import Finding
from samestep.doctor.why.witnesses import witnesses

_LINES = 24
"""How much of a traceback is shown; the file has all."""


def as_text(evidence: Evidence, finding: Finding) -> str:
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


def as_json(evidence: Evidence, finding: Finding) -> dict[str, Json]:
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
