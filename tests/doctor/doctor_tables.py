"""Plain tables of what ranks measured, for the functions that compare."""

from collections.abc import Mapping, Sequence
from typing import Any

from samestep.doctor.findings import Finding, FindingStatus, RankReport

HOSTS = ("node1", "node1", "node2", "node2")


def ranks(usual: Mapping[str, Any], *changes: Mapping[str, Any], hosts: Sequence[str] = HOSTS) -> list[RankReport]:
    """One report for each entry of `hosts`, with the usual measurements; `changes` are those of the last ranks."""
    odd = [{}] * (len(hosts) - len(changes)) + list(changes)
    return [RankReport(rank, host, {**usual, **odd[rank]}) for rank, host in enumerate(hosts)]


def results(findings: Sequence[Finding]) -> list[FindingStatus]:
    return [finding.result for finding in findings]
