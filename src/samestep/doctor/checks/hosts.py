"""Host names resolve: each host's own, and every other's."""

import ipaddress
import socket

from samestep.doctor.check import Check, Fact
from samestep.doctor.findings import Finding, RankReports, failed, first_of_hosts, listed, ok, warning
from samestep.doctor.rendezvous import CheckContext

NAME = "host names"


def measure(seat: CheckContext) -> Fact:
    """The addresses that the names of all hosts stand for here; empty for a name that stands for none."""
    hosts = sorted({host for host in seat.hosts if host}) if seat.speaks_for_host else [seat.host]
    return {"addresses": {host: resolve(host) for host in hosts}}


def resolve(host: str) -> str:
    """The first address of a name; empty without one."""
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return ""


def judge(reports: RankReports) -> list[Finding]:
    """With one host a name that leads nowhere is a nuisance, with several it is a failure."""
    speakers = first_of_hosts(reports)
    unknown = [f"{r.host} does not know {_names(r.fact, r.host)}" for r in speakers if _names(r.fact, r.host)]
    if unknown:
        say = warning if len(speakers) == 1 else failed
        more = f" ({len(unknown) - 1} more hosts alike)" if len(unknown) > 1 else ""
        sentence = f"{unknown[0]}{more}: it is missing in DNS and in /etc/hosts there; add it"
        return [say(NAME, sentence)]
    looped = [r.host for r in speakers if _is_loopback(r.fact["addresses"][r.host])]
    if looped and len(speakers) > 1:
        return [
            warning(
                NAME,
                f"the name of {listed(looped[:3])} stands for a loopback address there: samestep finds the way by "
                "itself, other programs need GLOO_SOCKET_IFNAME; correct /etc/hosts",
            )
        ]
    found = [f"{r.host} is {r.fact['addresses'][r.host]}" for r in speakers]
    return [ok(NAME, listed(found[:4]) + (f" and {len(found) - 4} more, on all hosts" if len(found) > 4 else ""))]


def _names(fact: Fact, own: str) -> str:
    """The names that lead nowhere."""
    unknown = [host for host, address in fact["addresses"].items() if not address]
    return listed([f"its own name {host}" if host == own else f"the name {host}" for host in unknown[:3]])


def _is_loopback(address: str) -> bool:
    return bool(address) and ipaddress.ip_address(address).is_loopback


EXAM = Check("host names", measure, judge, "its name server does not answer; look at /etc/resolv.conf there")
