"""Tokens per second of samestep, of a loop by hand and of HF Trainer, on one device, one after the other in one run.

python benchmarks/throughput.py                                  # 110m in rows of 1024, and 1b in rows of 2048
python benchmarks/throughput.py --sizes tiny --steps 20          # anywhere

Each contender is a process of its own. All use bf16 on a GPU, AdamW, and clip the gradient. The speed is that of the
second half of the steps.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parent))
from stopped_run import run_and_stop
from throughput_recipe import SIZES, RandomTokens, logits_of, network

BATCHES = {"tiny": (4, 64), "110m": (32, 1024), "1b": (8, 2048)}
"""Rows, and tokens in a row."""
CONTENDERS = ("samestep", "samestep plain", "by hand", "by hand compiled", "trainer", "trainer compiled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["110m", "1b"], choices=BATCHES)
    parser.add_argument("--networks", nargs="+", default=["hf", "own"])
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--settings", nargs="*", default=[], help="more settings of samestep, such as compile=true")
    parser.add_argument("--only", help=argparse.SUPPRESS)  # one contender, in a process of its own
    args = parser.parse_args()
    if args.only:
        print(json.dumps({"tokens/s": by_loop(args.only, args.networks[0], args.sizes[0], args.steps)}))
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"tokens/s on {device}, torch {torch.__version__}, {args.steps} steps {' '.join(args.settings)}")
    for size in args.sizes:
        for kind in args.networks:
            for name in args.contenders:
                if kind == "own" and name.startswith("trainer"):
                    continue  # it wants a network of transformers
                began = time.monotonic()
                try:
                    speed = f"{measure(name, kind, size, args.steps, args.settings):12,.0f}"
                except subprocess.CalledProcessError as error:
                    speed = f"failed: {(error.stderr or error.stdout).strip().splitlines()[-1][:200]}"
                print(f"{size:5} {kind:4} {name:18} {speed}   ({time.monotonic() - began:.0f} s)", flush=True)


def measure(name: str, kind: str, size: str, steps: int, settings: list[str]) -> float:
    """The speed of one contender, which runs in a process of its own."""
    if name.startswith("samestep"):
        return by_samestep(kind, size, steps, [*settings, *(["compile=false"] if name.endswith("plain") else [])])
    command = [sys.executable, __file__, "--only", name, "--networks", kind, "--sizes", size, "--steps", str(steps)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["tokens/s"])


def by_samestep(kind: str, size: str, steps: int, settings: list[str]) -> float:
    """The speed that samestep itself measures, with its settings as they are by default."""
    rows, length = BATCHES[size]
    recipe = str(Path(__file__).parent / "throughput_recipe.py")
    options = {"network": kind, "size": size, "length": length, "batch_size": rows, "learning_rate": 3e-4}
    options |= {"max_steps": 10**6, "log.every": steps // 2, "checkpoint.every_epochs": 0}
    return run_and_stop([recipe], options, settings, windows=2, unit="tokens/s").speeds[1]


def by_loop(name: str, kind: str, size: str, steps: int) -> float:
    """The speed of the second half of the steps, in this process."""
    rows, length = BATCHES[size]
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    model = network(kind, size, length).to(device)
    data = RandomTokens(2048, length, SIZES[size]["vocabulary"])
    times: list[float] = []

    def stepped() -> None:
        if len(times) in (steps // 2, steps - 1) and device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter())

    compiled = name.endswith("compiled")
    (by_trainer if name.startswith("trainer") else by_hand)(model, data, rows, steps, compiled, stepped)
    return (steps - 1 - steps // 2) * rows * length / (times[steps - 1] - times[steps // 2])


def by_hand(
    model: nn.Module, data: RandomTokens, rows: int, steps: int, compiled: bool, stepped: Callable[[], None]
) -> None:
    """The loop one writes without a library; the network and its loss are compiled together."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95), fused=True)

    def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = logits_of(model(inputs))
        return cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    function = torch.compile(loss_of) if compiled else loss_of
    done = 0
    while True:
        for batch in DataLoader(data, rows, shuffle=True, pin_memory=device.type == "cuda"):
            inputs, labels = (batch[key].to(device, non_blocking=True) for key in ("input_ids", "labels"))
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = function(inputs, labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            stepped()
            done += 1
            if done == steps:
                return


def by_trainer(
    model: nn.Module, data: RandomTokens, rows: int, steps: int, compiled: bool, stepped: Callable[[], None]
) -> None:
    """HF Trainer, with its own loss."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Clock(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            stepped()

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=rows,
            max_steps=steps,
            bf16=torch.cuda.is_available(),
            torch_compile=compiled,
            optim="adamw_torch_fused",
            max_grad_norm=1.0,
            learning_rate=3e-4,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(model, settings, train_dataset=data, callbacks=[Clock()]).train()


if __name__ == "__main__":
    main()
