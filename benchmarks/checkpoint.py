"""What a checkpoint costs: how long it blocks the loop, how much slower the loop is while it is written, and how fast
it is written and loaded; compared with `torch.save` by rank 0, blocking DCP, and a plain copy to the same disk.

    python benchmarks/checkpoint.py [--sizes 100MB 2GB] [--ranks 2] [--device cpu] [--folder .] [--repeats 3]

The state is replicated, as with DDP: every rank has all of it. Every time is the median over the repeats of the slowest
rank's time. All methods flush their files to the disk (fsync), and files are dropped from the page cache before a load.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from samestep.checkpoint.across_ranks import split_by_size
from samestep.checkpoint.background import Saver
from samestep.checkpoint.store import Store
from samestep.launching.local import start
from samestep.world.world import World

UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}
TENSORS = 64
LOOP = 1.3
"""How much longer the loop runs than the slowest method to save, so that a save ends before the loop does."""


class TensorState:
    """A stateful object that has only tensors."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self) -> dict[str, Any]:
        return dict(self.tensors)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state.keys() == self.tensors.keys()


class CheckpointBenchmark:
    """The measurements on one rank."""

    def __init__(self, world: World, folder: Path, size: int) -> None:
        self.world, self.folder = world, folder
        count = size // TENSORS // 4
        self.state = {f"t{i:02d}": torch.randn(count, device=world.device) for i in range(TENSORS)}
        self.sync: Callable[[], None] = torch.cuda.synchronize if world.device.type == "cuda" else lambda: None
        self.samples: dict[str, list[float]] = {}

    def timed(self, name: str, work: Callable[[], object]) -> float:
        """How long the slowest rank took; all start together."""
        self.sync()
        self.world.barrier()
        began, used = time.perf_counter(), time.process_time()
        work()
        taken = max(self.world.gather(time.perf_counter() - began))
        if name:
            self.samples.setdefault(name, []).append(taken)
            self.samples.setdefault(f"CPU: {name}", []).append(sum(self.world.gather(time.process_time() - used)))
        return taken

    def empty_folder(self, name: str) -> Path:
        """An empty folder on the disk, shared by all ranks."""
        path = self.folder / name
        if self.world.is_main:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        self.world.barrier()
        return path

    def drop_page_cache(self, path: Path) -> None:
        """Drop the files of a folder from the page cache."""
        for file in path.rglob("*") if self.world.is_main else ():
            if file.is_file():
                with open(file, "rb") as opened:
                    os.fsync(opened.fileno())
                    os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.world.barrier()

    def memory_copy(self) -> None:
        """Copy the state into memory that is allocated already, as every save after the first does."""
        copies = {name: torch.empty_like(t, device="cpu", pin_memory=t.is_cuda) for name, t in self.state.items()}

        def copy() -> None:
            for name, tensor in self.state.items():
                copies[name].copy_(tensor, non_blocking=True)
            self.sync()

        copy()
        self.timed("copy of the state in memory", copy)

    def plain_write(self) -> None:
        """Write this rank's share of the bytes to the disk, and nothing else."""
        path = self.empty_folder("plain")
        sizes = {name: tensor.nbytes for name, tensor in self.state.items()}
        mine = [self.state[name].cpu() for name in split_by_size(sizes, self.world.size)[self.world.rank]]

        def write() -> None:
            with open(path / str(self.world.rank), "wb") as file:
                for tensor in mine:
                    file.write(tensor.numpy().data)
                file.flush()
                os.fsync(file.fileno())

        self.timed("plain write", write)

    def torch_save(self) -> None:
        """Rank 0 saves everything, the others wait."""
        path = self.empty_folder("torch")
        self.timed("torch.save", self._torch_save)
        self.drop_page_cache(path)
        self.timed("load: torch.load", lambda: torch.load(path / "state.pt", map_location=self.world.device))

    def _torch_save(self) -> None:
        if self.world.is_main:
            with open(self.folder / "torch" / "state.pt", "wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())
        self.world.barrier()

    def dcp_save(self) -> None:
        """All ranks save their shares and wait."""
        path = self.empty_folder("dcp")
        self.timed("DCP", self._dcp_save)
        self.drop_page_cache(path)
        self.timed("load: DCP", lambda: dcp.load(dict(self.state), **self._dcp_options()))

    def _dcp_save(self) -> None:
        dcp.save(dict(self.state), **self._dcp_options())

    def _dcp_options(self) -> dict[str, Any]:
        group = self.world.control
        return {"checkpoint_id": self.folder / "dcp", "process_group": group, "no_dist": group is None}

    def samestep_save(self, saver: Saver, store: Store, step: int) -> None:
        """Save in the background, while nothing else runs."""
        parts = self.parts()

        def save() -> None:
            began = time.perf_counter()
            saver.save(step, parts, {})
            blocked.append(time.perf_counter() - began)
            saver.wait()

        blocked: list[float] = []
        self.timed("first save" if step == 1 else "samestep", save)
        name = "blocked by the first save" if step == 1 else "blocked by samestep"
        self.samples.setdefault(name, []).append(max(self.world.gather(blocked[0])))
        if step > 1:
            self.drop_page_cache(store.folder)
            self.timed("load: samestep, verified", lambda: store.load(store.newest(), parts))  # type: ignore[arg-type]

    def loops(self, seconds: float, saver: Saver) -> None:
        """A loop whose steps each end with a barrier: alone, and with a save at its start."""
        weight = torch.randn(1024 if self.world.device.type == "cpu" else 8192, 1024, device=self.world.device)

        def loop(steps: int) -> None:
            for _ in range(steps):
                weight.t().mm(weight)
                self.sync()
                self.world.barrier()

        steps = max(10, int(seconds / (self.timed("", lambda: loop(10)) / 10)))
        alone = statistics.median(self.timed("", lambda: loop(steps)) for _ in range(3))
        methods: dict[str, Callable[[], object]] = {
            "samestep": lambda: saver.save(1000 + len(self.samples.get("loop: samestep", ())), self.parts(), {}),
            "DCP": self._dcp_save,
            "torch.save": self._torch_save,
        }
        for name, save in methods.items():
            self.empty_folder("dcp")

            def with_save(save: Callable[[], object] = save) -> None:
                save()
                loop(steps)

            self.samples.setdefault(f"loop: {name}", []).append(self.timed("", with_save) - alone)
            saver.wait()
        self.samples.setdefault("loop alone", []).append(alone)

    def parts(self) -> dict[str, Any]:
        return {"model": TensorState(self.state)}


def measure(folder: str, size: int, repeats: int, device: str) -> None:
    """Run all measurements; called on every rank."""
    torch.set_num_threads(1)
    world = World.join(device=device, backend="auto" if device == "cpu" else "gloo")
    bench = CheckpointBenchmark(world, Path(folder), size)
    store = Store(Path(folder) / "store", world)
    with Saver(store) as saver:
        saver.reserve(bench.parts())
        bench.samestep_save(saver, store, 1)
        for number in range(repeats):
            bench.memory_copy()
            bench.plain_write()
            bench.torch_save()
            bench.dcp_save()
            bench.samestep_save(saver, store, 2 + number)
        slowest = max(statistics.median(bench.samples[name]) for name in ("torch.save", "DCP", "samestep"))
        for _ in range(repeats):
            bench.loops(LOOP * slowest, saver)
    if world.is_main:
        found = {name: statistics.median(samples) for name, samples in bench.samples.items()}
        (Path(folder) / "result.json").write_text(json.dumps(found))
    world.leave()


def table(found: dict[str, float], size: int) -> list[tuple[str, float, str]]:
    """Rows of name, seconds and an explanation."""
    copy, plain = found["copy of the state in memory"], found["plain write"]
    rows = [("copy of the state in memory", copy, "")]
    for name, key in (("samestep, first save", "blocked by the first save"), ("samestep", "blocked by samestep")):
        rows.append((f"loop blocked by {name}", found[key], f"{found[key] / copy:.2f} x the copy"))
    for name in ("DCP", "torch.save"):
        ratio = found[name] / found["blocked by samestep"]
        rows.append((f"loop blocked by {name}", found[name], f"{ratio:.0f} x samestep"))
    alone = found["loop alone"]
    for name in ("samestep", "DCP", "torch.save"):
        lost = found[f"loop: {name}"]
        used = f"of {alone:.1f} s without one; {found[f'CPU: {name}']:.2f} s of CPU time on all ranks"
        rows.append((f"longer loop with one save by {name}", lost, used))
    for name in ("plain write", "samestep", "DCP", "torch.save"):
        speed = f"{size / found[name] / 1e6:.0f} MB/s, {plain / found[name]:.2f} of a plain write"
        rows.append((f"on the disk by {name}", found[name], speed))
    for name in ("load: samestep, verified", "load: DCP", "load: torch.load"):
        rows.append((name, found[name], f"{size / found[name] / 1e6:.0f} MB/s"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What a checkpoint costs.")
    parser.add_argument("--sizes", nargs="+", default=["100MB", "2GB"])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", default=None)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    for text in options.sizes:
        size = int(float(text[:-2]) * UNITS[text[-2:]])
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            logs = Path(folder, "logs")
            workers = start(measure, options.ranks, folder, size, options.repeats, options.device, logs=logs)
            codes = workers.wait(3000)
            assert codes == [0] * options.ranks, workers.output(0)
            found = json.loads(Path(folder, "result.json").read_text())
        print(f"\n{text} of state on {options.ranks} ranks, {options.device}")
        for name, seconds, explanation in table(found, size):
            print(f"  {name:42} {seconds:9.4f} s  {explanation}")


if __name__ == "__main__":
    main()
