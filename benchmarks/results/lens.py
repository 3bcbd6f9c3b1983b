"""A lens on a real model: warm start, the encoder alone, rewards; and what it is compared with.

    python benchmarks/results/lens.py --docs english_docs.jsonl.xz --model SmolLM2-135M-Instruct --out OUT   # a GPU
    python benchmarks/results/lens.py --docs english_docs.jsonl.xz --out OUT --size small        # two cores
    ... --smoke                                                                     # a few steps of everything

One run ends after the encoder alone. Others take its stages over (`stages_from`) and train with rewards, each with
another learning rate and penalty, at the same time. Validation chooses among them; then the weights of all stages of
the chosen run, and the baselines of `lens_baselines.py`, are measured on the test part, once. Intervals are 95%, by
drawing rows again.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from lens_baselines import FrozenReader, rebuilt_by_ridge
from runs import finish, metrics, ratio_interval, read_documents, say, start, write_records, write_results

from samestep import World
from samestep.parallel.precision import autocast
from samestep.recipes.lens.activations import model_of, rows_of
from samestep.recipes.lens.evaluation import records_of, subject_of
from samestep.recipes.lens.measuring import METHODS, SpreadRows, activation_of, compute_values
from samestep.recipes.lens.network import Lens
from samestep.recipes.lens.task import LEARNER
from samestep.train.trained.batch_inference import network_of
from samestep.train.trained.trained_model import open_trained

SETTINGS: dict[str, dict[str, Any]] = {
    "gpu": {"distributed.mixed_precision": "bf16"},
    "small": {
        "activation_dumper.num_samples": 20_000,
        "activation_dumper.validation_samples": 512,
        "activation_dumper.test_samples": 512,
        "warm_start.learning_rate": 6e-3,
        "encoder_alone.learning_rate": 3e-3,
        "validate_every": 50,
    },
}
"""Beyond the preset: `small` for a model in a folder, `tiny` without one."""
STEPS = {"gpu": (2000, 200, 1000), "small": (200, 50, 60)}
"""Of warm start, encoder alone, rewards."""
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "gpu": {"3e-5": {"learning_rate": 3e-5}, "1e-4": {"learning_rate": 1e-4}},
    "small": {"1e-3": {"learning_rate": 1e-3, "group_size": 4, "kl_weight": 0.02}},
}
CONTEXTS = (8, 4, 1)
SHOWN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, required=True)
    parser.add_argument("--model", type=Path, help="a folder of transformers; without it the small model on bytes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SETTINGS, default="gpu")
    parser.add_argument("--minutes", type=float, default=14.0, help="for all of it")
    parser.add_argument("--steps", nargs=3, type=int, help="of warm start, encoder alone, rewards")
    parser.add_argument("--variants", nargs="*", help="which trials with rewards to run")
    parser.add_argument("--fit_rows", type=int, default=8_192, help="activations that regressions are fitted on")
    parser.add_argument("--smoke", action="store_true", help="a few steps of everything")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.end = time.monotonic() + 60 * options.minutes
    if options.smoke:
        options.steps, options.fit_rows = (6, 3, 4), 1024
    results: dict[str, Any] = {"size": options.size, "steps": options.steps or STEPS[options.size]}
    runs = train(options, results)
    chosen = max(runs, key=lambda name: best_of(runs[name], "grpo"))
    results["chosen"] = chosen
    write_results(options.out / "lens.json", results)
    measure(runs[chosen], options, results)
    write_results(options.out / "lens.json", results)


def train(options: argparse.Namespace, results: dict[str, Any]) -> dict[str, Path]:
    """The runs with rewards, by name."""
    out, size, smoke = options.out, options.size, options.smoke
    documents = read_documents(options.docs)[:: 40 if smoke else 8 if size == "small" else 1]
    texts = write_records(out / "texts.jsonl", [{"text": record["text"]} for record in documents])
    warm, encoder, rewards = options.steps or STEPS[size]
    common = {**SETTINGS[size], "data.path": texts, "out": out / "runs", "evaluation.rows": 0, "through_draws": "false"}
    common |= {"warm_start.max_steps": warm, "encoder_alone.max_steps": encoder}
    if options.model:
        common["model_name"] = options.model.resolve()
    if smoke:
        common |= {"validate_every": 2, "activation_dumper.num_samples": 4096}
        common |= {"activation_dumper.validation_samples": 64, "activation_dumper.test_samples": 128}
    if smoke and not options.model:
        common["pretrain.max_steps"] = 10
    preset = "small" if options.model else "tiny"

    def launch(name: str, own: dict[str, Any]) -> tuple[Any, Path]:
        log = out / f"{name}.log"
        settings = [f"{key}={value}" for key, value in {**common, **own, "name": name}.items()]
        return start(["train", "lens", "--preset", preset, "--nproc", 1, *settings], log), log

    say("warm start and encoder alone")
    if finish(*launch("warm", {"until": "encoder", "grpo.max_steps": rewards})):
        sys.exit(1)
    for stage in ("warm_start", "encoder"):
        results[stage] = curve(out / "runs" / "warm", stage)
        say(f"{stage}: {results[stage]}")
    variants = {name: own for name, own in VARIANTS[size].items() if not options.variants or name in options.variants}
    running = {}
    # The last part of the time is for the test part.
    left = max(30.0, options.end - time.monotonic() - (20 if smoke else 200))
    for name, own in variants.items():
        settings = {f"grpo.{key}": value for key, value in own.items()}
        settings |= {"grpo.max_steps": rewards, "stages_from": out / "runs" / "warm", "max_time": f"{int(left)}s"}
        running[name] = launch(f"rewards-{name}", settings)
    runs = {name: out / "runs" / f"rewards-{name}" for name in variants}
    while any(process.poll() is None for process, _ in running.values()):
        time.sleep(1)
        if int(time.monotonic()) % 30 == 0:
            say("; ".join(f"{name}: {curve(run, 'grpo')[-1:]}" for name, run in runs.items()))
    for process, log in running.values():
        finish(process, log)
    results["grpo"] = {
        name: {"settings": variants[name], "validation": curve(run, "grpo"), "training": training(run)}
        for name, run in runs.items()
    }
    return {name: run for name, run in runs.items() if curve(run, "grpo")}


def curve(run: Path, stage: str) -> list[tuple[int, float]]:
    """Steps and FVE of one draw, of the validation part."""
    return [(int(row["step"]), row["val/fve"]) for row in metrics(run, stage, "val/fve")]


def best_of(run: Path, stage: str) -> float:
    return max(fve for _, fve in curve(run, stage))


def training(run: Path) -> list[dict[str, float]]:
    """What the stage with rewards recorded while it trained."""
    names = ("step", "reward", "reward_std", "kl", "mse", "entropy", "clipped", "rows/s")
    return [{name: row[name] for name in names if name in row} for row in metrics(run, "grpo", "reward")]


def measure(run: Path, options: argparse.Namespace, results: dict[str, Any]) -> None:
    """Everything on the test part."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    world, batch_size = World.single(str(device)), 256
    kept: dict[str, dict[str, Tensor]] = {}
    for stage in ("warm_start", "encoder", "grpo"):
        trained = open_trained(str(run), "best", stage=stage)
        network, compute = network_of(trained, LEARNER, device)

        def ask(batch: Any, computation: Any, network: Any = network, compute: Any = compute) -> dict[str, Tensor]:
            with torch.no_grad(), autocast(device, compute):
                found: dict[str, Tensor] = network(batch, computation)
            return found

        model = model_of(trained, world)
        activations = rows_of(trained, model, world)
        config = trained.config
        config = replace(config, batch_size=batch_size, evaluation=replace(config.evaluation, rows=2048))
        subject = subject_of(ask, model, activations, config, stage, world)
        kept[stage] = compute_values(subject.rows, subject.measuring, batch_size, world)
        results.setdefault("test", {})[stage] = summary(kept[stage], subject)
        say(f"{stage}: {results['test'][stage]['sampled']}")
        write_results(options.out / "lens.json", results)
    results["gains"] = {
        f"grpo less {stage}": gain(kept["grpo"], kept[stage], subject) for stage in ("warm_start", "encoder")
    } | {"encoder less warm_start": gain(kept["encoder"], kept["warm_start"], subject)}
    say(f"gains: {results['gains']}")
    records = records_of(kept["grpo"], subject)
    chosen = np.random.default_rng(0).choice(len(records), size=min(SHOWN, len(records)), replace=False)
    results["explanations"] = [records[number] for number in sorted(chosen.tolist())]
    write_results(options.out / "lens.json", results)
    results["baselines"] = baselines(ask, model, activations, subject, config, kept["grpo"], options, device, world)
    say(f"baselines: {results['baselines']}")


