"""Which ranks have not come to the first place where all ranks meet, and where they should be."""

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from samestep.core.errors import RunFailed
from samestep.core.output import print_safely
from samestep.world.host_lists import job_hosts
from samestep.world.rank_discovery import RankInfo

FIRST_NOTICE = 60.0
"""Seconds after which it is said that something is waited for; then again after twice as long, and so on."""
_MOST = 8
"""How many ranks are named; there may be thousands."""


class Notices:
    """When to say that something is still waited for: after a minute, two, four and so on."""

    def __init__(self, first: float | None = None) -> None:
        self._next = FIRST_NOTICE if first is None else first

    def is_due(self, waited: float) -> bool:
        """Whether to say it now, `waited` seconds after the beginning."""
        if waited < self._next:
            return False
        self._next *= 2
        return True


def wait_for_start(
    keys: Sequence[str],
    store: Any,
    info: RankInfo,
    env: Mapping[str, str],
    limit: float,
    raise_peer_failure: Callable[[], None],
) -> None:
    """Wait until every rank has set its key; say now and then which ranks have not, and fail after `limit` seconds."""
    began, notices = time.monotonic(), Notices()
    while not store.check(list(keys)):
        raise_peer_failure()
        waited = time.monotonic() - began
        if waited > limit or notices.is_due(waited):
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            text = f"no sign of {describe_missing(missing, info, env)} after {waited:.0f} s" if missing else ""
            if text and waited > limit:
                raise RunFailed(f"{text}, so the run ends; see whether the node answers (ssh NODE true)")
            if text:
                print_safely(f"samestep: {text}; the run ends if this lasts for {limit:.0f} s", sys.stderr)
        time.sleep(0.005)


def describe_missing(missing: Sequence[int], info: RankInfo, env: Mapping[str, str]) -> str:
    """`rank 3 of 4 (node2)`, `ranks 2, 3 and 10 more of 24 (node2, node3)`: hosts as far as the job names them."""
    shown = ", ".join(map(str, missing[:_MOST]))
    more = f" and {len(missing) - _MOST} more" if len(missing) > _MOST else ""
    hosts = list(dict.fromkeys(host for rank in missing if (host := expected_host(rank, info, env))))[:_MOST]
    where = f" ({', '.join(hosts)})" if hosts else ""
    return f"{'ranks' if missing[1:] else 'rank'} {shown}{more} of {info.size}{where}"


def expected_host(rank: int, info: RankInfo, env: Mapping[str, str]) -> str:
    """The host of a rank, if all of the job's hosts have as many as this one; launchers fill one after the other."""
    hosts = job_hosts(env)
    return hosts[rank // info.local_size] if len(hosts) * info.local_size == info.size else ""
