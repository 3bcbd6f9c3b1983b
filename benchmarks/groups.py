"""What agreement between ranks costs: opening a process group, with the proof of its connections, and saving a state of
many small tensors, where what the ranks tell each other takes longer than the disk.

    python benchmarks/groups.py [--ranks 2 16] [--before FOLDER] [--tensors 600] [--repeats 5]

With `--before`, the `src` folder of another version, both are measured by turns. Times are medians over all repeats, of
the slowest rank.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

SAVES = 5
LABELS = {
    "open": "a process group is opened",
    "proof": "of that, its connections are proved",
    "replicated": "a save, replicated",
    "sharded": "a save, sharded",
}


def measure(folder: str, tensors: int) -> None:
    """Called on every rank; rank 0 prints the times of the slowest."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import Shard, distribute_tensor

    from samestep.checkpoint.store import Store
    from samestep.world.world import World

    class State:
        def __init__(self, state: dict[str, torch.Tensor]) -> None:
            self.state = state

        def state_dict(self) -> dict[str, torch.Tensor]:
            return self.state

        def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
            self.state = state

    torch.set_num_threads(1)
    world = World.join(device="cpu")
    found: dict[str, float] = {}

    def timed(name: str, work: Callable[[int], object], repeats: int = SAVES) -> None:
        samples = []
        for number in range(repeats + 1):
            world.barrier()
            began = time.perf_counter()
            work(number)
            samples.append(max(world.gather(time.perf_counter() - began)))
        found[name] = statistics.median(samples[1:])  # the first one also imports

    if hasattr(world, "open_group"):
        timed("open", lambda number: world.open_group(f"group {number}"))
        timed("proof", lambda number: world._prove(world.control))
    else:
        timed("open", lambda number: dist.new_group(backend="gloo"))
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    plain = {f"layer{number}.weight": torch.randn(64, 16) for number in range(tensors)}
    cut = {name: distribute_tensor(tensor, mesh, [Shard(0)]) for name, tensor in plain.items()}
    for name, state in (("replicated", plain), ("sharded", cut)):
        store = Store(Path(folder) / name, world)
        timed(name, lambda number, store=store, state=state: store.save(number, {"model": State(state)}, {}))  # type: ignore[misc]
    if world.is_main:
        (Path(folder) / "result.json").write_text(json.dumps(found))
    world.leave()


def launch(source: Path, ranks: int, tensors: int) -> dict[str, float]:
    """One launch with the code of this folder."""
    from samestep.launching.local import start

    assert Path(sys.modules["samestep"].__file__ or "").is_relative_to(source), "the code to be measured"
    with tempfile.TemporaryDirectory() as folder:
        workers = start(measure, ranks, folder, tensors, logs=Path(folder, "logs"))
        codes = workers.wait(600)
        assert codes == [0] * ranks, workers.output(0)
        return json.loads(Path(folder, "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="What agreement between ranks costs.")
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--before", type=Path)
    parser.add_argument("--tensors", type=int, default=600)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--one", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(launch(options.one, options.ranks[0], options.tensors)))
        return
    here = Path(__file__).resolve().parents[1] / "src"
    versions = {"now": here} | ({"before": options.before.resolve()} if options.before else {})
    for ranks in options.ranks:
        samples: dict[str, list[dict[str, float]]] = {version: [] for version in versions}
        for _ in range(options.repeats):
            for version, source in versions.items():
                command = [sys.executable, __file__, "--one", str(source), "--ranks", str(ranks)]
                env = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
                done = subprocess.run(
                    [*command, "--tensors", str(options.tensors)], env=env, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, done.stderr
                samples[version].append(json.loads(done.stdout.splitlines()[-1]))
        print(f"\n{ranks} ranks, {options.tensors} tensors, milliseconds")
        for name, label in LABELS.items():
            times = {
                version: statistics.median(found[name] for found in runs if name in found) * 1000
                for version, runs in samples.items()
                if name in runs[0]
            }
            print(f"  {label:40}" + "".join(f"  {version} {value:9.1f}" for version, value in times.items()))


if __name__ == "__main__":
    main()