def summary(values: dict[str, Tensor], subject: Any) -> dict[str, dict[str, Any]]:
    """FVE and KL recovered by method, with intervals."""
    error, kl = (values[name].double().numpy() for name in ("error", "kl"))
    mean = METHODS.index("mean")
    found = {}
    for number, name in enumerate(METHODS):
        low, high = np.percentile(_resampled(error[:, number]), [2.5, 97.5]) / subject.variance
        kl_low, kl_high = ratio_interval(kl[:, number], kl[:, mean])
        found[name] = {
            "fve": 1 - float(error[:, number].mean()) / subject.variance,
            "fve_interval": [1 - float(high), 1 - float(low)],
            "kl_recovered": 1 - float(kl[:, number].sum() / kl[:, mean].sum()),
            "kl_interval": [1 - kl_high, 1 - kl_low],
        }
    return found


def gain(now: dict[str, Tensor], before: dict[str, Tensor], subject: Any) -> dict[str, Any]:
    """How much more of the variance one draw explains, on the same rows."""
    column = METHODS.index("sampled")
    apart = (before["error"][:, column] - now["error"][:, column]).double().numpy() / subject.variance
    kl = (before["kl"][:, column] - now["kl"][:, column]).double().numpy()
    mean = before["kl"][:, METHODS.index("mean")].double().numpy()
    return {
        "fve": float(apart.mean()),
        "interval": [float(edge) for edge in np.percentile(_resampled(apart), [2.5, 97.5])],
        "kl_recovered": float(kl.sum() / mean.sum()),
        "kl_interval": list(ratio_interval(kl, mean)),
    }


