"""The course of an examination: rank 0 leads from exam to exam, the others follow its word."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from samestep.doctor.check import Answer, Check, findings, run_check
from samestep.doctor.findings import Finding, RankReport, RankReports, failed, ok, skipped
from samestep.doctor.rendezvous import SLACK, CheckContext, StoreChannel, absence, hear_rank_0, patience
from samestep.doctor.time_limit import last_resort
from samestep.verify.tolerance import plural

_MEETING = "ranks meet"
_LAUNCHERS = {"local": "samestep"}


@dataclass
class CheckRunner:
    """What was found so far. `reports` has what all ranks measured, by exam, for those that all came through."""

    seat: CheckContext
    line: StoreChannel
    show: Callable[[str], None] = lambda doing: None
    findings: list[Finding] = field(default_factory=list)
    reports: dict[str, RankReports] = field(default_factory=dict)
    doing: str = _MEETING
    stopped: bool = False
    """Whether it was ended from outside."""
    broken: str = ""
    """Why exams that need all ranks cannot be held any more."""
    _turn: int = 0

    def begin(self) -> None:
        """Say who came."""
        missing, place = absence(self.seat), self.seat.place
        if missing:
            self.findings.append(failed(_MEETING, missing))
            self.broken = "not all ranks came"
        else:
            hosts = len(set(self.seat.hosts))
            by = (
                f", started by {_LAUNCHERS.get(place.launcher, place.launcher)}"
                if place.grouped
                else ", this process alone"
            )
            self.findings.append(ok(_MEETING, f"{plural(place.size, 'rank')} on {plural(hosts, 'host')}{by}"))

    def lead(self, exams: Sequence[Check]) -> None:
        """Hold the exams, as far as they can be held. On rank 0."""
        for exam in exams:
            if exam.together and self.broken:
                self.findings.append(skipped(exam.name, self.broken))
            else:
                self.doing = exam.name
                self.show(exam.name)
                self._hold(exam)
        self.doing = ""

    def end(self) -> None:
        """Tell the others that it is over."""
        self.line.tell(f"turn/{self._turn}", None)

    def _hold(self, exam: Check) -> None:
        seat = self.seat
        self.line.tell(f"turn/{self._turn}", exam.name)
        end = time.monotonic() + seat.timeout + SLACK
        answers = {0: _sit(exam, seat, self.line)}
        hosts = {rank: host for rank, host in enumerate(seat.hosts) if host is not None}
        for rank in list(hosts)[1:]:
            try:
                heard = self.line.hear(f"answer/{self._turn}/{rank}", max(0.0, end - time.monotonic()))
                answers[rank] = Answer(**heard)
            except TimeoutError:
                seat.hosts[rank] = None  # nobody waits for it again
        self._turn += 1
        self.findings += findings(exam, hosts, answers, seat.timeout)
        if _complete(hosts, answers):
            facts = {rank: answer.fact or {} for rank, answer in answers.items()}
            self.reports[exam.name] = [RankReport(rank, hosts[rank], fact) for rank, fact in facts.items()]
        elif exam.together or len(answers) < len(hosts):
            self.broken = f"not all ranks came through {exam.name!r}"


def follow(seat: CheckContext, line: StoreChannel, exams: Mapping[str, Check]) -> None:
    """Take the exams that rank 0 calls, to the end. On every other rank."""
    turn = 0
    while True:
        name = hear_rank_0(seat, line, f"turn/{turn}")
        if name is None:
            return
        line.tell(f"answer/{turn}/{seat.rank}", asdict(_sit(exams[name], seat, line)))
        turn += 1


def _sit(exam: Check, seat: CheckContext, line: StoreChannel) -> Answer:
    last_resort(2 * patience(seat))
    answer = run_check(exam, seat)
    if answer.where:  # whoever hangs there may do so on the connection
        seat.line = line.another()
        seat.stuck = True
    return answer


def _complete(hosts: Mapping[int, str], answers: Mapping[int, Answer]) -> bool:
    return all(rank in answers and answers[rank].fact is not None for rank in hosts)
