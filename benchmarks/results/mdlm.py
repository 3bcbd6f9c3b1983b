"""Masked diffusion against autoregression: one network, one text, many epochs, both stopped early.

    python benchmarks/results/mdlm.py --docs english_docs.jsonl.xz --out OUT --minutes 12     # a GPU
    python benchmarks/results/mdlm.py --docs english_docs.jsonl.xz --out OUT --size small     # two cores, some minutes
    ... --smoke                                                                # a few steps of everything

A few megabytes of documentation are read over and over. Masked diffusion (`samestep train mdlm`) trains all the time;
beside it the same network, causal, predicts the next token (`autoregressive.py`): it overfits soon, and is then tried
again with dropout, with more weight decay, and with a smaller learning rate. Of each objective the weights that are
best on the validation part are measured on the test part, once: bits per byte, for diffusion the bound with `--times`
times a row; rows are tokens of whole documents. And samples.
"""

import argparse
import hashlib
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from autoregressive import row_nats
from runs import ROOT, finish, metrics, ratio_interval, read_documents, say, start, write_records, write_results

from samestep.data.order import VALIDATION_EPOCH
from samestep.recipes.mdlm.corpus import Corpus, load
from samestep.recipes.mdlm.generating import open_network
from samestep.recipes.mdlm.objective import Objective
from samestep.recipes.mdlm.sampling import SamplingConfig, sample
from samestep.train.trained.trained_model import Trained, open_trained