def _resampled(values: np.ndarray, draws: int = 4000) -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.array([values[generator.integers(len(values), size=len(values))].mean() for _ in range(draws)])


def baselines(
    ask: Any,
    model: Any,
    activations: Any,
    subject: Any,
    config: Any,
    lens: dict[str, Tensor],
    options: argparse.Namespace,
    device: torch.device,
    world: World,
) -> dict[str, Any]:
    """FVE and KL recovered of each, and what the lens holds beyond the context."""
    reader = FrozenReader(model, config.layer_l, config.t_text, device)
    fit_rows = SpreadRows(activations.train, options.fit_rows)

    def with_activation(batch: Any) -> dict[str, Tensor]:
        return {**batch, "activation": activation_of(ask, batch)}

    table = compute_values(fit_rows, lambda batch: _tokens_of(with_activation(batch)), 256, world)
    batches = [
        {name: value[i : i + 512].to(device) for name, value in table.items()} for i in range(0, len(fit_rows), 512)
    ]
    kl = reader.train_tuned_lens(batches, 20 if options.smoke else 400)
    say(f"tuned lens: KL {kl[0]:.3f} to {kl[1]:.3f}")

    def features(batch: Any) -> dict[str, Tensor]:
        batch = with_activation(batch)
        with torch.no_grad():
            found = {f"context {count}": reader.context(batch, count) for count in CONTEXTS}
            found |= {"tuned lens": reader.tuned_lens(batch), "patchscopes": reader.patchscopes(batch)}
        found["lens"] = ask(batch, Lens.explain)["rebuilt"].float()
        return {**found, "activation": batch["activation"].float()}

    fitted = compute_values(fit_rows, features, 256, world)
    own = compute_values(subject.rows, features, 256, world)
    for part in (fitted, own):
        part["context 8 and lens"] = torch.cat((part["context 8"], part["lens"]), 1)
    names = [name for name in own if name != "activation"]
    rebuilt = {name: rebuilt_by_ridge(fitted[name], fitted["activation"], own[name]) for name in names}
    errors = {name: (own["activation"] - found).square().sum(1).double().numpy() for name, found in rebuilt.items()}
    stacked = torch.stack(list(rebuilt.values()), 1)

    def behave(batch: Any) -> dict[str, Tensor]:
        rows = batch["ids"][:, 1]
        return {"kl": ask({**with_activation(batch), "values": stacked.to(device)[rows]}, Lens.behaviour)["kl"]}

    divergences = compute_values(subject.rows, behave, 256, world)["kl"].double().numpy()
    mean = lens["kl"][:, METHODS.index("mean")].double().numpy()
    found: dict[str, Any] = {"tuned_lens_kl": kl, "fit_rows": len(fit_rows)}
    for number, name in enumerate(rebuilt):
        low, high = np.percentile(_resampled(errors[name]), [2.5, 97.5]) / subject.variance
        found[name] = {
            "fve": 1 - float(errors[name].mean()) / subject.variance,
            "fve_interval": [1 - float(high), 1 - float(low)],
            "kl_recovered": 1 - float(divergences[:, number].sum() / mean.sum()),
        }
    less = errors["context 8"] - errors["context 8 and lens"]
    apart = less / subject.variance
    found["beyond the context"] = {
        "fve": float(apart.mean()),
        "interval": [float(edge) for edge in np.percentile(_resampled(apart), [2.5, 97.5])],
        "of_what_is_left": float(
            (errors["context 8"] - errors["context 8 and lens"]).sum() / errors["context 8"].sum()
        ),
    }
    texts = reader.patched_text(own["activation"][:8].to(device)).tolist()
    found["patchscopes texts"] = [model.spell(text) for text in texts]
    return found


def _tokens_of(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: batch[name] for name in ("activation", "tokens", "position")}


if __name__ == "__main__":
    main()
