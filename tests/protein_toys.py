"""Small proteins for tests: backbones that look like some, and a network that is quick."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from samestep.models.protein_mpnn import ProteinMPNN, ProteinMPNNConfig

TINY = ProteinMPNNConfig(hidden=16, encoder_layers=2, decoder_layers=2, neighbours=6)


class Proteins(NamedTuple):
    """What the network is called with, in the order of its arguments."""

    coordinates: Tensor
    sequence: Tensor
    resolved: Tensor
    residue_index: Tensor
    chain: Tensor
    order: Tensor

    @property
    def structure(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the encoder is called with."""
        return self.coordinates, self.resolved, self.residue_index, self.chain

    def row(self, number: int) -> "Proteins":
        """One row alone."""
        return Proteins(*(part[number : number + 1] for part in self))

    def padded(self, more: int, *, coordinate: float = math.nan) -> "Proteins":
        """With padding at the end."""
        rows, length = self.sequence.shape
        fills = (coordinate, 20, False, 3, 9)
        parts = []
        for part, fill in zip(self[:5], fills, strict=True):
            parts.append(torch.cat((part, part.new_full((rows, more, *part.shape[2:]), fill)), 1))
        last = torch.arange(length, length + more).expand(rows, more)
        return Proteins(*parts, torch.cat((self.order, last), 1))

    def without(self, position: int) -> "Proteins":
        """With one residue cut out."""
        kept = [place for place in range(self.sequence.shape[1]) if place != position]
        return Proteins(*(part[:, kept] for part in self))


def helix(length: int) -> Tensor:
    """An ideal alpha helix [length, 4, 3]: 3.6 residues a turn, 1.5 Å along its axis for each."""
    atoms = ((1.55, -28.0, -0.9), (2.28, 0.0, 0.0), (1.68, 26.0, 1.1), (2.0, 24.0, 2.3))  # radius, angle, height
    turns = torch.arange(length, dtype=torch.float64)[:, None] * 100
    radius, angle, height = (torch.tensor(column, dtype=torch.float64) for column in zip(*atoms, strict=True))
    angles = torch.deg2rad(turns + angle)
    heights = height + 1.5 * torch.arange(length)[:, None]
    return torch.stack((radius * angles.cos(), radius * angles.sin(), heights), -1)


def random_walk(length: int, seed: int) -> Tensor:
    """A backbone [length, 4, 3] of which neighbouring CA are 3.8 Å apart."""
    generator = torch.Generator().manual_seed(seed)
    steps = torch.randn(length, 3, generator=generator, dtype=torch.float64)
    ca = torch.cumsum(3.8 * steps / steps.norm(dim=-1, keepdim=True), 0)
    apart = torch.randn(length, 4, 3, generator=generator, dtype=torch.float64)
    apart = 1.5 * apart / apart.norm(dim=-1, keepdim=True)
    apart[:, 1] = 0
    return ca[:, None] + apart


def proteins(
    length: int = 14,
    *,
    chains: int = 2,
    unresolved: tuple[int, ...] = (),
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Proteins:
    """Two rows, a helix that is bent a little and a random walk, with random letters and orders.

    Each has some chains of about equal length; unresolved residues have no coordinates.
    """
    generator = torch.Generator().manual_seed(seed)
    coordinates = torch.stack((helix(length), random_walk(length, seed)))
    coordinates += 0.1 * torch.randn(coordinates.shape, generator=generator, dtype=torch.float64)
    resolved = torch.ones(2, length, dtype=torch.bool)
    resolved[:, list(unresolved)] = False
    coordinates[~resolved] = math.nan
    sequence = torch.randint(20, (2, length), generator=generator)
    sequence[~resolved] = 20
    chain = (torch.arange(length) * chains // length).expand(2, length)
    residue_index = torch.arange(length) + 100 * chain
    order = torch.stack([torch.randperm(length, generator=generator) for _ in range(2)])
    return Proteins(coordinates.to(dtype), sequence, resolved, residue_index, chain, order)


def tiny_network(seed: int = 0, config: ProteinMPNNConfig = TINY, dtype: torch.dtype = torch.float32) -> ProteinMPNN:
    """A network whose norms are not all one, so that nothing is left out unnoticed."""
    torch.manual_seed(seed)
    network = ProteinMPNN(config)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if "norm" in name:
                weight.add_(0.3 * torch.randn(weight.shape))
    return network.to(dtype)
