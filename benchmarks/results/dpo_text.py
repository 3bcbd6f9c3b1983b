"""SmolLM2 learns a preference for short sentences from real text: held-out accuracy, and what it writes, beside TRL.

    python benchmarks/results/make_passages.py debs passages.jsonl.gz
    python benchmarks/results/dpo_text.py --passages passages.jsonl.gz --model SmolLM2-135M-Instruct --out dpo-0

The pairs are real texts, and the rule is stated (dpo_pairs.py). With --trainers samestep trl both take the same pairs
in the same order, with the same settings. What they leave is measured by one program, which is neither of theirs, on
the test part, whose pages were not trained on: the share of pairs whose chosen text has gained more on the reference,
and of texts that are written for its prompts the words a sentence, their variety, and what they cost the model as it
was. `result.json` in the folder has everything.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dpo_pairs import held_out_prompts, read_pairs, words_a_sentence
from independent_judge import bootstrap
from runs import without_template, write_records, write_results
from torch import Tensor

from samestep.data.order_choice import choose_order
from samestep.recipes.dpo import DpoConfig
from samestep.recipes.gan.evaluation import text_metrics

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Pair = dict[str, str]


def with_samestep(args: argparse.Namespace, folder: Path) -> list[float]:
    """Train and export; the losses by step."""
    settings = {
        "preset": "text",
        "base_model_name": args.out / "model",
        "train_data": args.out / "train.jsonl",
        "val_data": args.out / "validation.jsonl",
        "out": args.out,
        "name": "run",
        "seed": args.seed,
        "lora_rank": 0,
        "max_steps": args.steps,
        "global_batch_size": args.batch,
        "batch_size": min(args.batch, args.rows),
        "learning_rate": args.rate,
        "schedule": "constant",
        "warmup_ratio": 0,
        "beta2": 0.999,
        "bucketed": "false",
        "log.every": 1,
        "log.tensorboard": "false",
        "compile": "false",
        "validate_every": args.steps,
        "checkpoint.every_epochs": 0,
        "checkpoint.keep_best": 0,
        "distributed.mixed_precision": args.precision,
    }
    flags = [f"--{name}={value}" for name, value in settings.items()]
    command = [sys.executable, "-m", "samestep"]
    subprocess.run([*command, "train", "dpo", *flags], check=True)
    subprocess.run([*command, "export", str(args.out / "run"), str(folder), "--which", "last"], check=True)
    rows = map(json.loads, (args.out / "run" / "metrics.jsonl").read_text().splitlines())
    return [row["dpo"] for row in rows if "dpo" in row]


def with_trl(args: argparse.Namespace, folder: Path) -> list[float]:
    """The same pairs, order and settings with TRL."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    losses: list[float] = []

    class InOrder(DPOTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *args: Any) -> Any:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args: Any, **settings: Any) -> Any:  # the trainer logs it rounded
            found = super().compute_loss(*args, **settings)
            losses.append(float(found))
            return found

    pairs = [json.loads(line) for line in (args.out / "train.jsonl").read_text().splitlines()]
    order = choose_order(range(len(pairs)), None, args.batch, DpoConfig(seed=args.seed).seed)  # type: ignore[arg-type]
    rows = np.concatenate([order.ids(step)[:, 1] for step in range(args.steps)]).tolist()
    parts = args.batch // min(args.batch, args.rows)
    config = DPOConfig(
        output_dir=str(args.out / "trl"),
        per_device_train_batch_size=args.batch // parts,
        gradient_accumulation_steps=parts,
        max_steps=args.steps,
        learning_rate=args.rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        beta=0.1,
        report_to=[],
        save_strategy="no",
        max_length=None,
        gradient_checkpointing=False,
        bf16=args.precision == "bf16",
        use_cpu=DEVICE == "cpu",
        disable_tqdm=True,
    )
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(args.out / "model", dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list([pairs[row] for row in rows]),
        processing_class=AutoTokenizer.from_pretrained(args.out / "model"),
    )
    trainer.train()
    trainer.save_model(str(folder))
    return np.array(losses).reshape(args.steps, -1).mean(1).tolist()


