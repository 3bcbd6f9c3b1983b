"""Activations per second of `lens` on GPT-2's shape, with and without its ways to be faster or smaller, on one device.

    python benchmarks/lens.py [--batches 8 64] [--layer 6] [--tokens 10] [--size gpt2] [--ways "as it is" "no cache"]

The model has the shape of GPT-2 small with random weights, and is frozen; activations are computed with every batch.
Each row is a real run of many hours, which is stopped: in a short run it would not pay to compile. Memory is what the
device has in use at the end.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

sys.path.insert(0, str(Path(__file__).parent))
from stopped_run import memory_in_use, run_and_stop

WAYS: dict[str, list[str]] = {
    "as it is": [],
    "not recorded": ["cuda_graphs=false"],
    "no cache": ["kv_cache=false"],
    "checkpointing": ["activation_checkpointing=full"],
    "checkpointing, no cache": ["activation_checkpointing=full", "kv_cache=false"],
    "compiled": ["compile=true"],
    "compiled, no cache": ["compile=true", "kv_cache=false"],
}
SIZES: dict[str, dict[str, int]] = {"gpt2": {}, "tiny": {"n_embd": 32, "n_layer": 3, "n_head": 2, "vocab_size": 300}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--layer", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=10, help="tokens of an explanation")
    parser.add_argument("--size", default="gpt2", choices=SIZES)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--window", type=int, default=30, help="steps that a speed is measured over")
    parser.add_argument("--windows", type=int, default=2, help="the last of which counts")
    parser.add_argument("--settings", nargs="*", default=[], help="more settings of samestep")
    args = parser.parse_args()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{args.size}, layer {args.layer}, {args.tokens} tokens, on {device}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as made:
        make_model(Path(made), SIZES[args.size])
        for batch in args.batches:
            for way in args.ways:
                began = time.monotonic()
                try:
                    found = measure(way, batch, Path(made), args)
                except subprocess.CalledProcessError as error:
                    found = f"failed: {(error.stderr or error.stdout or '').strip()[-400:]}"
                print(f"batch {batch:3} {way:24} {found}   ({time.monotonic() - began:.0f} s)", flush=True)


def make_model(folder: Path, shape: dict[str, int]) -> None:
    """A folder of transformers with random weights, whose tokens are bytes."""
    import transformers

    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    ends = {"bos_token": "<end>", "eos_token": "<end>"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **ends).save_pretrained(folder)
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape)).save_pretrained(folder)


def measure(way: str, batch: int, folder: Path, args: argparse.Namespace) -> str:
    """What one way of training costs."""
    options: dict[str, Any] = {"model_name": folder, "layer_l": args.layer, "t_text": args.tokens}
    options |= {"activation_dumper.mode": "live", "batch_size": batch, "global_batch_size": batch}
    options |= {"max_steps": 10**6, "validate_every": 10**6, "log.every": args.window, "checkpoint.every_epochs": 0}
    memory: list[float] = []
    run = run_and_stop(
        ["lens", "--preset", "gpt2"],
        options,
        [*args.settings, *WAYS[way]],
        windows=args.windows,
        unit="rows/s",
        term="kl",
        at_end=lambda: memory.append(memory_in_use()),
    )
    for line in dict.fromkeys(line for line in run.said.splitlines() if "micro-batch takes" in line):
        print(f"  {line.partition('learner')[2].strip()}")
    speed = run.speeds[-1]
    return f"{speed:8.1f} rows/s {1000 * batch / speed:8.1f} ms a step {memory[0] / 2**30:6.1f} GiB"


if __name__ == "__main__":
    main()
