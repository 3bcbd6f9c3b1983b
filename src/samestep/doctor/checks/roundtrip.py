"""A checkpoint that all ranks save together is loaded with every value, also those that differ between ranks."""

import secrets
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from samestep.checkpoint.across_ranks import is_disk_shared
from samestep.checkpoint.store import Store
from samestep.core.disk_space import existing_folder
from samestep.core.records import Json
from samestep.doctor.check import Check
from samestep.doctor.findings import Finding, Measured, RankReports, describe_ranks, failed, format_seconds, ok
from samestep.doctor.rendezvous import CheckContext

NAME = "checkpoint round trip"
_TENSORS, _NUMBERS = 8, 1 << 16


class SampleState:
    """A state of tensors that are equal on all ranks, and a text that differs on each rank."""

    def __init__(self, seed: int, rank_text: str) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tensors = {f"part {at}": torch.randn(_NUMBERS, generator=generator) for at in range(_TENSORS)}
        self.rank_text = rank_text

    def state_dict(self) -> dict[str, Any]:
        """All tensors."""
        return self.tensors

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over loaded tensors."""
        self.tensors = state

    def rank_state(self) -> Json:
        """This rank's text."""
        return self.rank_text

    def load_rank_state(self, states: list[Json]) -> None:
        """Join the texts of all ranks."""
        self.rank_text = " ".join(states)


def measure(context: CheckContext) -> Measured:
    """Save, load into other values, compare; nothing is left behind."""
    world = context.connected_world()
    folder = Path(world.share(str(existing_folder(context.out) / f".samestep-doctor-{secrets.token_hex(4)}")))
    try:
        store = Store(folder, world, shared=is_disk_shared(folder, world))
        saved, loaded = SampleState(1, f"rank {world.rank}"), SampleState(2, "")
        began = time.perf_counter()
        store.save(1, {"sample": saved}, {})
        seconds = time.perf_counter() - began
        found = store.newest()
        if found is None:
            return {"wrong": "no checkpoint was found after the save", "seconds": seconds}
        store.load(found, {"sample": loaded})
        wrong = [name for name, tensor in saved.tensors.items() if not torch.equal(tensor, loaded.tensors[name])]
        texts = " ".join(f"rank {rank}" for rank in range(world.size))
        if loaded.rank_text != texts:
            wrong.append("the state that differs between ranks")
        return {"wrong": ", ".join(wrong), "seconds": seconds, "shared": store.shared}
    finally:
        world.barrier()
        shutil.rmtree(folder, ignore_errors=True)


def compare(reports: RankReports) -> list[Finding]:
    """Every value on every rank."""
    bad = [report for report in reports if report.measured["wrong"]]
    if bad:
        return [
            failed(
                NAME,
                f"{describe_ranks(bad)} did not get back {bad[0].measured['wrong']}: the disk returns other bytes "
                "than were written, or shows them too late; choose another --out",
            )
        ]
    who = "all ranks" if reports[0].measured["shared"] else "rank 0, which alone sees its disk,"
    seconds = max(report.measured["seconds"] for report in reports)
    return [ok(NAME, f"{who} saved 2 MiB in {format_seconds(seconds)}; loaded everywhere, equal in every bit")]


CHECK = Check(NAME, measure, compare, "the disk behind --out hangs or fails; choose another --out", together=True)
