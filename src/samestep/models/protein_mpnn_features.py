"""From backbone coordinates to the edges of ProteinMPNN: nearest residues, distances of atoms, relative positions.

All of it is computed in at least float32: a distance in bf16 is wrong by up to 0.06 Å at 20 Å.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.models.deferred_init import Linear
from samestep.models.wide import wide_type

FARTHEST_OFFSET = 32
"""Residues that are further apart in a chain have the same relative position."""
OFFSETS = 2 * FARTHEST_OFFSET + 2
"""Relative positions; the last one is for another chain."""
OFFSET_SIZE = 16
RADIAL_BASES = 16
NEAREST, FARTHEST = 2.0, 22.0
"""The centres of the first and the last radial basis, in Å."""
CA_C, CA_N, PLANE_NORMAL = -0.54067466, 0.56802827, -0.58273431
"""Where an ideal CB is, seen from CA: along CA to C, along N to CA, and along the cross product of the latter two."""
_PAIRS = (
    "CA-CA N-N C-C O-O CB-CB CA-N CA-C CA-O CA-CB N-C N-O N-CB CB-C CB-O O-C "
    "N-CA C-CA O-CA CB-CA C-N O-N CB-N C-CB O-CB C-O"
)
"""Atom of a residue and atom of its neighbour, in the order of the published weights."""
_ATOMS = ("N", "CA", "C", "O", "CB")
_PAIR_PLACES = [
    _ATOMS.index(own) * len(_ATOMS) + _ATOMS.index(other) for own, other in (p.split("-") for p in _PAIRS.split())
]


class Graph(NamedTuple):
    """Which residues are connected."""

    neighbours: Tensor
    """[rows, length, neighbours]: positions, the nearest first."""
    usable: Tensor
    """[rows, length, neighbours]: whether both ends are resolved."""
    resolved: Tensor
    """[rows, length]"""


def take(values: Tensor, places: Tensor) -> Tensor:
    """What `values` [rows, width, size] has at `places` [rows, ...]: [rows, ..., size]."""
    rows, width, size = values.shape
    first = torch.arange(rows, device=places.device).view(-1, *[1] * (places.dim() - 1)) * width
    return values.reshape(-1, size).index_select(0, (first + places).flatten()).view(*places.shape, size)


def nearest(points: Tensor, resolved: Tensor, count: int) -> Graph:
    """Connect each residue with the `count` nearest, by `points` [rows, length, 3].

    Of equally near ones the first are taken: distance and position are compared as one whole number, so neither padding
    nor the device decides.
    """
    x, y, z = (axis[:, :, None] - axis[:, None, :] for axis in points.detach().unbind(-1))
    both = resolved[:, :, None] & resolved[:, None, :]
    squares = torch.where(both, x * x + y * y + z * z, torch.inf).float()
    positions = torch.arange(points.shape[1], device=points.device)
    ranks = (squares.view(torch.int32).long() << 32) | positions  # the bits of floats above zero are in their order
    first = ranks.topk(min(count, points.shape[1]), largest=False).values
    neighbours = first & 0xFFFFFFFF
    return Graph(neighbours, both.gather(2, neighbours), resolved)


class LayerNorm(nn.LayerNorm):
    """Layer norm in at least float32, whatever the type of its weights; the result is of the type of its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        dtype = wide_type(x.dtype)
        weight, bias = self.weight.to(dtype), self.bias.to(dtype)
        return F.layer_norm(x.to(dtype), self.normalized_shape, weight, bias, self.eps).to(x.dtype)


class RelativePositions(nn.Module):
    """A vector for how far apart two residues are in their chain."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(OFFSETS, OFFSET_SIZE)

    def forward(self, offsets: Tensor) -> Tensor:
        """The vectors of offsets [...], numbers from 0 to OFFSETS - 1."""
        numbers = torch.arange(OFFSETS, device=offsets.device)
        vectors: Tensor = self.linear((offsets[..., None] == numbers).to(self.linear.weight.dtype))
        return vectors


class Features(nn.Module):
    """Edges from geometry: distances between all pairs of backbone atoms, and relative positions."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.embeddings = RelativePositions()
        self.edge_embedding = Linear(OFFSET_SIZE + RADIAL_BASES * len(_PAIR_PLACES), hidden, bias=False)
        self.norm_edges = LayerNorm(hidden)

    def forward(self, coordinates: Tensor, neighbours: Tensor, residue_index: Tensor, chain: Tensor) -> Tensor:
        """[rows, length, neighbours, hidden]"""
        bases = radial_bases(pair_distances(coordinates, neighbours))
        vectors = self.embeddings(_offsets(residue_index, chain, neighbours))
        weight = self.edge_embedding.weight
        edges = F.linear(bases, weight[:, OFFSET_SIZE:]) + F.linear(vectors, weight[:, :OFFSET_SIZE])
        normed: Tensor = self.norm_edges(edges)
        return normed


def pair_distances(coordinates: Tensor, neighbours: Tensor) -> Tensor:
    """Distances of all pairs of atoms of a residue and its neighbours: [rows, length, neighbours, 25]."""
    n, ca, c, _ = coordinates.unbind(2)
    to_ca, to_c = ca - n, c - ca
    cb = PLANE_NORMAL * torch.linalg.cross(to_ca, to_c) + CA_N * to_ca + CA_C * to_c + ca
    atoms = torch.cat((coordinates, cb[:, :, None]), 2)
    others = take(atoms.flatten(2), neighbours).unflatten(-1, (1, len(_ATOMS), 3))
    squares = (atoms[:, :, None, :, None] - others).square().sum(-1)
    distances = (squares + 1e-6).sqrt().flatten(-2).unbind(-1)
    return torch.stack([distances[place] for place in _PAIR_PLACES], -1)


def radial_bases(distances: Tensor) -> Tensor:
    """Each distance as 16 smooth bins: [..., pairs] to [..., pairs * 16]."""
    width = (FARTHEST - NEAREST) / RADIAL_BASES
    centres = torch.linspace(NEAREST, FARTHEST, RADIAL_BASES, dtype=distances.dtype, device=distances.device)
    return ((distances[..., None] - centres) / width).square().neg().exp().flatten(-2)


def _offsets(residue_index: Tensor, chain: Tensor, neighbours: Tensor) -> Tensor:
    flat = neighbours.flatten(1)
    apart = residue_index[:, :, None] - residue_index.gather(1, flat).view_as(neighbours)
    is_same_chain = chain[:, :, None] == chain.gather(1, flat).view_as(neighbours)
    clipped = (apart + FARTHEST_OFFSET).clamp(0, 2 * FARTHEST_OFFSET)
    return torch.where(is_same_chain, clipped, OFFSETS - 1)