CAUSAL = "benchmarks/results/autoregressive.py"
SIZES: dict[str, dict[str, Any]] = {
    "gpu": {
        "megabytes": 6.5,
        "vocabulary": 4096,
        "settings": {
            "model.d_model": 512,
            "model.n_layers": 8,
            "model.n_heads": 8,
            "model.mlp_hidden_size": 1408,
            "model.init_std": 0.03,
            "global_batch_size": 128,
            "batch_size": 128,
            "learning_rate": 1e-3,
            "compile": True,
        },
        "warmup": {"diffusion": 200, "autoregressive": 50},
        "every": {"diffusion": 100, "autoregressive": 10},
        "epochs": 2000,
    },
    "small": {
        "megabytes": 0.5,
        "vocabulary": 1024,
        "settings": {
            "model.d_model": 128,
            "model.n_layers": 3,
            "model.n_heads": 4,
            "model.mlp_hidden_size": 352,
            "model.init_std": 0.04,
            "global_batch_size": 32,
            "batch_size": 32,
            "learning_rate": 3e-3,
            "compile": False,
            "distributed.mixed_precision": "none",
        },
        "warmup": {"diffusion": 50, "autoregressive": 20},
        "every": {"diffusion": 100, "autoregressive": 15},
        "epochs": 400,
    },
}
ROW = 512
"""Tokens."""
CONTENDERS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "diffusion": [("diffusion", {"weight_decay": 0.1, "ema_decay": 0.999})],
    "autoregressive": [
        ("autoregressive", {"weight_decay": 0.1, "ema_decay": 0.98}),
        ("autoregressive, dropout", {"weight_decay": 0.1, "ema_decay": 0.98, "dropout": 0.2}),
        ("autoregressive, decay 1", {"weight_decay": 1.0, "ema_decay": 0.98}),
        ("autoregressive, rate 1/3", {"weight_decay": 1.0, "ema_decay": 0.98, "rate": 1 / 3}),
    ],
}
"""By objective: what is trained one after the other."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="gpu")
    parser.add_argument("--megabytes", type=float, help="of text; by default 6.5, or 0.5 with --size small")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all training")
    parser.add_argument("--times", type=int, default=64, help="times at which a row of the test is measured")
    parser.add_argument("--smoke", action="store_true", help="a few steps of everything")
    options = parser.parse_args()
    began, size = time.monotonic(), SIZES[options.size]
    data, counted = prepare(options.docs, options.out, size, options.megabytes or size["megabytes"])
    trained = train_all(data, options, size)
    results = measure_all(trained, options)
    results["data"] |= counted
    write_results(options.out / "mdlm.json", {**results, "minutes": round((time.monotonic() - began) / 60, 1)})


def prepare(docs: Path, out: Path, size: dict[str, Any], megabytes: float) -> tuple[Path, dict[str, int]]:
    """Some documents as tokens, in three parts, and how much they are."""
    documents = [record for record in read_documents(docs) if not record["document"].startswith("dict-foldoc")]
    documents.sort(key=lambda record: hashlib.sha256(record["text"].encode()).digest())
    kept, total = [], 0
    for record in documents:
        if total < megabytes * 1e6:
            kept.append({"text": record["text"]})
            total += len(record["text"].encode())
    path, data = write_records(out / "docs.jsonl", kept), out / "data"
    say(f"{len(kept):,} documents, {total:,} bytes")
    tokens = ["--tokenizer", "bpe", "--vocab_size", size["vocabulary"], "--sequence_length", ROW]
    given = ["data", "prepare", path, "--out", data, "--overwrite", "true", "--test_fraction", 0.1, *tokens]
    if finish(start(given, out / "prepare.log"), out / "prepare.log"):
        sys.exit(1)
    return data, {"documents": len(kept), "bytes": total, "vocabulary": size["vocabulary"], "row": ROW}


def train_all(data: Path, options: argparse.Namespace, size: dict[str, Any]) -> dict[str, Path]:
    """The runs by name. One process for each objective, both at the same time."""
    end = time.monotonic() + 60 * options.minutes
    waiting = {objective: list(plans) for objective, plans in CONTENDERS.items()}
    running: dict[str, tuple[str, Any, Path]] = {}
    runs: dict[str, Path] = {}
    while running or (any(waiting.values()) and time.monotonic() < end - 30):
        for objective, plans in waiting.items():
            if objective not in running and plans and time.monotonic() < end - 30:
                name, own = plans.pop(0)
                runs[name] = options.out / "runs" / name.replace(", ", "-").replace(" ", "").replace("/", "")
                log = options.out / f"{runs[name].name}.log"
                given = arguments(objective, own, data, runs[name], end - time.monotonic(), options, size)
                running[objective] = (name, start(given, log), log)
                say(f"{name} begins")
        for objective, (name, process, log) in list(running.items()):
            if process.poll() is not None or time.monotonic() > end + 20:
                code = finish(process, log, 0 if process.poll() is not None else 1)
                say(f"{name} ended ({code}): {progress(runs[name])}")
                del running[objective]
        time.sleep(1)
        if int(time.monotonic()) % 30 == 0:
            say("; ".join(f"{name}: {progress(runs[name])}" for name, _, _ in running.values()))
            write_results(options.out / "mdlm.json", {"runs": {name: curve(run) for name, run in runs.items()}})
    return runs


def arguments(
    objective: str,
    own: dict[str, Any],
    data: Path,
    run: Path,
    seconds: float,
    options: argparse.Namespace,
    size: dict[str, Any],
) -> list[Any]:
    """Of `samestep`, for one run."""
    given = {**size["settings"], "weight_decay": own["weight_decay"], "ema_decay": own["ema_decay"]}
    given["learning_rate"] *= own.get("rate", 1.0)
    given |= {
        "data.path": data,
        "data.sequence_length": ROW,
        "schedule": "constant",
        "model.embedding_size": size["vocabulary"] + 64,
    }
    given |= {"model.max_sequence_length": ROW, "max_steps": "null", "epochs": size["epochs"], "log.samples": 0}
    given |= {"warmup_steps": size["warmup"][objective], "validate_every": size["every"][objective]}
    given |= {"early_stopping": 6, "best_at_end": "true"}
    given |= {"max_time": f"{int(seconds)}s", "out": run.parent, "name": run.name}
    if "dropout" in own:
        given |= {"dropout": own["dropout"]}
    if objective == "diffusion":
        given |= {"objective.cut_rows": 0}  # the other objective has no such steps
    if options.smoke:
        given |= {"validate_every": 10, "max_steps": 20}
        del given["epochs"]
    recipe = "mdlm" if objective == "diffusion" else ROOT / CAUSAL
    return ["train", recipe, "--preset", "small", "--nproc", 1, *(f"{name}={value}" for name, value in given.items())]


def curve(run: Path) -> list[tuple[int, float, float]]:
    """Step, epoch, and bits per byte of validation."""
    rows = metrics(run, "pretrain", "val/bits_per_byte")
    return [(int(row["step"]), float(row["epoch"]), row["val/bits_per_byte"]) for row in rows]


def progress(run: Path) -> str:
    found = curve(run)
    return f"step {found[-1][0]}, {found[-1][2]:.4f} (best {min(row[2] for row in found):.4f})" if found else "begins"


def measure_all(runs: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """The best of each objective by validation, on the test part."""
    curves = {name: curve(run) for name, run in runs.items()}
    for objective, plans in CONTENDERS.items():
        if not any(curves.get(name) for name, _ in plans):
            sys.exit(f"nothing was validated by {objective}; see the logs in {options.out}")
    best = {
        objective: min(
            (name for name, _ in plans if curves.get(name)), key=lambda name: min(row[2] for row in curves[name])
        )
        for objective, plans in CONTENDERS.items()
    }
    results: dict[str, Any] = {"runs": curves, "chosen": best, "times": options.times}
    nats, scale = {}, 1.0
    for objective, name in best.items():
        recipe = None if objective == "diffusion" else str(ROOT / CAUSAL)
        trained = open_trained(str(runs[name]), "best", recipe=recipe)
        text = load(trained.config.data)
        assert text.test is not None
        scale = np.log(2) * text.test_bytes_per_token
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        times = 2 if options.smoke else options.times
        with torch.no_grad(), open_network(trained, device) as network:
            nats[objective], tokens = rows_of_test(network, objective, trained, text, device, times)
            low, high = (value / scale for value in ratio_interval(nats[objective], tokens))
            bits = float(nats[objective].sum() / tokens.sum() / scale)
            parameters = sum(p.numel() for p in network.parameters())
            results.setdefault("test", {})[objective] = {"bits_per_byte": bits, "interval": [low, high]}
            results |= {"parameters": parameters, "data": text.describe(), "test_rows": len(tokens)}
            say(f"{objective} ({name}): {bits:.4f} bits per byte of the test part ({low:.4f} to {high:.4f})")
            write_results(options.out / "mdlm.json", results)
            results.setdefault("samples", {})[objective] = samples(network, objective, trained, text, device)
    apart = nats["diffusion"] - nats["autoregressive"]
    low, high = (value / scale for value in ratio_interval(apart, tokens))
    results["diffusion_less_autoregressive"] = {
        "mean": float(apart.sum() / tokens.sum() / scale),
        "interval": [low, high],
    }
    say(f"difference {apart.sum() / tokens.sum() / scale:+.4f} ({low:+.4f} to {high:+.4f})")
    return results


def rows_of_test(
    network: nn.Module, objective: str, trained: Trained, text: Corpus, device: torch.device, times: int
) -> tuple[np.ndarray, np.ndarray]:
    """Nats and tokens of each row of the test part."""
    config, rows = trained.config, text.test
    assert rows is not None
    measuring = replace(config.objective, validation_times=times)
    diffusion = Objective(measuring, text.tokenizer.vocabulary, config.seed)
    nats, tokens = [], []
    for first in range(0, len(rows), 128):
        numbers = np.arange(first, min(first + 128, len(rows)))
        batch = {name: value.to(device) for name, value in rows.rows(numbers).items()}
        batch["ids"] = torch.tensor([[VALIDATION_EPOCH, number] for number in numbers.tolist()], device=device)
        if objective == "diffusion":
            found = diffusion.measure(network, batch)["nll"]
        else:
            found = row_nats(network, batch["tokens"], batch["length"], text.tokenizer.vocabulary.eos)
        nats.append(found.double().cpu().numpy())
        tokens.append(batch["length"].cpu().numpy())
    return np.concatenate(nats), np.concatenate(tokens)


def samples(
    network: nn.Module, objective: str, trained: Trained, text: Corpus, device: torch.device, count: int = 4
) -> list[str]:
    """The first texts of 192 tokens that a seed gives, at temperature 0.8."""
    length, start_token = 192, text.tokenizer.vocabulary.eos
    if objective == "diffusion":
        options = SamplingConfig(max_new_tokens=length, temperature=0.8, remasking="random")
        prompt = torch.zeros((count, 0), dtype=torch.int64, device=device)
        found = sample(network, prompt, options, seed=0, vocabulary=text.tokenizer.vocabulary)
    else:
        found = _continued(network, torch.full((count, 1), start_token, device=device), length, text)[:, 1:]
    return [text.tokenizer.decode(row) for row in found.tolist()]


def _continued(network: nn.Module, tokens: Tensor, length: int, text: Corpus) -> Tensor:
    """`length` tokens more, one by one, at temperature 0.8.

    The network always sees rows of the full length: what stands behind a position does not change it. Rows that grow
    from a single token gave values that are no numbers on a GPU (bf16, torch 2.11), and not on a CPU.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    begun = tokens.shape[1]
    row = torch.full((len(tokens), begun + length), text.tokenizer.vocabulary.eos, device=tokens.device)
    row[:, :begun] = tokens
    for place in range(begun, begun + length):
        logits = network(row)[:, place - 1].float() / 0.8
        logits[:, text.tokenizer.vocabulary.size :] = -torch.inf
        row[:, place] = torch.multinomial(logits.softmax(-1).cpu(), 1, generator=generator)[:, 0].to(row.device)
    return row


if __name__ == "__main__":
    main()
