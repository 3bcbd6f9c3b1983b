"""Replicas must hold the same parameters, bit for bit: this looks now and then, and names who does not.

Every so many steps each rank takes a fingerprint of every parameter, an integer out of its raw bits, on the device. It
is copied out without waiting; a step later one number a learner goes around in a small CPU message, and a step after
that all ranks read the same answer. Only if it is bad do they tell each other the fingerprints of single tensors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.core.errors import Diverged
from samestep.data import noise
from samestep.train.learner.learner import Learner
from samestep.train.logging.metrics import Metrics
from samestep.train.task import Tick
from samestep.world.world import World

PIECE = 1 << 20
"""Words of a tensor that are multiplied at a time: the product of a large one as a whole would not fit beside it."""
SHOWN = 4
"""Ranks that an error names at most."""
_WEIGHTS = noise.purpose("fingerprint")
_WORD = {1: torch.int8, 2: torch.int16}  # by the size of an element; of larger ones each 32 bits are a word


class SameParameters:
    """Stops all ranks when parameters that each of them holds whole are not equal any more.

    Sharded parameters are nobody's copy, so they are left out; with nothing to compare this does nothing.
    """

    def __init__(self, learners: Sequence[Learner], world: World, every: int) -> None:
        """Compares every `every` steps and at the last one; 0: never."""
        held = [(learner.name, learner.replicated_parameters()) for learner in learners]
        self._names = [(learner, name) for learner, tensors in held for name in tensors]
        self._tensors = [tensor for _, tensors in held for tensor in tensors.values()]
        self._sizes = [len(tensors) for _, tensors in held]
        self._world = world
        self._every = every if world.size > 1 and self._tensors else 0
        if self._every:
            self._weights = weights(self._tensors)
        self._taken: _Prints | None = None
        self._sent: _Prints | None = None
        self._agreed: int | None = None

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """What is under way goes one step on; when it is time, new fingerprints are taken."""
        if not self._every:
            return
        self._advance()
        done = tick.step + 1
        if done % self._every == 0 or last:
            self._take(done)
        if last:
            self.finish()

    def finish(self) -> None:
        """Wait for what is still under way."""
        while self._taken or self._sent:
            self._advance()

    def _take(self, step: int) -> None:
        prints = [fingerprint(tensor, self._weights) for tensor in self._tensors]
        sums = [mixed(part, self._weights) for part in torch.stack(prints).split(self._sizes)]
        self._taken = _Prints(step, torch.stack([*sums, *prints]))

    def _advance(self) -> None:
        """Read the answer to the last message, then send what was taken since; all ranks at the same steps."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._judge(sent)
        self._sent, self._taken = self._taken, None
        if self._sent is not None:
            self._sent.send(len(self._sizes), self._world)

    def _judge(self, sent: "_Prints") -> None:
        if sent.agreed():
            self._agreed = sent.step
            return
        every_rank = self._world.gather([self._world.host, *sent.numbers[len(self._sizes) :].tolist()])
        hosts = [host for host, *_ in every_rank]
        found = compare([prints for _, *prints in every_rank])
        raise Diverged(self._sentence(found, hosts, sent.step))

    def _sentence(self, found: "ParameterMismatch", hosts: Sequence[str], step: int) -> str:
        learner, tensor = self._names[found.tensors[0]]
        before = "they were not compared before" if self._agreed is None else f"after step {self._agreed} they did"
        since = "" if self._agreed is None else f", and do not trust checkpoints after step {self._agreed}"
        ranks = [f"{rank} on {hosts[rank]}" for rank in found.ranks[:SHOWN]]
        more = f" and {len(found.ranks) - SHOWN} more" if len(found.ranks) > SHOWN else ""
        who = f"rank{'s' * (len(found.ranks) > 1)} {', '.join(ranks)}{more}"
        return (
            f"the ranks do not hold the same parameters after step {step} ({before}): {who} "
            f"differ{'s' * (len(found.ranks) == 1)} from {'the others' if found.majority else 'rank 0'} in "
            f"{len(found.tensors)} of {len(self._names)} tensors, the first {tensor!r} of learner {learner!r}; "
            "look for a branch, a random draw or a write to parameters that depends on the rank (samestep verify finds "
            f"these) or for a faulty device{since}"
        )


class _Prints:
    """Fingerprints of one step on their way: off the device, then around the ranks."""

    def __init__(self, step: int, numbers: Tensor) -> None:
        self.step, self._arrival = step, None
        self._work: Any = None
        if numbers.device.type == "cuda":
            self.numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self.numbers.copy_(numbers, non_blocking=True)
            self._arrival = torch.cuda.Event()
            self._arrival.record()
        else:
            self.numbers = numbers.cpu()

    def send(self, count: int, world: World) -> None:
        """Begin to compare the first `count` numbers: their largest, and their smallest as the largest complement."""
        if self._arrival is not None:
            self._arrival.synchronize()  # of a step ago
        self._message = torch.cat([self.numbers[:count], ~self.numbers[:count]])
        self._work = dist.all_reduce(self._message, dist.ReduceOp.MAX, group=world.control, async_op=True)

    def agreed(self) -> bool:
        """Whether all ranks sent the same, which all of them hear alike."""
        self._work.wait()
        largest, smallest = self._message.chunk(2)
        return torch.equal(largest, ~smallest)


@dataclass(frozen=True)
class ParameterMismatch:
    """Who differs, and in what."""

    ranks: list[int]
    majority: bool
    """Whether most others agree with each other; if not, the ranks named are those that differ from rank 0."""
    tensors: list[int]


def compare(prints: Sequence[Sequence[int]]) -> ParameterMismatch:
    """Compare the fingerprints of all ranks, by rank, with what most of them have; in a tie with rank 0's."""
    groups = Counter(map(tuple, prints)).most_common(2)
    majority = groups[0][1] > groups[1][1]
    right = groups[0][0] if majority else tuple(prints[0])
    ranks = [rank for rank, own in enumerate(prints) if tuple(own) != right]
    tensors = [number for number, value in enumerate(right) if any(own[number] != value for own in prints)]
    return ParameterMismatch(ranks, majority, tensors)


def weights(tensors: Sequence[Tensor]) -> Tensor:
    """A fixed odd number of 64 bits for each place in a piece, on the device, as many as these tensors take."""
    length = max(len(tensors), *(len(_words(tensor)) for tensor in tensors))
    places = torch.arange(min(length, PIECE), device=tensors[0].device)
    high, low = noise.words(_WEIGHTS, places)
    return ((high - (1 << 31)) << 32) + (low | 1)


def fingerprint(tensor: Tensor, weights: Tensor) -> Tensor:
    """An integer that follows from every bit of a tensor and its place, alike on every rank; nothing waits for it.

    Sums wrap around at 64 bits, so their order is of no account. A change of one element is never missed, for an odd
    factor maps no two numbers to the same one; changes of several cancel out only by a chance of one in billions.
    """
    pieces = [mixed(piece, weights) for piece in _words(tensor).split(PIECE)]
    return pieces[0] if len(pieces) == 1 else mixed(torch.stack(pieces), weights)


def mixed(words: Tensor, weights: Tensor) -> Tensor:
    """The sum of integers, each times the weight of its place."""
    return (words * weights[: len(words)]).sum()


def _words(tensor: Tensor) -> Tensor:
    """The raw bits as integers."""
    return tensor.detach().reshape(-1).view(_WORD.get(tensor.element_size(), torch.int32))
