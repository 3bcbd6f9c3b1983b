"""One exam: what every rank measures, and what follows from all measurements together."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from samestep.core.errors import RunFailed, UserError
from samestep.core.records import Json
from samestep.doctor.findings import Finding, RankReport, RankReports, failed, named
from samestep.doctor.rendezvous import CheckContext
from samestep.doctor.time_limit import Late, within

Fact = Mapping[str, Json]
_SOURCE = re.compile(r"^\[[^\]]*\]\s*")


@dataclass(frozen=True)
class Check:
    """`measure` runs on every rank and may fail or hang; `judge` is a pure function of what came of it on rank 0."""

    name: str
    measure: Callable[[CheckContext], Fact]
    judge: Callable[[RankReports], list[Finding]]
    hint: str
    """Why a rank would not come through it, and what to do then."""
    together: bool = False
    """Whether ranks need each other for it: then it makes no sense once one of them is missing."""


@dataclass(frozen=True)
class Answer:
    """What became of an exam on one rank: a fact, an error, or neither, because it did not come to its end."""

    fact: Fact | None = None
    error: str = ""
    where: str = ""
    """The source line at which it was, where it was too late but the rank itself still answers."""
    seconds: float = 0.0
    """How long it took."""


def run_check(exam: Check, seat: CheckContext) -> Answer:
    """Take an exam on this rank, within its time."""
    began = time.monotonic()
    try:
        return Answer(within(seat.timeout, lambda: _measure(exam, seat)))
    except Late as late:
        return Answer(where=late.where)
    except Exception as error:
        return Answer(error=_in_words(error), seconds=time.monotonic() - began)


def _in_words(error: Exception) -> str:
    """One line: of an error that nobody foresaw with its kind, of one of C++ without its file."""
    text = _SOURCE.sub("", (str(error).strip().splitlines() or [""])[0])
    return text if isinstance(error, UserError | RunFailed) else f"{type(error).__name__}: {text}"


def _measure(exam: Check, seat: CheckContext) -> Fact:
    device = seat.world.device if seat.world else torch.device("cpu")
    if device.type != "cpu":  # the current device belongs to a thread, and this is a new one
        getattr(torch, device.type).set_device(device)
    return exam.measure(seat)


def findings(exam: Check, hosts: Mapping[int, str], answers: Mapping[int, Answer], limit: float) -> list[Finding]:
    """What follows from the answers by rank; if one is missing, that is all that can be said."""
    wrong = trouble(exam, hosts, answers, limit)
    if wrong:
        return [failed(exam.name, wrong)]
    return exam.judge([RankReport(rank, hosts[rank], answer.fact or {}) for rank, answer in sorted(answers.items())])


def trouble(exam: Check, hosts: Mapping[int, str], answers: Mapping[int, Answer], limit: float) -> str:
    """Which ranks did not come through, and why; empty when all did.

    A rank that does not answer at all explains one that is late, one that is late explains an error of the others, and
    the first error explains the later ones.
    """
    silent = [rank for rank in hosts if rank not in answers]
    late = {rank: answer.where for rank, answer in answers.items() if answer.where}
    wrong = sorted((answer.seconds, rank) for rank, answer in answers.items() if answer.error)
    if silent:
        seen = f"{_who(silent, hosts)} did not answer within {limit:g} s and died or hangs"
    elif late:
        seen = f"{_late(late, hosts)} after {limit:g} s"
    elif wrong:
        first = answers[wrong[0][1]].error
        alike = [rank for _, rank in wrong if answers[rank].error == first]
        seen = f"{_who(alike, hosts)} failed with {first}"
    else:
        return ""
    return f"{seen}; likely cause: {exam.hint}"


def _late(late: Mapping[int, str], hosts: Mapping[int, str]) -> str:
    """Where ranks were that were late. Who stands where nobody else does comes first: the others wait for it."""
    places: dict[str, list[int]] = {}
    for rank, where in late.items():
        places.setdefault(where, []).append(rank)
    first, *rest = sorted(places, key=lambda where: len(places[where]))
    others = f", {_who([r for where in rest for r in places[where]], hosts)} at {rest[-1]}" if rest else ""
    verb = "were" if len(late) > 1 else "was"
    return f"{_who(places[first], hosts)} at {first}{others} {verb} still not done"


def _who(ranks: Sequence[int], hosts: Mapping[int, str]) -> str:
    return named([RankReport(rank, hosts[rank], {}) for rank in ranks])
