"""Texts per second of phase 1 of `distill` beside sentence-transformers' own trainer, on one device.

    python benchmarks/distill.py [--batches 64 256] [--length 128] [--size base]

The student has the shape of mpnet-base with random weights, and learns cached vectors of the same size; every text is
longer than `--length` tokens, to which it is cut. Each contender is a process of its own with its default settings:
sentence-transformers with MSELoss, samestep as a real run of many hours, which is stopped, since in a short run it
would not pay to compile. Memory is what the device has in use at the end.
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

sys.path.insert(0, str(Path(__file__).parent))
from stopped_run import memory_in_use, run_and_stop

from samestep.models.small_encoder import small_encoder

CONTENDERS = ("sentence-transformers", "samestep plain", "samestep")
SIZES: dict[str, dict[str, int]] = {
    "base": {},  # of mpnet-base
    "tiny": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64},
}
TEXTS = 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", nargs="+", type=int, default=[64, 256])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--size", default="base", choices=SIZES)
    parser.add_argument("--contenders", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--window", type=int, default=50, help="steps that a speed is measured over")
    parser.add_argument("--windows", type=int, default=3, help="the last of which counts")
    parser.add_argument("--settings", nargs="*", default=[], help="more settings of samestep")
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)  # sentence-transformers, in a process of its own
    args = parser.parse_args()
    if args.only:
        by_trainer(args)
        return
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"texts/s of {args.length} tokens on {device}, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        dim = make_student(folder, SIZES[args.size])
        for batch in args.batches:
            for name in args.contenders:
                began = time.monotonic()
                try:
                    speed, memory = measure(name, batch, folder, dim, args)
                    found = f"{speed:8,.0f} texts/s {memory / 2**30:6.1f} GiB"
                except subprocess.CalledProcessError as error:
                    found = f"failed: {(error.stderr or error.stdout or '').strip()[-400:]}"
                print(f"batch {batch:3} {name:22} {found}   ({time.monotonic() - began:.0f} s)", flush=True)


def make_student(folder: Path, shape: dict[str, int]) -> int:
    """A folder of transformers with random weights and a tokenizer, and texts for it; the size of its vectors."""
    from transformers import MPNetConfig, MPNetModel

    generator = torch.Generator().manual_seed(0)
    letters = torch.randint(97, 123, (2000, 4), generator=generator).tolist()
    words = ["".join(map(chr, word)) for word in letters]
    picked = torch.randint(len(words), (TEXTS, 300), generator=generator).tolist()
    texts = [" ".join(words[number] for number in row) for row in picked]
    source = small_encoder(texts[:500], width=8, layers=1, heads=1, vocabulary=4000, max_length=512)
    (folder / "student").mkdir()
    source.tokenizer.save(folder / "student", 512)
    torch.manual_seed(0)
    config = MPNetConfig(**shape)
    MPNetModel(config, add_pooling_layer=False).save_pretrained(folder / "student")
    records = [{"query": query, "positive": passage} for query, passage in zip(texts[::2], texts[1::2])]
    (folder / "records.jsonl").write_text("\n".join(map(json.dumps, records)))
    (folder / "texts.json").write_text(json.dumps(texts))
    return int(config.hidden_size)


def measure(name: str, batch: int, folder: Path, dim: int, args: argparse.Namespace) -> tuple[float, float]:
    """Texts per second and bytes of memory in use of one contender."""
    if name.startswith("samestep"):
        return by_samestep(batch, folder, dim, args, ["compile=false"] if name.endswith("plain") else [])
    sizes = ["--window", args.window, "--windows", args.windows, "--batches", batch, "--length", args.length]
    command = [sys.executable, __file__, "--only", folder, *sizes]
    done = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return float(found[0]), float(found[1])


def by_samestep(
    batch: int, folder: Path, dim: int, args: argparse.Namespace, settings: list[str]
) -> tuple[float, float]:
    """The speed of phase 1 that samestep itself measures."""
    options: dict[str, Any] = {"student_model": folder / "student", "train_data": folder / "records.jsonl"}
    options |= {"batch_size": batch, "global_batch_size": batch, "validate_every": 0, "data.validation_queries": 1}
    options |= {"use_projection": False, "teacher.shape.width": dim, "teacher.shape.layers": 1}
    options |= {"student.max_length": args.length, "teacher.max_length": 16}
    options |= {"skip_phase2": True, "phase1_epochs": 10**6, "log.every": args.window, "checkpoint.every_epochs": 0}
    memory: list[float] = []
    run = run_and_stop(
        ["distill", "--preset", "tiny"],
        options,
        [*args.settings, *settings],
        windows=args.windows,
        unit="rows/s",
        term="mse",
        at_end=lambda: memory.append(memory_in_use()),
    )
    return run.speeds[-1], memory[0]


def by_trainer(args: argparse.Namespace) -> None:
    """sentence-transformers, with its own trainer and loss; prints texts per second and memory."""
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.losses import MSELoss
    from transformers import TrainerCallback

    model = SentenceTransformer(str(args.only / "student"))
    model.max_seq_length = args.length
    texts = json.loads((args.only / "texts.json").read_text())
    size = model.get_embedding_dimension()
    vectors = torch.nn.functional.normalize(torch.randn(len(texts), size, generator=torch.Generator().manual_seed(0)))
    times: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *found: object, **others: object) -> None:
            if len(times) % args.window == 0 and torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as made:
        settings = Arguments(
            output_dir=made,
            per_device_train_batch_size=args.batches[0],
            max_steps=args.window * args.windows + 1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        data = Dataset.from_dict({"sentence": texts, "label": vectors.tolist()})
        SentenceTransformerTrainer(
            model, settings, train_dataset=data, loss=MSELoss(model), callbacks=[Clock()]
        ).train()
    print(json.dumps([args.batches[0] * args.window / (times[-1] - times[-1 - args.window]), memory_in_use()]))


if __name__ == "__main__":
    main()
