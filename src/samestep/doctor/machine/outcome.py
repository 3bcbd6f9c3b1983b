"""What becomes of an examination on rank 0: the tables, the file of constants, the picture, the verdict."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from samestep.core.errors import EXIT_FAILURE
from samestep.core.handover import LastWord
from samestep.core.records import write_atomically
from samestep.doctor.check import plural
from samestep.doctor.machine import constants, devices, group, speed
from samestep.doctor.machine.course import Course
from samestep.doctor.machine.finding import Result
from samestep.doctor.machine.plot import svg
from samestep.doctor.machine.speed import Point
from samestep.doctor.machine.table import console, findings_table, speed_table, summary


@dataclass
class Outcome:
    """Tells what a course found."""

    course: Course
    test: str
    keep: Path | None = None

    @property
    def is_bad(self) -> bool:
        """Whether anything failed."""
        return any(finding.result is Result.FAILED for finding in self.course.findings)

    @contextmanager
    def showing(self) -> Iterator[None]:
        """On a terminal, what is going on."""
        with console().status("waiting for all ranks") as status:
            self.course.show = lambda doing: status.update(f"now: {doing}")
            yield

    def tell(self) -> None:
        """Print and keep everything."""
        screen, findings = console(), self.course.findings
        screen.print(findings_table(findings, f"samestep doctor --test {self.test} on {self._layout()}"))
        points = speed.points(self.course.reports.get(speed.NAME, ()))
        if points:
            screen.print(speed_table(points, self._plot_title()))
        self._save(screen, points)
        screen.print(summary(findings))
        if self.is_bad and not self.course.stopped:  # for torchrun, which shows it at the end of its own words
            said = f"{summary(findings)}; see the table above"
            word = LastWord(said, EXIT_FAILURE, 0, socket.gethostname(), traceback=said, time=time.time())
            word.leave(os.environ)

    def _save(self, screen: Console, points: list[Point]) -> None:
        reports, seat = self.course.reports, self.course.seat
        if self.keep is None and (self.course.broken or not constants.constants(reports)):
            return
        path = self.keep or constants.default_path(os.environ)
        hosts = [host or "unknown" for host in seat.hosts]
        key = constants.machine_key(hosts, self._kind())
        try:
            constants.save(path, key, constants.entry(reports, hosts, self._kind(), self.course.findings))
            screen.print(f"what was found and measured: {path}", soft_wrap=True)
            if points:
                picture = path.with_suffix(".svg")
                write_atomically(picture, svg(points, self._plot_title()))
                screen.print(f"picture of all-reduce by message size: {picture}", soft_wrap=True)
        except OSError as error:
            screen.print(f"{path} cannot be written ({error.strerror}); give another one with --json", soft_wrap=True)

    def _kind(self) -> str:
        reports = self.course.reports
        if group.EXAM.name in reports:
            return str(reports[group.EXAM.name][0].fact["device"]).partition(":")[0]
        told = reports.get(devices.EXAM.name)
        return str(told[0].fact.get("kind", "unknown")) if told else "unknown"

    def _layout(self) -> str:
        seat = self.course.seat
        hosts = list(dict.fromkeys(host for host in seat.hosts if host))
        where = hosts[0] if len(hosts) == 1 else plural(len(hosts), "host")
        return f"{where}, {plural(seat.place.size, 'rank')}"

    def _plot_title(self) -> str:
        backend = self.course.reports[group.EXAM.name][0].fact["backend"]
        return f"all-reduce by {backend} on {self._layout()}"
