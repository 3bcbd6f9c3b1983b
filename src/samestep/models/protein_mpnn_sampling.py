"""Sequences from ProteinMPNN, letter by letter, each row in its own order.

bits = noise.bits(seed, purpose, ids[:, :1], ids[:, 1:], torch.arange(length))
order = decoding_order(fixed, resolved, bits)
with learner.inference() as network:
    encoded = network.encode(coordinates, resolved, residue_index, chain)
    drawn = sample(network, encoded, sequence, order, design, choose)
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from samestep.models.protein_mpnn import UNKNOWN, DecoderLayer, Encoded, ProteinMPNN
from samestep.models.protein_mpnn_features import take

Choose = Callable[[Tensor, int], Tensor]
"""From log-probabilities [rows, 21], -inf for X, and the place in the order (0 is the first) to letters [rows]."""


class Designs(NamedTuple):
    """What was sampled."""

    sequence: Tensor
    """[rows, length]: sampled letters at design positions, those that were given elsewhere."""
    log_probs: Tensor
    """[rows, length]: of the sampled letters among all 21, as `ProteinMPNN.forward` gives them; 0 elsewhere."""


def decoding_order(fixed: Tensor, resolved: Tensor, bits: Tensor | None = None) -> Tensor:
    """When each position is decoded, as `ProteinMPNN.forward` takes it: 0 is the first; all are [rows, length].

    Fixed positions come before the others, so that these see all of their letters; unresolved ones and padding come
    last. Within each group the order is from left to right, or by `bits`: random whole numbers in [0, 2^32), such as
    keyed noise, with which an order depends neither on padding nor on other rows.
    """
    length = fixed.shape[1]
    group = torch.where(resolved, torch.where(fixed, 0, 1), 2)
    within = torch.arange(length, device=fixed.device) if bits is None else bits
    by_place = ((group << 32) | within).argsort(dim=1, stable=True)
    return by_place.argsort(dim=1)


@torch.no_grad()
def sample(
    network: ProteinMPNN, encoded: Encoded, sequence: Tensor, order: Tensor, design: Tensor, choose: Choose
) -> Designs:
    """Sample letters at the resolved positions where `design` [rows, length] is true; the others keep theirs.

    Each letter costs one decoder step of one position: what later positions read of it is kept. Positions in front of
    the first design position are decoded together. Waits for the device once, before the first letter. A sharded
    network cannot be sampled from.
    """
    design = design & encoded.graph.resolved
    by_place = order.argsort(dim=1)
    places, length = by_place.argsort(dim=1), order.shape[1]
    first, last = torch.where(design, places, length).min(), torch.where(design, places, -1).max()
    start, stop = torch.stack((first, last + 1)).tolist()
    drawing = _Drawing(network, encoded, sequence, order, design)
    for place in range(start, stop):
        drawing.draw(by_place[:, place : place + 1], place, choose)
    return Designs(drawing.sequence, drawing.log_probs)


class _Drawing:
    """Sequences of which some letters are drawn."""

    def __init__(self, network: ProteinMPNN, encoded: Encoded, sequence: Tensor, order: Tensor, design: Tensor) -> None:
        self._network, self._encoded, self._design = network, encoded, design
        self._sources = encoded.sources(order)
        self.sequence = sequence.clone()
        self.log_probs = torch.zeros(sequence.shape, dtype=encoded.nodes.dtype, device=sequence.device)
        letters, nodes = network.W_s(sequence), encoded.nodes
        self._read: list[Tensor] = []
        """For each layer [rows, 2 * length, hidden]: what is read of a position that is decoded, then what is read of
        one that is not. The former is right only for positions in front of the first design; others are replaced."""
        for layer in self._layers:
            self._read.append(torch.cat((layer.earlier(nodes, letters), layer.later(encoded.nodes)), 1))
            nodes = layer(nodes, encoded, letters, self._sources)

    @property
    def _layers(self) -> list[DecoderLayer]:
        return [layer for layer in self._network.decoder_layers if isinstance(layer, DecoderLayer)]

    def draw(self, here: Tensor, place: int, choose: Choose) -> None:
        """Decode one position a row, `here` [rows, 1], and draw its letter if it is to be designed."""
        states, log_probs = self._decode(here)
        unknown = torch.arange(log_probs.shape[1], device=here.device) == UNKNOWN
        drawn = choose(log_probs.masked_fill(unknown, -torch.inf), place)[:, None]
        is_design = self._design.gather(1, here)
        drawn = torch.where(is_design, drawn, self.sequence.gather(1, here))
        self.sequence.scatter_(1, here, drawn)
        found = torch.where(is_design, log_probs.gather(1, drawn), 0.0)
        self.log_probs.scatter_(1, here, found.to(self.log_probs.dtype))
        letters = self._network.W_s(drawn)
        for layer, read, state in zip(self._layers, self._read, states, strict=True):
            now = layer.earlier(state, letters)
            read.scatter_(1, here[..., None].expand_as(now), now)

    def _decode(self, here: Tensor) -> tuple[list[Tensor], Tensor]:
        """What enters each layer at the positions, and their log-probabilities [rows, 21]."""
        nodes, edges, graph = self._encoded
        sources, usable = take(self._sources, here), take(graph.usable, here)
        edges = take(edges.flatten(2), here).unflatten(-1, edges.shape[2:])
        resolved = graph.resolved.gather(1, here)
        state, states = take(nodes, here), []
        for layer, read in zip(self._layers, self._read, strict=True):
            states.append(state)
            state = layer.step(state, edges, take(read, sources), usable, resolved)
        return states, self._network.log_probs(state)[:, 0]
