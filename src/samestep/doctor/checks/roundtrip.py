"""A checkpoint that all ranks save together comes back with every value, also what differs from rank to rank."""

import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from samestep.checkpoint.across_ranks import is_disk_shared
from samestep.checkpoint.store import Store
from samestep.core.records import Json
from samestep.doctor.check import Check, Fact
from samestep.doctor.checks.disk import existing
from samestep.doctor.findings import Finding, RankReports, failed, named, ok, span
from samestep.doctor.rendezvous import CheckContext

NAME = "checkpoint round trip"
_TENSORS, _NUMBERS = 8, 1 << 16


class SampleState:
    """A state of tensors that are equal on all ranks, and a word of each rank's own."""

    def __init__(self, seed: int, word: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {f"part {at}": torch.randn(_NUMBERS, generator=generator) for at in range(_TENSORS)}
        self.word = word

    def state_dict(self) -> dict[str, Any]:
        """All tensors."""
        return self.tensors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take them back."""
        self.tensors = state

    def rank_state(self) -> Json:
        """This rank's word."""
        return self.word

    def load_rank_state(self, states: list[Json]) -> None:
        """Take the words of all ranks."""
        self.word = " ".join(states)


def measure(seat: CheckContext) -> Fact:
    """Save, load into other values, compare; nothing is left behind."""
    world = seat.joined()
    folder = Path(world.share(str(existing(seat.out) / f".samestep-doctor-{secrets.token_hex(4)}")))
    try:
        store = Store(folder, world, shared=is_disk_shared(folder, world))
        packed, unpacked = SampleState(1, f"rank {world.rank}"), SampleState(2, "")
        began = time.perf_counter()
        store.save(1, {"luggage": packed}, {})
        seconds = time.perf_counter() - began
        found = store.newest()
        if found is None:
            return {"wrong": "no checkpoint was found after the save", "seconds": seconds}
        store.load(found, {"luggage": unpacked})
        wrong = [name for name, tensor in packed.tensors.items() if not torch.equal(tensor, unpacked.tensors[name])]
        words = " ".join(f"rank {rank}" for rank in range(world.size))
        if unpacked.word != words:
            wrong.append("what each rank keeps for itself")
        return {"wrong": ", ".join(wrong), "seconds": seconds, "shared": store.shared}
    finally:
        world.barrier()
        shutil.rmtree(folder, ignore_errors=True)


def judge(reports: RankReports) -> list[Finding]:
    """Every value on every rank."""
    bad = [report for report in reports if report.fact["wrong"]]
    if bad:
        return [
            failed(
                NAME,
                f"{named(bad)} did not get back {bad[0].fact['wrong']}: the disk returns other bytes than were "
                "written, or shows them too late; choose another --out",
            )
        ]
    who = "all ranks" if reports[0].fact["shared"] else "rank 0, which alone sees its disk,"
    seconds = max(report.fact["seconds"] for report in reports)
    return [ok(NAME, f"{who} saved 2 MiB in {span(seconds)}; loaded everywhere, equal in every bit")]


EXAM = Check(NAME, measure, judge, "the disk behind --out hangs or fails; choose another --out", together=True)
