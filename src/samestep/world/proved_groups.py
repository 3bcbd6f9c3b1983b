"""Proves that each connection of a gloo group leads to the rank that it should.

Gloo gives a connection between two ranks to whoever connects first, and any user of the machine or network can. So
before a group is used, the two ranks of every connection send each other 32 random bytes, and then an HMAC over these,
the group and both ranks, with a key that follows from the secret of the launch. Whoever took the place of a rank cannot
answer. The rank that it displaced only sees silence; it learns from the store what the other one found.

This stops whoever can connect, not who reads and changes what is on the wire, or makes a rank connect to him: with a
process group that the user opened over a store of torch, its addresses are not authenticated. NCCL's connections are
not proved.
"""

import hmac
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from samestep.core.errors import RunFailed
from samestep.world.network_interface import VARIABLE

PROOF_TIMEOUT = 10.0
"""Seconds in which all connections of a rank must be proved, from when all ranks have opened the group."""
_SIZE = 32
_Link = tuple[int, int]
"""A connection of this rank: the other rank, and the number of the network interface."""


class NotProved(RunFailed):
    """A connection of a process group does not lead to the rank that it should."""

    def __init__(self, how: str) -> None:
        super().__init__(
            f"{how} a stranger holds the connection, or the ranks have different secrets; nothing of it was believed "
            "or executed, so start again, on a network that strangers cannot reach (docs/security.md)"
        )


def uses_gloo(group: Any) -> bool:
    """Whether CPU tensors of a group go over gloo."""
    backends = dict(pair.split(":") for pair in dist.get_backend_config(group).split(","))
    return backends.get("cpu") == "gloo"


def prove_connections(group: Any, key: bytes, timeout: float = PROOF_TIMEOUT) -> None:
    """Prove all connections of this rank in a gloo group; raises NotProved. All its ranks call it at the same time."""
    end, own = time.monotonic() + timeout, dist.get_rank()
    peers = [rank for rank in dist.get_process_group_ranks(group) if rank != own]
    # gloo has a connection for each interface, and uses the one that the tag says
    links = [(peer, tag) for peer in peers for tag in range(len(os.environ.get(VARIABLE, "").split(",")))]
    ours = {link: secrets.token_bytes(_SIZE) for link in links}
    theirs = _exchange(group, ours, end)

    def proof(sender: int, receiver: int, link: _Link, nonces: bytes) -> bytes:
        about = json.dumps(["connection", group.group_name, sender, receiver, link[1]]).encode()
        return hmac.digest(key, about + b"\0" + nonces, "sha256")

    proofs = {link: proof(own, link[0], link, ours[link] + theirs[link]) for link in links}
    for link, found in _exchange(group, proofs, end).items():
        if not hmac.compare_digest(found, proof(link[0], own, link, theirs[link] + ours[link])):
            raise NotProved(f"what answers rank {own} as rank {link[0]} in the process group {_name(group)} is not it:")


def _exchange(group: Any, outgoing: Mapping[_Link, bytes], end: float) -> dict[_Link, bytes]:
    """Send `_SIZE` bytes over every connection, and receive as many, before `end`."""
    incoming = {link: torch.zeros(_SIZE, dtype=torch.uint8) for link in outgoing}
    works: list[tuple[_Link, Any]] = []
    for link, data in incoming.items():
        with _must_answer(link, group):
            works.append((link, dist.irecv(data, link[0], group=group, tag=link[1])))
    for link, content in outgoing.items():
        with _must_answer(link, group):
            data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            works.append((link, dist.isend(data, link[0], group=group, tag=link[1])))
    for link, work in works:
        with _must_answer(link, group):
            work.wait(timedelta(seconds=max(0.001, end - time.monotonic())))
    return {link: data.numpy().tobytes() for link, data in incoming.items()}


@contextmanager
def _must_answer(link: _Link, group: Any) -> Iterator[None]:
    """Around a use of a connection: it may be closed, or nothing comes in time."""
    try:
        yield
    except RuntimeError:
        raise NotProved(
            f"rank {link[0]} did not prove to rank {dist.get_rank()} that it is there, in the process group "
            f"{_name(group)}: it ended, or took too long, or"
        ) from None


def _name(group: Any) -> str:
    return repr(group.group_desc)
