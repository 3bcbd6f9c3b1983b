"""Steps per second of protein DPO beside an eager loop over the same network, loss and pairs, on one device.

    python benchmarks/dpo_protein.py [--batches 1 4 16] [--residues 100 300]

The network has the shape of the published ProteinMPNN, with random weights; structures are two ideal chains each. Every
contender is a process of its own. samestep is a real run of many hours with its default settings, which is stopped: in
a short run it would not pay to compile. The speed is that of the last of some windows of steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))
from stopped_run import run_and_stop

from samestep import World
from samestep.recipes.dpo import DpoConfig
from samestep.recipes.dpo.default_pairs import HELIX, STRAND, ideal_backbone, pdb_text, side_by_side
from samestep.recipes.dpo.families import padding
from samestep.recipes.dpo.objective import DPO, PairLogProbs, pair_terms
from samestep.recipes.dpo.protein_data import ProteinRows
from samestep.recipes.dpo.protein_family import ProteinFamily
from samestep.recipes.dpo.structures import LETTERS

CONTENDERS = ("by hand", "samestep plain", "samestep")
RECORDS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--residues", nargs=2, type=int, default=[100, 300], help="shortest and longest structure")
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--window", type=int, default=100, help="steps that a speed is measured over")
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--settings", nargs="*", default=[], help="more settings of samestep")
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)  # a contender and its data, in a process of its own
    args = parser.parse_args()
    if args.only:
        print(json.dumps(by_hand(args, *args.only)))
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"steps/s on {device}, torch {torch.__version__}, {args.residues[0]} to {args.residues[1]} residues")
    with tempfile.TemporaryDirectory() as folder:
        data = write_pairs(Path(folder), *args.residues)
        for batch in args.batches:
            for name in args.contenders:
                began = time.monotonic()
                try:
                    speed = measure(name, batch, data, args)
                    found = f"{speed:8.1f} steps/s {speed * batch:10.1f} pairs/s"
                except subprocess.CalledProcessError as error:
                    found = f"failed: {(error.stderr or error.stdout).strip()[-400:]}"
                print(f"batch {batch:3} {name:16} {found}   ({time.monotonic() - began:.0f} s)", flush=True)


def write_pairs(folder: Path, shortest: int, longest: int) -> Path:
    """Structures of evenly spread sizes, each with one pair of random sequences."""
    generator = torch.Generator().manual_seed(0)
    records = []
    for number in range(RECORDS):
        half = (shortest + (longest - shortest) * number // (RECORDS - 1)) // 2
        letters = torch.randint(20, (3, 2 * half), generator=generator).tolist()
        native, preferred, other = ("".join(LETTERS[letter] for letter in row) for row in letters)
        chains = side_by_side([ideal_backbone(HELIX, half), ideal_backbone(STRAND, half)], [0.0, 1.0])
        (folder / f"{number}.pdb").write_text(pdb_text(list(zip((native[:half], native[half:]), chains))))
        records.append({"pdb_file": f"{number}.pdb", "preferred_seq": preferred, "unpreferred_seq": other})
    file = folder / "pairs.json"
    file.write_text(json.dumps(records))
    return file


def measure(name: str, batch: int, data: Path, args: argparse.Namespace) -> float:
    """The speed of one contender."""
    if name.startswith("samestep"):
        return by_samestep(batch, data, args, ["compile=false"] if name.endswith("plain") else [])
    sizes = ["--window", args.window, "--windows", args.windows, "--batches", batch]
    command = [sys.executable, __file__, "--only", name, data, *sizes]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def by_samestep(batch: int, data: Path, args: argparse.Namespace, settings: list[str]) -> float:
    """The speed that samestep itself measures."""
    options = {"train_data": data, "batch_size": batch, "global_batch_size": batch, "model.name": "null"}
    options |= {"max_steps": 10**6, "log.every": args.window, "checkpoint.every_epochs": 0, "validate_every": 0}
    words = ["dpo", "--preset", "proteinmpnn"]
    settings = ["pt_files=false", *args.settings, *settings]
    run = run_and_stop(words, options, settings, windows=args.windows, unit="rows/s", term=DPO)
    facts = [line for line in run.said.splitlines() if "from ln 2" in line or "micro-batch takes" in line]
    print(*dict.fromkeys(f"  {line.strip()}" for line in facts), sep="\n", flush=True)
    print("  rows/s by window:", *(f"{speed:.0f}" for speed in run.speeds), flush=True)
    return run.speeds[-1] / batch


def by_hand(args: argparse.Namespace, name: str, data: str) -> float:
    """The loop one writes without a library; the reference's log-probabilities are given."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = DpoConfig(family="protein")
    torch.manual_seed(0)
    family = ProteinFamily(config, World.single())
    network = family.network().to(device)
    rows = [{**row, "ids": torch.tensor([0, number])} for number, row in enumerate(read_rows(family, data))]
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-5)
    loader = DataLoader(rows, args.batches[0], shuffle=True, collate_fn=padding(family, World.single()))  # type: ignore[arg-type]
    times: list[float] = []
    while True:
        for batch in loader:
            if len(times) % args.window == 0 and device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter())
            if len(times) > args.window * args.windows:
                return args.window / (times[-1] - times[-1 - args.window])
            batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
            with torch.autocast(device.type, torch.bfloat16, enabled=name.endswith("bf16")):
                loss = loss_of(config, family, network, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def read_rows(family: ProteinFamily, data: str) -> list[dict[str, Tensor]]:
    """All pairs of a file, ready to be padded."""
    records = family._read(data)
    rows = ProteinRows(records.pairs, records.origins)
    return [rows[number] for number in range(len(rows))]


def loss_of(config: DpoConfig, family: ProteinFamily, network: nn.Module, batch: dict[str, Any]) -> Tensor:
    zeros = torch.zeros(len(batch["record"]), dtype=torch.float64, device=batch["record"].device)
    return pair_terms(config.objective, family.scores(network, batch), PairLogProbs(zeros, zeros))[DPO].mean()


if __name__ == "__main__":
    main()
