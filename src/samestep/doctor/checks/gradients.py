"""Replicated training computes the gradient that one process computes from the whole batch."""

import hashlib

import torch
from torch import nn

from samestep.doctor.check import Check
from samestep.doctor.checks.collectives import NETWORK
from samestep.doctor.findings import Finding, Measured, RankReports, describe_ranks, failed, ok, outliers
from samestep.doctor.rendezvous import CheckContext
from samestep.parallel.wrap import wrap

NAME = "DDP gradients"
TOLERANCE = 1e-5
"""Largest difference relative to the whole gradient, in float32."""
ROWS, WIDTH = 4, 32
"""Rows of a rank, and numbers in a row."""


def measure(context: CheckContext) -> Measured:
    """How far the gradient that DDP gives here is from that of the whole batch, and a hash of its bits."""
    world = context.connected_world()
    rows, targets = batch(world.size * ROWS)
    mine = slice(world.rank * ROWS, (world.rank + 1) * ROWS)
    alone, shared = network().to(world.device), wrap(network(), world, "ddp", None)
    rows, targets = rows.to(world.device), targets.to(world.device)
    mean_error(alone, rows, targets).backward()
    shared.call(mean_error, rows[mine], targets[mine]).backward()
    expected, got = flat_gradient(alone), flat_gradient(shared.inner)
    distance = float((expected - got).norm() / expected.norm())
    return {"distance": distance, "hash": hashlib.sha256(got.numpy().tobytes()).hexdigest()[:12]}


def mean_error(model: nn.Module, rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss."""
    return nn.functional.mse_loss(model(rows), targets)


def batch(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same rows and targets on every rank."""
    generator = torch.Generator().manual_seed(17)
    return torch.randn(rows, WIDTH, generator=generator), torch.randn(rows, 1, generator=generator)


def network() -> nn.Module:
    """The same small network on every rank, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(17)
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 1))


def flat_gradient(module: nn.Module) -> torch.Tensor:
    """All gradients in one row, on the CPU."""
    return torch.cat([p.grad.reshape(-1).cpu() for p in module.parameters() if p.grad is not None])


def compare(reports: RankReports) -> list[Finding]:
    """Equal to one process, and equal on all ranks."""
    far = [report for report in reports if not report.measured["distance"] <= TOLERANCE]
    if far:
        return [
            failed(
                NAME,
                f"{describe_ranks(far)} differs by {far[0].measured['distance']:.1e} from the gradient of one "
                "process: gradients are not averaged over all ranks there; try another version of torch or NCCL, and "
                "NCCL_P2P_DISABLE=1",
            )
        ]
    _, odd = outliers(reports, {report.rank: report.measured["hash"] for report in reports})
    if odd:
        return [
            failed(
                NAME,
                f"{describe_ranks(odd)} has other bits in its gradient than the rest, so ranks would drift apart: the "
                "backend reduces in another order there; use the same kind of GPU and the same NCCL on every host",
            )
        ]
    worst = max(report.measured["distance"] for report in reports)
    return [ok(NAME, f"as one process computes them, within {worst:.1e}; equal bits on all ranks")]


CHECK = Check(NAME, measure, compare, NETWORK, together=True)
