"""Replicas must hold the same parameters, bit for bit: compares them now and then, and names the ranks that differ.

Every so many steps each rank takes a fingerprint of every parameter on the device: an integer from its raw bits. It is
copied to the host without waiting. A step later one number per learner goes into a small all-reduce on the CPU, and a
step after that all ranks read the same result. Only if it shows a difference do they gather the fingerprints of single
tensors.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from samestep.core.errors import Diverged
from samestep.train.learner.content_hash import fingerprint, fingerprint_factors, weighted_sum
from samestep.train.learner.learner import Learner
from samestep.train.logging.metrics import Metrics
from samestep.train.record.progress import Tick
from samestep.world.world import World

SHOWN = 4
"""Ranks that an error names at most."""


class SameParameters:
    """Stops all ranks when replicated parameters are not equal any more.

    Sharded parameters have no copy to compare with, so they are left out; with nothing to compare this does nothing.
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
            self._factors = fingerprint_factors(self._tensors)
        self._taken: _PendingFingerprints | None = None
        self._sent: _PendingFingerprints | None = None
        self._agreed: int | None = None

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Advance the pending comparison by one step; when it is time, take new fingerprints."""
        if not self._every:
            return
        self._advance()
        done = tick.step + 1
        if done % self._every == 0 or last:
            self._take(done)
        if last:
            self.finish()

    def finish(self) -> None:
        """Finish the comparisons that are still pending."""
        while self._taken or self._sent:
            self._advance()

    def _take(self, step: int) -> None:
        prints = [fingerprint(tensor, self._factors) for tensor in self._tensors]
        sums = [weighted_sum(part, self._factors) for part in torch.stack(prints).split(self._sizes)]
        self._taken = _PendingFingerprints(step, torch.stack([*sums, *prints]))

    def _advance(self) -> None:
        """Read the result of the last all-reduce, then start the next one; all ranks do so at the same steps."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._check(sent)
        self._sent, self._taken = self._taken, None
        if self._sent is not None:
            self._sent.send(len(self._sizes), self._world)

    def _check(self, sent: "_PendingFingerprints") -> None:
        if sent.agreed():
            self._agreed = sent.step
            return
        gathered = self._world.gather([self._world.host, *sent.numbers[len(self._sizes) :].tolist()])
        hosts = [host for host, *_ in gathered]
        found = find_mismatch([prints for _, *prints in gathered])
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


class _PendingFingerprints:
    """Fingerprints of one step: copied off the device, then compared between the ranks."""

    def __init__(self, step: int, numbers: Tensor) -> None:
        self.step, self._copied = step, None
        self._work: Any = None
        if numbers.device.type == "cuda":
            self.numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self.numbers.copy_(numbers, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()
        else:
            self.numbers = numbers.cpu()

    def send(self, count: int, world: World) -> None:
        """Begin to compare the first `count` numbers: their largest, and their smallest as the largest complement."""
        if self._copied is not None:
            self._copied.synchronize()  # of a step ago
        self._message = torch.cat([self.numbers[:count], ~self.numbers[:count]])
        self._work = dist.all_reduce(self._message, dist.ReduceOp.MAX, group=world.control, async_op=True)

    def agreed(self) -> bool:
        """Whether all ranks sent the same numbers; all ranks get the same result."""
        self._work.wait()
        largest, smallest = self._message.chunk(2)
        return torch.equal(largest, ~smallest)


@dataclass(frozen=True)
class ParameterMismatch:
    """Which ranks differ, and in which tensors."""

    ranks: list[int]
    majority: bool
    """Whether most of the other ranks agree; if not, the ranks named are those that differ from rank 0."""
    tensors: list[int]


def find_mismatch(prints: Sequence[Sequence[int]]) -> ParameterMismatch:
    """Compare the fingerprints of all ranks, by rank, with what most of them have; in a tie with rank 0's."""
    groups = Counter(map(tuple, prints)).most_common(2)
    is_majority = groups[0][1] > groups[1][1]
    right = groups[0][0] if is_majority else tuple(prints[0])
    ranks = [rank for rank, own in enumerate(prints) if tuple(own) != right]
    tensors = [number for number, value in enumerate(right) if any(own[number] != value for own in prints)]
    return ParameterMismatch(ranks, is_majority, tensors)
