"""All-reduce gives the right values: every rank's part arrives once, in every type that training sends."""

import torch
import torch.distributed as dist

from samestep.doctor.check import Check, Fact
from samestep.doctor.checks.group import NETWORK
from samestep.doctor.findings import Finding, RankReports, failed, named, ok, warning
from samestep.doctor.rendezvous import CheckContext
from samestep.world.world import World

NAME = "all-reduce values"
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
_LENGTH = 4096


def measure(seat: CheckContext) -> Fact:
    """All-reduce known values over each lane; the ranks whose parts did not arrive, by lane and type."""
    world = seat.joined()
    wrong, missing, tried = {}, [], 0
    for lane, group, device in lanes(world):
        for name in TYPES:
            sent = part(world.rank, world.size, getattr(torch, name)).to(device)
            try:
                dist.all_reduce(sent, group=group)
            except RuntimeError as error:
                if "nsupported" not in str(error) and "nvalid scalar type" not in str(error):
                    raise
                missing.append(f"{lane} {name}")  # all ranks are told so before anything is sent
                continue
            tried += 1
            ranks = lost(sent.cpu(), world.size)
            if ranks:
                wrong[f"{lane} {name}"] = ranks
    return {"wrong": wrong, "missing": missing, "tried": tried}


def lanes(world: World) -> list[tuple[str, object, torch.device]]:
    """The ways in which training talks: the device's backend, and gloo for messages."""
    if world.control is None:
        return []
    device = (str(world.backend), None, world.device)
    return [device] if world.device.type == "cpu" else [device, ("gloo", world.control, torch.device("cpu"))]


def part(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """What one rank sends: numbers at its own places and zeros at the others', so that no sum is rounded."""
    places = torch.arange(max(_LENGTH, 2 * size))
    return torch.where(places % size == rank, _expected(places), 0).to(dtype)


def lost(total: torch.Tensor, size: int) -> list[int]:
    """The ranks whose part of the sum is not what it must be."""
    places = torch.arange(len(total))
    wrong = places[total.to(torch.float64) != _expected(places).to(torch.float64)]
    return sorted(set((wrong % size).tolist()))


def _expected(places: torch.Tensor) -> torch.Tensor:
    return places % 5 + 1


def judge(reports: RankReports) -> list[Finding]:
    """One wrong value anywhere is a failure."""
    bad = [report for report in reports if report.fact["wrong"]]
    if bad:
        lane, ranks = next(iter(bad[0].fact["wrong"].items()))
        parts = named([report for report in reports if report.rank in ranks])
        return [
            failed(
                NAME,
                f"{named(bad)} got a wrong sum by {lane}, in the part of {parts}: a broken network card, GPU or "
                "backend; leave that host out, and try NCCL_P2P_DISABLE=1 or another version of NCCL",
            )
        ]
    fact = reports[0].fact
    if fact["missing"]:
        return [
            warning(NAME, f"{', '.join(fact['missing'])} cannot be sent by this build of torch; the others are right")
        ]
    return [ok(NAME, f"exact in {fact['tried']} types: {', '.join(TYPES)}" if fact["tried"] == len(TYPES) else "exact")]


EXAM = Check(NAME, measure, judge, NETWORK, together=True)
