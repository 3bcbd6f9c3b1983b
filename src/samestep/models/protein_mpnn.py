"""ProteinMPNN: from the backbone of a protein to the odds of each residue's letter, given letters decoded before it.

    network = ProteinMPNN(ProteinMPNNConfig())
    log_probs = network(coordinates, sequence, resolved, residue_index, chain, order)   # [rows, length, 21]

Parameters have the names and shapes of the published weights, which protein_mpnn_files.py reads and writes. Two things
differ from the published program. It trains with dropout 0.1; here there is none, so that two calls give the same
numbers. And in a protein with fewer resolved residues than a position has neighbours, it lets unresolved ones fill the
list and take part in decoding; here they never do, so padding cannot change a result.

Layers use parts of their weights, so adapters around their linear layers would be passed over.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.models.deferred_init import DeferredInit, Embedding, Linear
from samestep.models.protein_mpnn_features import Features, Graph, LayerNorm, nearest, take
from samestep.models.wide import wide, wide_type

LETTERS = "ACDEFGHIKLMNPQRSTVWYX"
"""The amino acids by their number; X is an unknown one."""
UNKNOWN = LETTERS.index("X")
MESSAGE_SCALE = 30.0
"""A position divides the sum of its messages by this."""


@dataclass(frozen=True)
class ProteinMPNNConfig(CheckedConfig):
    """The shape of a network; the defaults are those of the published weights."""

    hidden: Count = 128
    """Width of a position and of an edge."""
    encoder_layers: Count = 3
    """Layers that see the structure alone."""
    decoder_layers: Count = 3
    """Layers that also see letters."""
    neighbours: Count = 48
    """Nearest residues that a residue is connected with, itself included."""


class Encoded(NamedTuple):
    """Structures as the decoder reads them."""

    nodes: Tensor
    """[rows, length, hidden], in at least float32"""
    edges: Tensor
    """[rows, length, neighbours, hidden]"""
    graph: Graph

    def repeat(self, times: int) -> "Encoded":
        """Each row several times, one after the other."""
        graph = Graph(*(_repeat(part, times) for part in self.graph))
        return Encoded(_repeat(self.nodes, times), _repeat(self.edges, times), graph)

    def rows(self, which: Tensor) -> "Encoded":
        """Some rows, as often as they are named."""
        return Encoded(self.nodes[which], self.edges[which], Graph(*(part[which] for part in self.graph)))

    def sources(self, order: Tensor) -> Tensor:
        """What a position reads of each neighbour: n if neighbour n is decoded before it, otherwise n + length."""
        places = self.graph.neighbours
        is_earlier = order.gather(1, places.flatten(1)).view_as(places) < order[:, :, None]
        return torch.where(is_earlier, places, places + order.shape[1])


def _repeat(rows: Tensor, times: int) -> Tensor:
    return rows[:, None].expand(-1, times, *rows.shape[1:]).flatten(0, 1)


class FeedForward(nn.Module):
    """Two linear layers, four times as wide between."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.W_in = Linear(hidden, 4 * hidden)
        self.W_out = Linear(4 * hidden, hidden)

    def forward(self, nodes: Tensor) -> Tensor:
        """Map positions one by one."""
        changed: Tensor = self.W_out(F.gelu(self.W_in(nodes)))
        return changed


class MessageLayer(nn.Module):
    """What both kinds of layers do: sum a message over each edge of a position, then change the position.

    The first linear layer of a message reads a position, an edge and a neighbour side by side. Its weight is used in
    parts instead, so that what depends on a position alone is not computed again for each of its 48 edges.
    """

    def __init__(self, hidden: int, parts: int) -> None:
        super().__init__()
        self.norm1 = LayerNorm(hidden)
        self.norm2 = LayerNorm(hidden)
        self.W1 = Linear(parts * hidden, hidden)
        self.W2 = Linear(hidden, hidden)
        self.W3 = Linear(hidden, hidden)
        self.dense = FeedForward(hidden)

    def change(self, nodes: Tensor, joined: Tensor, usable: Tensor, resolved: Tensor) -> Tensor:
        """The positions after their messages; `joined` [rows, positions, neighbours, hidden] is what W1 gives."""
        messages = F.gelu(self.W2(F.gelu(joined)))
        total = torch.where(usable[..., None], messages, 0.0).sum(2, dtype=nodes.dtype)
        # The last linear layer of a sum, not the sum of it: one product for all edges.
        total = F.linear(total, self.W3.weight) + self.W3.bias * usable.sum(2, dtype=nodes.dtype)[..., None]
        nodes = self.norm1(nodes + total / MESSAGE_SCALE)
        nodes = self.norm2(nodes + self.dense(nodes))
        return torch.where(resolved[..., None], nodes, 0.0)


