"""The network between hosts: names resolve, ports can be opened and reached, and clocks agree."""

import errno
import ipaddress
import os
import socket

from samestep.core.handshake import NotTrusted
from samestep.doctor.check import Check
from samestep.doctor.clock import measure_offset
from samestep.doctor.findings import (
    Finding,
    Measured,
    RankReports,
    describe_ranks,
    failed,
    first_rank_of_each_host,
    format_seconds,
    join_list,
    ok,
    warning,
)
from samestep.doctor.rendezvous import CheckContext

HOST_NAMES, PORTS, CLOCKS = "host names", "ports", "clocks"
USUAL = 29500
"""torchrun's default port."""
SKEW = 0.5
"""Seconds that clocks may be apart before it is worth a warning: times in logs no longer show what came first."""
TOO_MUCH = 5.0
"""Seconds apart at which heartbeats of other hosts look old, and files look newer than they are."""


def measure_host_names(context: CheckContext) -> Measured:
    """The addresses that the names of all hosts resolve to here; empty for a name that does not resolve."""
    hosts = sorted({host for host in context.hosts if host}) if context.is_first_on_host else [context.host]
    return {"addresses": {host: resolve(host) for host in hosts}}


def resolve(host: str) -> str:
    """The first address of a name; empty without one."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def compare_host_names(reports: RankReports) -> list[Finding]:
    """A name that does not resolve is a warning with one host, and a failure with several."""
    firsts = first_rank_of_each_host(reports)
    unknown = [
        f"{r.host} does not know {_unresolved(r.measured, r.host)}" for r in firsts if _unresolved(r.measured, r.host)
    ]
    if unknown:
        finding = warning if len(firsts) == 1 else failed
        more = f" ({len(unknown) - 1} more hosts alike)" if len(unknown) > 1 else ""
        sentence = f"{unknown[0]}{more}: it is missing in DNS and in /etc/hosts there; add it"
        return [finding(HOST_NAMES, sentence)]
    looped = [r.host for r in firsts if _is_loopback(r.measured["addresses"][r.host])]
    if looped and len(firsts) > 1:
        return [
            warning(
                HOST_NAMES,
                f"the name of {join_list(looped[:3])} resolves to a loopback address there: samestep finds the "
                "interface by itself, other programs need GLOO_SOCKET_IFNAME; correct /etc/hosts",
            )
        ]
    found = [f"{r.host} is {r.measured['addresses'][r.host]}" for r in firsts]
    return [
        ok(HOST_NAMES, join_list(found[:4]) + (f" and {len(found) - 4} more, on all hosts" if len(found) > 4 else ""))
    ]


def _unresolved(measured: Measured, own: str) -> str:
    """The names that do not resolve."""
    unknown = [host for host, address in measured["addresses"].items() if not address]
    return join_list([f"its own name {host}" if host == own else f"the name {host}" for host in unknown[:3]])


def _is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback


HOST_NAMES_CHECK = Check(
    HOST_NAMES,
    measure_host_names,
    compare_host_names,
    "its name server does not answer; look at /etc/resolv.conf there",
)


def measure_ports(context: CheckContext) -> Measured:
    """What can be opened and reached from here, and how far the clock is ahead of rank 0's."""
    measured: dict[str, object] = {"bound": port_error(0), "taken": 0, "reached": "", "address": context.address}
    usual = os.environ.get("MASTER_PORT", str(USUAL))
    is_launched = context.rank_info.grouped  # then the ranks have already met at that port
    if not is_launched and usual.isdigit() and port_error(int(usual)):
        measured["taken"] = int(usual)
    try:
        offset = measure_offset(context.address, context.clock_port, context.clock_key, min(10.0, context.timeout / 2))
    except (OSError, ValueError, NotTrusted) as error:
        return {**measured, "reached": f"{type(error).__name__}: {error}", "port": context.clock_port}
    return {**measured, "offset": offset.seconds, "uncertainty": offset.uncertainty}


def port_error(port: int) -> str:
    """Why a port cannot be opened (0: any); empty if it can."""
    try:
        with socket.create_server(("", port)):
            return ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "") or str(error)


def compare_ports(reports: RankReports) -> list[Finding]:
    """Ports, then clocks."""
    return [_ports(reports), _clocks(reports)]


def _ports(reports: RankReports) -> Finding:
    closed = [report for report in reports if report.measured["bound"]]
    if closed:
        return failed(
            PORTS,
            f"{describe_ranks(closed)} cannot open any port ({closed[0].measured['bound']}): descriptors have run "
            "out, or a sandbox forbids it; look at ulimit -n and at the container's rules",
        )
    cut = [report for report in reports if report.measured["reached"]]
    if cut:
        measured = cut[0].measured
        why = (
            "the name is not known there; add it to /etc/hosts or DNS, or set MASTER_ADDR to an address"
            if measured["reached"].startswith("gaierror")
            else "a firewall lets only some ports through; open all ports between the hosts of a job"
        )
        where = f"{measured['address']}:{measured['port']}"
        return failed(PORTS, f"{describe_ranks(cut)} cannot reach rank 0 at {where} ({measured['reached']}): {why}")
    taken = [report for report in reports if report.measured["taken"]]
    if taken:
        return warning(
            PORTS,
            f"port {taken[0].measured['taken']}, at which torchrun's ranks meet, is in use on {taken[0].host}: give "
            "torchrun another --master_port, or use samestep's own --nproc, which chooses a free one",
        )
    seen = "all ranks reach a port of rank 0" if len(reports) > 1 else "free ones can be opened"
    return ok(PORTS, seen)


def _clocks(reports: RankReports) -> Finding:
    others = [r for r in first_rank_of_each_host(reports) if "offset" in r.measured and r.host != reports[0].host]
    if not others:
        return ok(CLOCKS, "one host, one clock")
    worst = max(others, key=lambda report: abs(report.measured["offset"]))
    offset, uncertainty = worst.measured["offset"], worst.measured["uncertainty"]
    apart = f"{format_seconds(abs(offset))} {'ahead of' if offset > 0 else 'behind'} {reports[0].host}'s"
    sure = abs(offset) - uncertainty
    if sure > SKEW:
        finding = failed if sure > TOO_MUCH else warning
        return finding(
            CLOCKS,
            f"the clock of {worst.host} is {apart} (give or take {format_seconds(uncertainty)}): no time service runs "
            "there; start chrony or ntpd on it",
        )
    return ok(CLOCKS, f"the one farthest off, {worst.host}'s, is {apart}, give or take {format_seconds(uncertainty)}")


PORTS_CHECK = Check(
    PORTS, measure_ports, compare_ports, "packets to rank 0 vanish; open all ports between the hosts of a job"
)