class Measure:
    """Log-probabilities and texts of models in folders, by transformers alone."""

    def __init__(self, model: Path, pairs: Sequence[Pair], prompts: Sequence[str]) -> None:
        from transformers import AutoTokenizer

        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._pairs, self._prompts = pairs, prompts
        self._base = self._open(model)
        self._before = self._of_pairs(self._base)

    def of(self, folder: Path, seed: int) -> dict[str, Any]:
        """What a model has learned, on pairs and prompts that were not trained on."""
        network = self._open(folder)
        gains = self._of_pairs(network) - self._before
        right = (gains[:, 0] > gains[:, 1]) + 0.5 * (gains[:, 0] == gains[:, 1])
        texts = self._write(network, seed)
        words = np.array([words_a_sentence(text) for text in texts])
        variety = text_metrics(texts)
        return {
            "by_row": {"accuracy": right.tolist(), "words_a_sentence": words.tolist()},
            "accuracy": bootstrap(right.double().numpy()),
            "margin": float((gains[:, 0] - gains[:, 1]).mean()),
            "chosen_gain": float(gains[:, 0].mean()),
            "words_a_sentence": bootstrap(words),
            "distinct_2": variety["distinct_2"],
            "self_bleu": variety["self_bleu"],
            "words": variety["words"],
            "nats_of_its_texts": self._cost(texts),
            "texts": texts[:3],
        }

    def _open(self, folder: Path) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(DEVICE).eval()

    def _of_pairs(self, network: Any) -> Tensor:
        """[pairs, 2]: log-probabilities of the chosen and of the rejected text."""
        found = [
            self._log_probs(network, [(p["prompt"], p[kind]) for p in self._pairs]) for kind in ("chosen", "rejected")
        ]
        return torch.stack([values for values, _ in found], 1)

    def _cost(self, texts: Sequence[str]) -> float:
        """Nats for a token of what was written, by the model as it was before training."""
        given = [(prompt, text) for prompt, text in zip(self._prompts, texts, strict=True) if text.strip()]
        values, counts = self._log_probs(self._base, given)
        return float(-values.sum() / counts.sum())

    @torch.no_grad()
    def _log_probs(self, network: Any, texts: Sequence[tuple[str, str]], rows: int = 16) -> tuple[Tensor, Tensor]:
        """Sums over the tokens of each text after its prompt, the end included, and how many these are."""
        encode, end = self._tokenizer, self._tokenizer.eos_token_id
        sums, counts = [], []
        for start in range(0, len(texts), rows):
            some = [(encode(p)["input_ids"], [*encode(t)["input_ids"], end]) for p, t in texts[start : start + rows]]
            width = max(len(prompt) + len(text) for prompt, text in some)
            tokens = torch.full((len(some), width), end)
            scored = torch.zeros(len(some), width, dtype=torch.bool)
            for row, (prompt, text) in enumerate(some):
                tokens[row, : len(prompt) + len(text)] = torch.tensor(prompt + text)
                scored[row, len(prompt) : len(prompt) + len(text)] = True
            logits = network(input_ids=tokens.to(DEVICE)).logits[:, :-1].float()
            values = logits.log_softmax(-1).gather(2, tokens[:, 1:, None].to(DEVICE))[..., 0].cpu().double()
            sums.append((values * scored[:, 1:]).sum(1))
            counts.append(scored[:, 1:].sum(1))
        return torch.cat(sums), torch.cat(counts)

    @torch.no_grad()
    def _write(self, network: Any, seed: int, rows: int = 64) -> list[str]:
        """A text for each prompt, of up to 96 tokens, at temperature 0.8."""
        torch.manual_seed(seed)
        self._tokenizer.padding_side, self._tokenizer.pad_token = "left", self._tokenizer.eos_token
        texts = []
        for start in range(0, len(self._prompts), rows):
            given = self._tokenizer(list(self._prompts[start : start + rows]), return_tensors="pt", padding=True).to(
                DEVICE
            )
            how = {"do_sample": True, "temperature": 0.8, "top_k": 0, "max_new_tokens": 96}
            found = network.generate(**given, **how, pad_token_id=self._tokenizer.eos_token_id)
            texts += self._tokenizer.batch_decode(found[:, given["input_ids"].shape[1] :], skip_special_tokens=True)
        return [text.strip() for text in texts]


def main() -> None:
    """Train with each, and measure all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trainers", nargs="+", choices=["samestep", "trl"], default=["samestep"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rows", type=int, default=16, help="pairs at once on a device")
    parser.add_argument("--rate", type=float, default=2e-6)
    parser.add_argument("--precision", choices=["none", "bf16"], default="bf16" if DEVICE == "cuda" else "none")
    parser.add_argument("--limit", type=int, help="pairs of the test, and prompts that are written for; all by default")
    args = parser.parse_args()
    started = time.time()
    args.out = args.out.resolve()
    without_template(args.model, args.out / "model")
    parts = read_pairs(args.passages)
    write_records(args.out / "train.jsonl", parts["train"])
    write_records(args.out / "validation.jsonl", parts["validation"][: args.limit])
    test = parts["test"][: args.limit]
    shorter = np.mean([len(pair["chosen"]) < len(pair["rejected"]) for pair in test])
    result: dict[str, Any] = {
        **{name: getattr(args, name) for name in ("seed", "steps", "batch", "rate", "precision")},
        "pairs": {part: len(pairs) for part, pairs in parts.items()},
        "shorter_is_chosen": float(shorter),
        "chosen_words_a_sentence": float(np.mean([words_a_sentence(pair["chosen"]) for pair in test])),
        "rejected_words_a_sentence": float(np.mean([words_a_sentence(pair["rejected"]) for pair in test])),
    }
    measure = Measure(args.out / "model", test, held_out_prompts(test))
    result["before"] = measure.of(args.out / "model", args.seed)
    for name in args.trainers:
        began = time.time()
        losses = {"samestep": with_samestep, "trl": with_trl}[name](args, args.out / name)
        seconds = time.time() - began
        result[name] = {"losses": losses, "seconds": seconds, **measure.of(args.out / name, args.seed)}
        write_results(args.out / "result.json", {**result, "minutes": round((time.time() - started) / 60, 1)})
        shown = {key: result[name][key] for key in ("accuracy", "words_a_sentence", "nats_of_its_texts")}
        print(
            f"[dpo seed {args.seed}] {name}: {seconds:.0f} s, {shown}; before {result['before']['words_a_sentence']}",
            flush=True,
        )
    (args.out / "done").touch()


if __name__ == "__main__":
    main()