class EncoderLayer(MessageLayer):
    """Positions from their edges and neighbours, then edges from both ends."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, parts=3)
        self.norm3 = LayerNorm(hidden)
        self.W11 = Linear(3 * hidden, hidden)
        self.W12 = Linear(hidden, hidden)
        self.W13 = Linear(hidden, hidden)

    def forward(self, nodes: Tensor, edges: Tensor, graph: Graph) -> tuple[Tensor, Tensor]:
        """The next positions and edges."""
        joined = self._join(self.W1, nodes, edges, graph)
        nodes = self.change(nodes, joined, graph.usable, graph.resolved)
        joined = self._join(self.W11, nodes, edges, graph)
        messages = self.W13(F.gelu(self.W12(F.gelu(joined))))
        return nodes, self.norm3(edges + messages)

    @staticmethod
    def _join(linear: nn.Linear, nodes: Tensor, edges: Tensor, graph: Graph) -> Tensor:
        own, between, other = linear.weight.chunk(3, 1)
        ends = take(F.linear(nodes, other), graph.neighbours)
        return F.linear(nodes, own, linear.bias)[:, :, None] + F.linear(edges, between) + ends


class DecoderLayer(MessageLayer):
    """Positions from their edges, and from neighbours: with their letters where those are decoded before."""

    def __init__(self, hidden: int) -> None:
        super().__init__(hidden, parts=4)

    def forward(self, nodes: Tensor, encoded: Encoded, letters: Tensor, sources: Tensor) -> Tensor:
        """The next positions, all at once; `letters` [rows, length, hidden] are embedded."""
        table = torch.cat((self.earlier(nodes, letters), self.later(encoded.nodes)), 1)
        graph = encoded.graph
        return self.step(nodes, encoded.edges, take(table, sources), graph.usable, graph.resolved)

    def earlier(self, nodes: Tensor, letters: Tensor) -> Tensor:
        """What positions that are decoded later read of these."""
        _, _, letter, other = self.W1.weight.chunk(4, 1)
        return F.linear(letters, letter) + F.linear(nodes, other)

    def later(self, encoded_nodes: Tensor) -> Tensor:
        """What positions that are decoded earlier read of these: only structure."""
        return F.linear(encoded_nodes, self.W1.weight.chunk(4, 1)[3])

    def step(self, nodes: Tensor, edges: Tensor, ends: Tensor, usable: Tensor, resolved: Tensor) -> Tensor:
        """Some positions, with what they read of their neighbours."""
        own, between, _, _ = self.W1.weight.chunk(4, 1)
        joined = F.linear(nodes, own, self.W1.bias)[:, :, None] + F.linear(edges, between) + ends
        return self.change(nodes, joined, usable, resolved)


class ProteinMPNN(DeferredInit):
    """The whole network."""

    def __init__(self, config: ProteinMPNNConfig) -> None:
        super().__init__()
        self.config = config
        self.features = Features(config.hidden)
        self.W_e = Linear(config.hidden, config.hidden)
        self.W_s = Embedding(len(LETTERS), config.hidden)
        self.encoder_layers = nn.ModuleList(EncoderLayer(config.hidden) for _ in range(config.encoder_layers))
        self.decoder_layers = nn.ModuleList(DecoderLayer(config.hidden) for _ in range(config.decoder_layers))
        self.W_out = Linear(config.hidden, len(LETTERS))
        self.initialise()

    @torch.no_grad()
    def init_parameter(self, name: str, weight: Tensor) -> None:
        """Draw the initial values of one parameter from torch's generator."""
        owner, _, kind = name.rpartition(".")
        part = self.get_submodule(owner)
        if isinstance(part, nn.LayerNorm):
            weight.fill_(1.0 if kind == "weight" else 0.0)
        elif kind == "weight":
            nn.init.xavier_uniform_(weight)
        else:
            assert isinstance(part, nn.Linear)
            bound = 1 / math.sqrt(part.in_features)
            weight.uniform_(-bound, bound)

    def forward(
        self,
        coordinates: Tensor,
        sequence: Tensor,
        resolved: Tensor,
        residue_index: Tensor,
        chain: Tensor,
        order: Tensor,
    ) -> Tensor:
        """Log-probabilities [rows, length, 21] of each letter, given the structure and the letters earlier in `order`.

        `coordinates` [rows, length, 4, 3] are of N, CA, C and O in Å. The rest is [rows, length]: `sequence` has the
        numbers of letters, `residue_index` those of residues in their chain, `chain` one number for each chain, `order`
        when a position is decoded: distinct numbers, the least one first. Where `resolved` is false, as in padding, a
        position influences nothing; its coordinates may be NaN.

        Several sequences of one structure share its encoding: [rows, sequences, length] in `sequence` gives
        [rows, sequences, length, 21].
        """
        encoded = self.encode(coordinates, resolved, residue_index, chain)
        if sequence.dim() == 2:
            return self.decode(encoded, sequence, order)
        count = sequence.shape[1]
        found = self.decode(encoded.repeat(count), sequence.flatten(0, 1), _repeat(order, count))
        return found.unflatten(0, (-1, count))

    def encode(self, coordinates: Tensor, resolved: Tensor, residue_index: Tensor, chain: Tensor) -> Encoded:
        """Read structures; the arguments are those of `forward`. Not for a network that is sharded, nor is `decode`."""
        dtype = torch.promote_types(wide_type(coordinates.dtype), self.W_e.weight.dtype)
        coordinates = torch.where(resolved[:, :, None, None], coordinates.to(dtype), 0.0)
        graph = nearest(coordinates[:, :, 1], resolved, self.config.neighbours)
        edges = self.W_e(self.features(coordinates, graph.neighbours, residue_index, chain))
        nodes = edges.new_zeros((*resolved.shape, self.config.hidden), dtype=wide_type(edges.dtype))
        for layer in self.encoder_layers:
            nodes, edges = layer(nodes, edges, graph)
        return Encoded(nodes, edges, graph)

    def decode(self, encoded: Encoded, sequence: Tensor, order: Tensor) -> Tensor:
        """Log-probabilities for one sequence [rows, length] of each row; the arguments are those of `forward`."""
        letters, sources, nodes = self.W_s(sequence), encoded.sources(order), encoded.nodes
        for layer in self.decoder_layers:
            nodes = layer(nodes, encoded, letters, sources)
        return self.log_probs(nodes)

    def log_probs(self, nodes: Tensor) -> Tensor:
        """Log-probabilities from decoded positions, in at least float32."""
        logits: Tensor = self.W_out(nodes)
        return wide(logits).log_softmax(-1)
