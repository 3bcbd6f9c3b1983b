"""Opens the process group, as training does."""

import socket
from datetime import timedelta

import torch

from samestep.core.errors import UserError
from samestep.doctor.check import Check, Fact
from samestep.doctor.findings import Finding, RankReports, ok
from samestep.doctor.rendezvous import CheckContext
from samestep.world.device import choose_device
from samestep.world.world import World

EARLY = 0.7
"""The part of an exam's time after which gloo gives up: who only waits for another then says so, and who hangs not."""
NEVER = 600.0
"""Seconds beyond an exam's time for NCCL, whose giving up would end the process before it can tell."""
NETWORK = (
    "a firewall between hosts, or a network that leads nowhere; open all ports between them, and name the network with "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
)


def measure(seat: CheckContext) -> Fact:
    """Connect; the world is there for all later exams."""
    store = seat.line.another().store if seat.place.grouped else None
    world = World(seat.place, torch.device("cpu"), timeout=timedelta(seconds=seat.timeout), store=store)
    world.connect(seat.device, "auto", _timeout(seat))
    world.barrier()
    seat.world = world
    return {"backend": world.backend or "", "device": str(world.device), "host": socket.gethostname()}


def _timeout(seat: CheckContext) -> float:
    try:
        kind = choose_device(seat.device, seat.place).type
    except UserError:  # `connect` will tell all ranks
        kind = "cpu"
    return EARLY * seat.timeout if kind == "cpu" else seat.timeout + NEVER


def judge(reports: RankReports) -> list[Finding]:
    """It is open."""
    backend = reports[0].fact["backend"] or "no"
    kind = reports[0].fact["device"].partition(":")[0]
    return [ok("process group", f"{backend} for tensors on {kind}, gloo for messages")]


EXAM = Check("process group", measure, judge, NETWORK, together=True)
