"""Work of known sizes shared out fairly, by the same rule on every rank."""

from collections.abc import Mapping


def share_out(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Names in `parts` lists of about equal size: the largest first, each to whoever has least so far."""
    shares: list[list[str]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += sizes[name] + 1  # so that names of no size are spread too
    return shares
