"""Messages between ranks: JSON over a gloo group whose connections are proved (proved_groups.py).

Each has an HMAC over the group, its number in the group, its sender and its content. So nothing that somebody puts on
the wire is read, neither at a later place nor as of another rank. Nothing is ever unpickled.
"""

import hmac
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from samestep.core.errors import RunFailed
from samestep.core.json_files import Json
from samestep.world.frames import check_size_frames, size_frame

_PROOF = 32


class Tampered(RunFailed):
    """A message was not written by the rank that it should be of. Ranks no longer agree on what comes next."""

    def __init__(self, sender: int) -> None:
        super().__init__(
            f"a message of rank {sender} was changed on its way: somebody else writes to the network between the "
            "ranks; use a network that strangers cannot reach"
        )


class Messages:
    """The messages of one group over all ranks. All ranks make the same calls, in the same order."""

    def __init__(self, group: Any, key: bytes) -> None:
        self.group, self._key = group, key
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        self._number = 0

    def share(self, value: Json, source: int) -> Json:
        """The value of rank `source`, on every rank."""
        self._number += 1
        data = self._seal(value, source) if self._rank == source else torch.empty(0, dtype=torch.uint8)
        size = torch.tensor([len(data)])
        dist.broadcast(size, source, group=self.group)
        data = data if self._rank == source else torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(data, source, group=self.group)
        return self._opened(data, source)

    def gather(self, value: Json, within: float | None = None) -> list[Json]:
        """Every rank's value, by rank, on every rank. RuntimeError if ranks have not come `within` so many seconds;
        no other message can be sent after that."""
        padded, sizes = self._padded(self._sealed(value), within)
        parts = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(parts, padded, group=self.group)
        return [self._opened(part[:size], rank) for rank, (part, size) in enumerate(zip(parts, sizes))]

    def gather_to_main(self, value: Json) -> list[Json]:
        """Every rank's value, by rank, on rank 0; nothing on the others."""
        padded, sizes = self._padded(self._sealed(value))
        parts = [torch.empty_like(padded) for _ in sizes] if self._rank == 0 else None
        dist.gather(padded, parts, dst=0, group=self.group)
        return [self._opened(part[:size], rank) for rank, (part, size) in enumerate(zip(parts or (), sizes))]

    def scatter_from_main(self, values: Sequence[Json]) -> Json:
        """Of the values that rank 0 has for all ranks, this rank's; the others pass none."""
        self._number += 1
        parts = [self._seal(value, 0) for value in values]
        sizes = torch.tensor([len(part) for part in parts]) if parts else torch.zeros(self._size, dtype=torch.int64)
        dist.broadcast(sizes, 0, group=self.group)
        own = torch.empty(int(sizes.max()), dtype=torch.uint8)
        dist.scatter(own, [_pad(part, len(own)) for part in parts] or None, src=0, group=self.group)
        return self._opened(own[: int(sizes[self._rank])], 0)

    def _padded(self, data: torch.Tensor, within: float | None = None) -> tuple[torch.Tensor, list[int]]:
        """A message in the length of the longest, and the lengths of all."""
        own = size_frame(len(data))
        frames = [torch.zeros_like(own) for _ in range(self._size)]
        sent = dist.all_gather(frames, own, group=self.group, async_op=True)
        sent.wait(*([] if within is None else [timedelta(seconds=within)]))
        check_size_frames(frames, self._rank)
        sizes = [int(frame[0]) for frame in frames]
        return _pad(data, max(sizes)), sizes

    def _sealed(self, value: Json) -> torch.Tensor:
        """This rank's next message."""
        self._number += 1
        return self._seal(value, self._rank)

    def _seal(self, value: Json, sender: int) -> torch.Tensor:
        content = json.dumps(value).encode()
        return torch.frombuffer(bytearray(self._proof(sender, content) + content), dtype=torch.uint8)

    def _opened(self, data: torch.Tensor, sender: int) -> Json:
        message = data.numpy().tobytes()
        content = message[_PROOF:]
        if not hmac.compare_digest(message[:_PROOF], self._proof(sender, content)):
            raise Tampered(sender)
        return json.loads(content)

    def _proof(self, sender: int, content: bytes) -> bytes:
        about = json.dumps(["message", self.group.group_name, self._number, sender]).encode()
        return hmac.digest(self._key, about + b"\0" + content, "sha256")


def _pad(data: torch.Tensor, size: int) -> torch.Tensor:
    padded = torch.zeros(size, dtype=torch.uint8)
    padded[: len(data)] = data
    return padded
