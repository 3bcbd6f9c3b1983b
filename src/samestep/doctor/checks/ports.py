"""Ports: one can be opened on every host, rank 0's can be reached, and clocks agree, which is asked on the way."""

import errno
import os
import socket

from samestep.doctor.check import Check, Fact
from samestep.doctor.clock import ask
from samestep.doctor.findings import Finding, RankReports, failed, first_of_hosts, named, ok, span, warning
from samestep.doctor.rendezvous import CheckContext

PORTS, CLOCKS = "ports", "clocks"
USUAL = 29500
"""torchrun's port where nobody gives another one."""
SKEW = 0.5
"""Seconds that clocks may be apart before it is worth a word: times in logs no longer tell what came first."""
TOO_MUCH = 5.0
"""Seconds apart at which signs of life of other hosts look old, and files look newer than they are."""


def measure(seat: CheckContext) -> Fact:
    """What can be opened and reached from here, and how far the clock is before rank 0's."""
    fact: dict[str, object] = {"bound": can_open(0), "taken": 0, "reached": "", "address": seat.address}
    usual = os.environ.get("MASTER_PORT", str(USUAL))
    if not seat.place.grouped and usual.isdigit() and can_open(int(usual)):  # who was launched has met there already
        fact["taken"] = int(usual)
    try:
        offset = ask(seat.address, seat.beacon, min(10.0, seat.timeout / 2))
    except (OSError, ValueError) as error:
        return {**fact, "reached": f"{type(error).__name__}: {error}", "port": seat.beacon}
    return {**fact, "offset": offset.seconds, "uncertainty": offset.uncertainty}


def can_open(port: int) -> str:
    """Why a port cannot be opened (0: any); empty if it can."""
    try:
        with socket.create_server(("", port)):
            return ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "") or str(error)


def judge(reports: RankReports) -> list[Finding]:
    """Ports, then clocks."""
    return [_ports(reports), _clocks(reports)]


def _ports(reports: RankReports) -> Finding:
    closed = [report for report in reports if report.fact["bound"]]
    if closed:
        return failed(
            PORTS,
            f"{named(closed)} cannot open any port ({closed[0].fact['bound']}): descriptors have run out, or a sandbox "
            "forbids it; look at ulimit -n and at the container's rules",
        )
    cut = [report for report in reports if report.fact["reached"]]
    if cut:
        fact = cut[0].fact
        why = (
            "the name is not known there; add it to /etc/hosts or DNS, or set MASTER_ADDR to an address"
            if fact["reached"].startswith("gaierror")
            else "a firewall lets only some ports through; open all ports between the hosts of a job"
        )
        where = f"{fact['address']}:{fact['port']}"
        return failed(PORTS, f"{named(cut)} cannot reach rank 0 at {where} ({fact['reached']}): {why}")
    taken = [report for report in reports if report.fact["taken"]]
    if taken:
        return warning(
            PORTS,
            f"port {taken[0].fact['taken']}, at which torchrun's ranks meet, is in use on {taken[0].host}: give "
            "torchrun another --master_port, or use samestep's own --nproc, which chooses a free one",
        )
    seen = "all ranks reach a port of rank 0" if len(reports) > 1 else "free ones can be opened"
    return ok(PORTS, seen)


def _clocks(reports: RankReports) -> Finding:
    told = [r for r in first_of_hosts(reports) if "offset" in r.fact and r.host != reports[0].host]
    if not told:
        return ok(CLOCKS, "one host, one clock")
    worst = max(told, key=lambda report: abs(report.fact["offset"]))
    offset, uncertainty = worst.fact["offset"], worst.fact["uncertainty"]
    apart = f"{span(abs(offset))} {'ahead of' if offset > 0 else 'behind'} {reports[0].host}'s"
    sure = abs(offset) - uncertainty
    if sure > SKEW:
        say = failed if sure > TOO_MUCH else warning
        return say(
            CLOCKS,
            f"the clock of {worst.host} is {apart} (give or take {span(uncertainty)}): no time service runs there; "
            "start chrony or ntpd on it",
        )
    return ok(CLOCKS, f"the one farthest off, {worst.host}'s, is {apart}, give or take {span(uncertainty)}")


EXAM = Check("ports", measure, judge, "packets to rank 0 vanish; open all ports between the hosts of a job")
