"""Opens the process group, and checks that all-reduce gives the right values in every type that training sends; and
that replicated training computes the gradient that one process computes from the whole batch."""

import hashlib
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from samestep.core.errors import UserError
from samestep.doctor.check import Check
from samestep.doctor.findings import Finding, Measured, RankReports, describe_ranks, failed, ok, outliers, warning
from samestep.doctor.rendezvous import CheckContext
from samestep.parallel.wrap import wrap
from samestep.world.device import choose_device
from samestep.world.world import World

GROUP, VALUES = "process group", "all-reduce values"
TYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64")
_LENGTH = 4096
EARLY = 0.7
"""The part of a check's time limit after which gloo gives up, so that only a rank that hangs exceeds the limit."""
NEVER = 600.0
"""Seconds beyond a check's time limit for NCCL, since its own timeout would end the process before it can report."""
NETWORK = (
    "a firewall between hosts, or a network without a route; open all ports between them, and name the network with "
    "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
)


def measure_group(context: CheckContext) -> Measured:
    """Connect; all later checks use this world."""
    store = context.channel.new_connection().store if context.rank_info.grouped else None
    world = World(context.rank_info, torch.device("cpu"), timeout=timedelta(seconds=context.timeout), store=store)
    world.connect(context.device, "auto", _timeout(context))
    world.barrier()
    context.world = world
    return {"backend": world.backend or "", "device": str(world.device), "host": socket.gethostname()}


def _timeout(context: CheckContext) -> float:
    try:
        kind = choose_device(context.device, context.rank_info).type
    except UserError:  # `connect` reports it on all ranks
        kind = "cpu"
    return EARLY * context.timeout if kind == "cpu" else context.timeout + NEVER


def compare_group(reports: RankReports) -> list[Finding]:
    """Report the backends."""
    backend = reports[0].measured["backend"] or "no"
    kind = reports[0].measured["device"].partition(":")[0]
    return [ok(GROUP, f"{backend} for tensors on {kind}, gloo for messages")]


GROUP_CHECK = Check(GROUP, measure_group, compare_group, NETWORK, together=True)


def measure_values(context: CheckContext) -> Measured:
    """All-reduce known values with each backend; the ranks whose parts did not arrive, by backend and type."""
    world = context.connected_world()
    wrong, missing, tried = {}, [], 0
    for backend, group, device in _backends(world):
        for name in TYPES:
            sent = contribution(world.rank, world.size, getattr(torch, name)).to(device)
            try:
                dist.all_reduce(sent, group=group)
            except RuntimeError as error:
                if "nsupported" not in str(error) and "nvalid scalar type" not in str(error):
                    raise
                missing.append(f"{backend} {name}")  # all ranks raise this before anything is sent
                continue
            tried += 1
            ranks = wrong_ranks(sent.cpu(), world.size)
            if ranks:
                wrong[f"{backend} {name}"] = ranks
    return {"wrong": wrong, "missing": missing, "tried": tried}


def _backends(world: World) -> list[tuple[str, object, torch.device]]:
    """The backends that training uses, with their group and device: the device's own, and gloo for messages."""
    if world.control is None:
        return []
    device = (str(world.backend), None, world.device)
    return [device] if world.device.type == "cpu" else [device, ("gloo", world.control, torch.device("cpu"))]


def contribution(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """What one rank sends: numbers at its own positions and zeros at the others', so that no sum is rounded."""
    positions = torch.arange(max(_LENGTH, 2 * size))
    return torch.where(positions % size == rank, _expected(positions), 0).to(dtype)


def wrong_ranks(total: torch.Tensor, size: int) -> list[int]:
    """The ranks whose part of the sum is wrong."""
    positions = torch.arange(len(total))
    wrong = positions[total.to(torch.float64) != _expected(positions).to(torch.float64)]
    return sorted(set((wrong % size).tolist()))


def _expected(positions: torch.Tensor) -> torch.Tensor:
    return positions % 5 + 1


def compare_values(reports: RankReports) -> list[Finding]:
    """One wrong value anywhere is a failure."""
    bad = [report for report in reports if report.measured["wrong"]]
    if bad:
        backend, ranks = next(iter(bad[0].measured["wrong"].items()))
        parts = describe_ranks([report for report in reports if report.rank in ranks])
        return [
            failed(
                VALUES,
                f"{describe_ranks(bad)} got a wrong sum by {backend}, in the part of {parts}: a broken network card, "
                "GPU or backend; leave that host out, and try NCCL_P2P_DISABLE=1 or another version of NCCL",
            )
        ]
    measured = reports[0].measured
    if measured["missing"]:
        return [
            warning(
                VALUES, f"{', '.join(measured['missing'])} cannot be sent by this build of torch; the others are right"
            )
        ]
    return [
        ok(
            VALUES,
            f"exact in {measured['tried']} types: {', '.join(TYPES)}" if measured["tried"] == len(TYPES) else "exact",
        )
    ]


VALUES_CHECK = Check(VALUES, measure_values, compare_values, NETWORK, together=True)


GRADIENTS = "DDP gradients"
TOLERANCE = 1e-5
"""Largest difference relative to the whole gradient, in float32."""
ROWS, WIDTH = 4, 32
"""Rows of a rank, and numbers in a row."""


def measure_gradients(context: CheckContext) -> Measured:
    """How far the gradient that DDP gives here is from that of the whole batch, and a hash of its bits."""
    world = context.connected_world()
    rows, targets = _same_batch(world.size * ROWS)
    mine = slice(world.rank * ROWS, (world.rank + 1) * ROWS)
    alone, shared = _same_network().to(world.device), wrap(_same_network(), world, "ddp", None)
    rows, targets = rows.to(world.device), targets.to(world.device)
    _mean_error(alone, rows, targets).backward()
    shared.call(_mean_error, rows[mine], targets[mine]).backward()
    expected, got = _flat_gradient(alone), _flat_gradient(shared.inner)
    distance = float((expected - got).norm() / expected.norm())
    return {"distance": distance, "hash": hashlib.sha256(got.numpy().tobytes()).hexdigest()[:12]}


def _mean_error(model: nn.Module, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(rows), targets)


def _same_batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(17)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, 1, generator=generator)


def _same_network() -> nn.Module:
    """The same small network on every rank, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 1))


def _flat_gradient(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.reshape(-1).cpu() for p in module.parameters() if p.grad is not None])


def compare_gradients(reports: RankReports) -> list[Finding]:
    """Equal to one process, and equal on all ranks."""
    far = [report for report in reports if not report.measured["distance"] <= TOLERANCE]
    if far:
        return [
            failed(
                GRADIENTS,
                f"{describe_ranks(far)} differs by {far[0].measured['distance']:.1e} from the gradient of one "
                "process: gradients are not averaged over all ranks there; try another version of torch or NCCL, and "
                "NCCL_P2P_DISABLE=1",
            )
        ]
    _, odd = outliers(reports, {report.rank: report.measured["hash"] for report in reports})
    if odd:
        return [
            failed(
                GRADIENTS,
                f"{describe_ranks(odd)} has other bits in its gradient than the rest, so ranks would drift apart: the "
                "backend reduces in another order there; use the same kind of GPU and the same NCCL on every host",
            )
        ]
    worst = max(report.measured["distance"] for report in reports)
    return [ok(GRADIENTS, f"as one process computes them, within {worst:.1e}; equal bits on all ranks")]


GRADIENTS_CHECK = Check(GRADIENTS, measure_gradients, compare_gradients, NETWORK, together=True)
