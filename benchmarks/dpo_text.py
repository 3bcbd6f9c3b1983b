"""Text DPO beside TRL's DPOTrainer: the same tiny model, pairs, order and settings; losses step by step, and speed.

    python benchmarks/dpo_text.py [--steps 20] [--batch 8] [--rate 1e-3] [--hidden 64] [--layers 2]
        [--reference live] [--loss dpo]

TRL must be installed beside samestep (pip install trl). Both train a Llama with random weights on this machine's CPU or
GPU in float32. The speed is that of a second run of each, without its first 5 steps.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from samestep.cli.main import main as samestep
from samestep.data.order_choice import choose_order
from samestep.recipes.dpo import DpoConfig
from samestep.recipes.dpo.text_data import pydoc_pairs

SKIPPED = 5
"""Steps that are not timed."""


def make_model(folder: Path, hidden: int, layers: int) -> None:
    """A Llama with random weights, whose tokens are bytes."""
    import transformers

    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", pad_token="<pad>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def write_pairs(path: Path) -> list[dict[str, Any]]:
    """The pairs that come with the recipe, as a file."""
    pairs = [{"prompt": p.prompt, "chosen": p.chosen, "rejected": p.rejected} for p in pydoc_pairs()]
    path.write_text("\n".join(map(json.dumps, pairs)))
    return pairs


def with_samestep(folder: Path, args: argparse.Namespace, name: str) -> tuple[list[float], float]:
    """The loss of every step, and the pairs per second."""
    settings = {
        "base_model_name": folder / "model",
        "train_data": folder / "pairs.jsonl",
        "val_data": folder / "few.jsonl",
        "output_dir": folder / "runs",
        "name": name,
        "max_steps": args.steps,
        "global_batch_size": args.batch,
        "batch_size": args.batch,
        "learning_rate": args.rate,
        "schedule": "constant",
        "weight_decay": 0.0,
        "beta2": 0.999,
        "beta": 0.1,
        "objective.loss_type": args.loss,
        "bucketed": False,
        "reference": args.reference,
        "log.every": 1,
        "distributed.mixed_precision": "none",
        "checkpoint.every_epochs": 0,
    }
    flags = [f"{key}={value}" for key, value in settings.items()]
    assert (
        samestep(["train", "dpo", "--preset", "text", "lora_rank=0", "warmup_ratio=0", "log.quiet=true", *flags]) == 0
    )
    rows = [json.loads(line) for line in (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "dpo" in row]
    speeds = [row["rows/s"] for row in rows[SKIPPED:]]
    return [row["dpo"] for row in rows], len(speeds) / sum(1 / speed for speed in speeds)


def batches(count: int, args: argparse.Namespace) -> list[int]:
    """The rows of samestep's steps, one after the other."""
    order = choose_order(range(count), None, args.batch, DpoConfig().seed)  # type: ignore[arg-type]
    return np.concatenate([order.ids(step)[:, 1] for step in range(args.steps)]).tolist()


def with_trl(folder: Path, pairs: list[dict[str, Any]], args: argparse.Namespace) -> tuple[list[float], float]:
    """The same with TRL."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import DPOConfig, DPOTrainer

    losses: list[float] = []

    class InOrder(DPOTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **settings: Any) -> Any:  # the trainer logs it rounded
            found = super().compute_loss(*args, **settings)
            losses.append(float(found))
            return found

    class Clock(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_end(self, arguments: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == SKIPPED:
                Clock.began = time.perf_counter()

    config = DPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=args.batch,
        max_steps=args.steps,
        learning_rate=args.rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.1,
        loss_type=[{"dpo": "sigmoid"}.get(args.loss, args.loss)],
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        max_length=None,
        gradient_checkpointing=False,
        bf16=False,
        precompute_ref_log_probs=args.reference == "cached",
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
    )
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list([pairs[row] for row in batches(len(pairs), args)]),
        processing_class=AutoTokenizer.from_pretrained(folder / "model"),
        callbacks=[Clock()],
    )
    trainer.train()
    seconds = time.perf_counter() - Clock.began
    return losses, (args.steps - SKIPPED) * args.batch / seconds


def twice(run: Callable[[str], tuple[list[float], float]]) -> tuple[list[float], float]:
    """Losses and speed of a second run."""
    run("warm")
    return run("timed")


def main() -> None:
    """Train with both and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--reference", choices=["cached", "live"], default="live")
    parser.add_argument("--loss", choices=["dpo", "ipo", "hinge"], default="dpo")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_model(folder / "model", args.hidden, args.layers)
        pairs = write_pairs(folder / "pairs.jsonl")
        few = [{**pair, "prompt": f"Help: {pair['prompt']}"} for pair in pairs[:2]]  # what is trained on is refused
        (folder / "few.jsonl").write_text("\n".join(map(json.dumps, few)))
        ours, our_speed = twice(lambda name: with_samestep(folder, args, name))
        theirs, their_speed = twice(lambda name: with_trl(folder, pairs, args))
    apart = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    for step, (a, b) in enumerate(zip(ours, theirs), start=1):
        print(f"step {step:3d}  samestep {a:.6f}  TRL {b:.6f}")
    print(f"largest difference {apart:.1e}; pairs per second: samestep {our_speed:.1f}, TRL {their_speed:.1f}")


if __name__ == "__main__":
    main()
