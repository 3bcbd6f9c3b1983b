"""One check: what every rank measures, and what follows from all measurements together."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from samestep.core.errors import RunFailed, UserError
from samestep.doctor.findings import Finding, Measured, RankReport, RankReports, describe_ranks, failed
from samestep.doctor.rendezvous import CheckContext
from samestep.doctor.time_limit import TimeLimitExceeded, run_within

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
    """How long it took."""


def run_check(check: Check, context: CheckContext) -> RankOutcome:
    """Run a check on this rank, within its time limit."""
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


def check_findings(
    check: Check, hosts: Mapping[int, str], outcomes: Mapping[int, RankOutcome], limit: float
) -> list[Finding]:
    """The findings from all ranks' outcomes; when a rank did not complete the check, that is the only finding."""
    sentence = failure_sentence(check, hosts, outcomes, limit)
    if sentence:
        return [failed(check.name, sentence)]
    return check.compare(
        [RankReport(rank, hosts[rank], outcome.measured or {}) for rank, outcome in sorted(outcomes.items())]
    )


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
